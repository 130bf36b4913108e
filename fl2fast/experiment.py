"""One run, described whole: a frozen record of every choice, with its presets and its checks."""

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from fl2fast import rng
from fl2fast.data.backends import BACKENDS, STRONG
from fl2fast.data.load import check_dataset
from fl2fast.data.partition import check_partition
from fl2fast.data.settings import CIFAR10, SETTINGS, TEXTS, Settings, pretrain_calls
from fl2fast.data.streetdigits import MOST_IMAGES
from fl2fast.errors import UsageError, brief
from fl2fast.methods import find_method, make_method, method_protocol
from fl2fast.methods.method import Method
from fl2fast.methods.options import check_options, method_options
from fl2fast.models import find_model
from fl2fast.models.execution import PRECISIONS
from fl2fast.models.lowering import LOWERINGS
from fl2fast.reading import read_small

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Experiment:
    """The default values are the paper's protocol; `experiment(...)` fills in a dataset's row.

    Points where the paper and its released code disagree are fields, and the defaults follow the
    code (the schedule is the exception: the paper's text and table say cosine).
    """

    dataset: str = "streetdigits"
    labels: int = 40
    method: str = "flfl"
    model: str = "wrn-28-2"
    partition: str = "iid"
    clients: int = 100
    cohort: int = 10
    rounds: int = 800
    epochs: int = 5
    server_epochs: int = 5
    batch_size: int = 32
    server_batch_size: int = 10
    pretrain: int = 10  # server-training calls before round 1; the paper's text mentions none
    lr: float = 0.03
    rho: float = 0.1
    schedule: str = "cosine"  # per round, to zero; the released code never steps it: constant
    seed: int = 0
    seeds: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    lowering: str = "auto"  # of the clients' training; auto: the fastest here
    server_lowering: str = "auto"  # auto: as `lowering`, or the fastest if that is auto
    compile: str = "auto"  # the local step through torch.compile; auto: where it is faster
    backward: str = "auto"  # two cotangents pulled back separate or shared; auto: the faster
    kernels: str = "auto"  # none, or some of asam,sgd,norm,conv; auto: those that are faster
    precision: str = "fp32"  # tf32 or bf16 change results, a little
    augment: str = "auto"  # torch or dali, which make the same views; auto: the faster one
    chunk: int = 0  # lanes that train at once; 0: all of them
    eval_every: int = 1
    checkpoint_every: int = 1  # rounds; 0: a run that is stopped starts over
    checkpoints: int = 2  # that are kept, and the best one besides

    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0  # gradient norm, clients and server; not in the paper; 0: off
    aggregate_momentum: float = 0.5  # 0: the plain average of the paper's equation
    client_momentum: str = "persist"  # across a client's rounds; fresh: zero each time
    sure: float = 0.95
    perturbation: str = "asam"
    strict: bool = False
    batches: str = "kept"
    consistency_rows: str = "sure"
    divergence: str = "forward"
    aggregation: str = "lsaa"
    sbn_data: str = "all"  # active: only the next cohort's images, as the paper's text says
    sbn_order: str = "class_sorted"
    sbn_weight: str = "per_batch"
    sbn_labelled_batch: int = 10
    sbn_unlabelled_batch: int = 2048
    constants: str = "flfl"  # whose mean, std and flip: the (FL)^2 code's, or SemiFL's own
    mean: tuple[float, ...] = CIFAR10.flfl.mean
    std: tuple[float, ...] = CIFAR10.flfl.std
    flip: bool = CIFAR10.flfl.flip
    strong_views: str = "flfl"  # the (FL)^2 code's RandAugment and cutout, or SemiFL's own ops
    crop: float = 0.125  # reflect padding of the random crop, as a share of the side
    train_size: int = 0  # the first images of the dataset; 0: all (of streetdigits 20,000 + 4,000)
    test_size: int = 0
    data_seed: int = 0  # of streetdigits, and of the texts that are sampled
    encoder: str = "bert-base-uncased"  # of text: a Hugging Face name, a folder, or a package
    options: dict[str, Any] = field(default_factory=dict)  # of the method: fl2fast show METHOD

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seed, self.seed + self.seeds))

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def is_due(self, round: int, every: int) -> bool:
        """Of what happens every so many rounds, and after the last."""
        return round % every == 0 or round == self.rounds

    def learning_rate(self, round: int) -> float:
        """Round r counts from 1; cosine annealing to zero after the last, stepped once a round."""
        if self.schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * (round - 1) / self.rounds))

    def make_method(self) -> Method:
        """The method with those of its options that this experiment names."""
        known = method_options(find_method(self.method))
        own = {name: value for name, value in asdict(self).items() if name in known}
        return make_method(self.method, own | self.options)


QUICK: dict[str, Any] = {
    "model": "cnn",
    "clients": 20,
    "cohort": 10,
    "rounds": 30,
    "epochs": 2,
    "server_epochs": 5,
    "batch_size": 32,
    "server_batch_size": 10,
    "lr": 0.1,  # the paper's 0.03 is made for hundreds of rounds
    "rho": 0.1,
}

PAPER: dict[str, Any] = {
    "clients": 100,
    "cohort": 10,
    "rounds": 800,
    "epochs": 5,
    "server_epochs": 5,
    "batch_size": 32,
    "server_batch_size": 10,
}

PRESETS = {"quick": QUICK, "paper": PAPER}

# How a run is computed and kept, not what it computes: another value changes rounding at most.
EXECUTION = (
    *("device", "lowering", "server_lowering", "compile", "backward", "kernels", "augment"),
    *("chunk", "checkpoint_every", "checkpoints"),
)

_CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": ("cosine", "constant"),
    "dtype": tuple(DTYPES),
    "lowering": ("auto", *LOWERINGS),
    "server_lowering": ("auto", *LOWERINGS),
    "compile": ("auto", "on", "off"),
    "backward": ("auto", "separate", "shared"),
    "precision": PRECISIONS,
    "augment": ("auto", *BACKENDS),
    "constants": ("flfl", "semifl"),
    "strong_views": tuple(STRONG),
    "client_momentum": ("persist", "fresh"),
    "perturbation": ("asam", "sam"),
    "batches": ("kept", "all"),
    "consistency_rows": ("sure", "kept"),
    "divergence": ("forward", "reverse"),
    "aggregation": ("lsaa", "uniform"),
    "sbn_data": ("all", "active"),
    "sbn_order": ("class_sorted", "shuffled"),
    "sbn_weight": ("per_batch", "per_sample"),
}

# (smallest, largest) value. The largest is beyond any use, and can still be computed with.
_MOST_ROWS, _MOST_ROUNDS, _MOST_EPOCHS, _MOST_BATCH = 100_000_000, 1_000_000, 10_000, 65_536
_FLOAT32 = 3e38
_RANGES: dict[str, tuple[float, float]] = {
    "labels": (1, _MOST_ROWS),
    "clients": (1, 1_000_000),
    "cohort": (1, 1_000_000),
    "rounds": (1, _MOST_ROUNDS),
    "epochs": (1, _MOST_EPOCHS),
    "server_epochs": (0, _MOST_EPOCHS),
    "batch_size": (1, _MOST_BATCH),
    "server_batch_size": (1, _MOST_BATCH),
    "pretrain": (0, _MOST_ROUNDS),
    "lr": (0, _FLOAT32),
    "rho": (0, _FLOAT32),
    "seed": (0, rng.MAX_SEED),
    "seeds": (1, 4096),
    "crop": (0, 0.5),
    "chunk": (0, 1_000_000),
    "eval_every": (1, _MOST_ROUNDS),
    "checkpoint_every": (0, _MOST_ROUNDS),
    "checkpoints": (1, _MOST_ROUNDS),
    "momentum": (0, 1),
    "weight_decay": (0, _FLOAT32),
    "clip": (0, _FLOAT32),
    "aggregate_momentum": (0, 1),
    "sure": (0, 1),
    "sbn_labelled_batch": (1, _MOST_BATCH),
    "sbn_unlabelled_batch": (1, _MOST_BATCH),
    "train_size": (0, _MOST_ROWS),
    "test_size": (0, _MOST_ROWS),
    "data_seed": (0, rng.MAX_SEED),
}

MOST_BYTES, MOST_COLUMNS = 65_536, 1_000  # of a config file, and of a line of TOML


_DEFAULTS = {f.name: getattr(Experiment(), f.name) for f in fields(Experiment)}


def experiment(preset: str | None = None, **given: Any) -> Experiment:
    """An experiment: explicit values over the method's over a preset's over the dataset's row.

    >>> experiment(dataset="svhn", labels=40).pretrain
    102
    >>> experiment(rounds=3).model
    'cnn'
    """
    known = _DEFAULTS
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UsageError(
            f"unknown setting {brief(unknown[0])}: see fl2fast train --help and README.md"
        )
    for name in ("mean", "std"):  # TOML knows lists only
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    given = {name: _of_type(name, value, known[name]) for name, value in given.items()}
    dataset = given.get("dataset", Experiment.dataset)
    settings = SETTINGS.get(dataset, CIFAR10)
    published = dataset in SETTINGS and dataset != "streetdigits"
    preset = preset or ("paper" if published else "quick")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise UsageError(f"unknown preset {brief(preset)}: choose {' or '.join(PRESETS)}")
    values = _row(settings, given.get("constants", Experiment.constants))
    values |= PRESETS[preset]
    if dataset in TEXTS:
        values["model"] = settings.model  # a preset's is for images
    own = method_protocol(given.get("method", Experiment.method), known)
    values |= own | given
    if "epochs" in given and "server_epochs" not in given:
        values["server_epochs"] = given["epochs"]
    made = Experiment(**values)
    check(made)
    if "pretrain" not in own | given:
        made = replace(made, pretrain=pretrain_calls(settings, made.labels, made.server_epochs))
    return made


def _row(settings: Settings, constants: str) -> dict[str, Any]:
    row = settings._asdict()
    del row["pretrain"]
    choices = {name: row.pop(name) for name in _CHOICES["constants"]}
    return row | choices.get(constants, settings.flfl)._asdict()


def read_config(path: Path) -> dict[str, Any]:
    """Settings from a TOML file; names are those of the flags or of `Experiment`'s fields."""
    try:
        table = _parse_toml(read_small(path, MOST_BYTES))
    except OSError as error:
        raise UsageError(
            f"config file {str(path)!r} cannot be read: {error.strerror}; give a TOML file"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"config file {str(path)!r} is not valid TOML: {error}; correct it"
        ) from error
    settings = {name.replace("-", "_"): value for name, value in table.items()}
    for name in ("preset", "out", "data_dir"):
        if not isinstance(settings.get(name, ""), str):
            raise UsageError(
                f"{name} is {brief(settings[name])} in {str(path)!r}, but it must be a string"
            )
    return settings


def _parse_toml(text: str) -> dict[str, Any]:
    """What is no TOML is a ValueError, and so is what would keep the parser busy for long."""
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > MOST_COLUMNS:
            raise ValueError(f"line {number} has more than {MOST_COLUMNS:,} characters")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Method options from NAME=VALUE; a value is a number, true, false or a word.

    >>> read_options(["beta=0.75", "mix_loss=false", "partners=kept"])
    {'beta': 0.75, 'mix_loss': False, 'partners': 'kept'}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals and text):
            raise UsageError(f"option {brief(pair)} is not NAME=VALUE, such as beta=0.75")
        try:
            table = _parse_toml(f"value = {text}")
        except ValueError:
            table = {}
        options[name] = table["value"] if table.keys() == {"value"} else text
    return options


def check(made: Experiment) -> None:
    """Refuse, in one sentence, what can be known to be wrong before any data is read."""
    for name, default in _DEFAULTS.items():
        _of_type(name, getattr(made, name), default)
    for name, choices in _CHOICES.items():
        if (value := getattr(made, name)) not in choices:
            raise UsageError(f"unknown {name} {brief(value)}: choose {', '.join(choices)}")
    for name, (low, high) in _RANGES.items():
        value = getattr(made, name)
        if not low <= value <= high:  # nor is NaN
            raise UsageError(f"{name} is {brief(value)}, but it must be from {low} to {high}")
    check_options(made.method, find_method(made.method), made.options, _DEFAULTS)
    made.make_method()
    if made.cohort > made.clients:
        raise UsageError(
            f"cohort {made.cohort} is larger than the {made.clients} clients: choose at most "
            f"{made.clients}"
        )
    if made.seed + made.seeds - 1 > rng.MAX_SEED:
        raise UsageError(f"seeds {made.seed} + {made.seeds} run past {rng.MAX_SEED}: start lower")
    finite = all(abs(v) <= _FLOAT32 for v in made.mean + made.std)  # NaN is not
    if not (finite and min(made.std, default=0) > 0 and len(made.mean) == len(made.std)):
        raise UsageError(
            f"mean {brief(made.mean)} and std {brief(made.std)} must be equally many finite "
            "numbers, with std above 0"
        )
    check_dataset(made.dataset)
    if made.dataset == "streetdigits" and max(made.train_size, made.test_size) > MOST_IMAGES:
        raise UsageError(
            f"train_size and test_size are {made.train_size} and {made.test_size}, but of "
            f"streetdigits at most {MOST_IMAGES:,} images are drawn: choose fewer"
        )
    find_model(made.model)
    if made.dataset in TEXTS and made.model != "linear" and ".py:" not in made.model:
        raise UsageError(
            f"model {brief(made.model)} takes images, but {made.dataset} is text whose features "
            "are ready: use --model linear, or path/to/file.py:factory"
        )
    check_partition(made.partition)
    check_device(made.device)


def _of_type(name: str, value: Any, default: Any) -> Any:
    """The value as its field's type: an integer may stand for a number."""
    if isinstance(default, tuple) and isinstance(value, tuple):
        return tuple(_of_type(name, v, 0.0) for v in value)
    if isinstance(default, float) and type(value) is int:
        return float(value) if abs(value) <= _FLOAT32 else value
    fits = isinstance(value, float) if isinstance(default, float) else type(value) is type(default)
    if not fits:
        raise UsageError(
            f"{name} is {brief(value)}, but it must be of the kind of its default, {default!r}"
        )
    return value


def check_device(name: str) -> None:
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,2})?", name):
        raise UsageError(f"unknown device {brief(name)}: use cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device {name!r} is absent: this machine has {torch.cuda.device_count()} CUDA "
            "devices; use --device cpu"
        )
