"""A checkpoint's table of contents: everything about a round but its tensors.

One JSON file, round-000012.json, of exactly the bytes that `encode` makes, with a checksum of its
own. Tensors are in safetensors files, which it names by their checksums.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fl2fast.engine.world import Divergence, Key
from fl2fast.journal import METRICS, Cursor, Damaged

FORMAT = 1
MAX_BYTES = 1 << 28  # of a manifest; a client takes about a hundred
MANIFEST_NAME = re.compile(r"round-\d{6,}\.json")

BEYOND = (AttributeError, OverflowError, RecursionError)  # what JSON can do to a reader
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Stored(NamedTuple):
    """A file of tensors."""

    size: int
    sha256: str

    @staticmethod
    def of(content: bytes) -> "Stored":
        return Stored(len(content), hashlib.sha256(content).hexdigest())

    def name(self, stem: str, copy: bool = False) -> str:
        return f"{stem}-{self.sha256[:20]}{'.copy' * copy}.safetensors"


class Progress(NamedTuple):
    """What a run's summary adds up."""

    num_trained: int = 0  # images
    training_seconds: float = 0.0
    wall_seconds: float = 0.0


class Manifest(NamedTuple):
    round: int
    experiment: dict[str, Any]
    fingerprint: str  # of data and plug-ins
    machine: dict[str, Any]
    progress: Progress
    score: float | None  # mean test accuracy of the round
    diverged: tuple[Divergence, ...]
    journals: dict[str, Cursor]
    confusion: list[dict[str, Any]]  # of the last tested round, a row per seed
    server: Stored
    clients: dict[Key, Stored]

    @property
    def name(self) -> str:
        return f"round-{self.round:06}.json"

    @property
    def files(self) -> dict[str, Stored]:
        """Of tensors, by name."""
        named = {self.server.name(SERVER): self.server}
        return named | {entry.name(client_stem(key)): entry for key, entry in self.clients.items()}

    @property
    def copies(self) -> set[str]:
        """Names that copies of the clients' files have, those that are there."""
        return {entry.name(client_stem(key), copy=True) for key, entry in self.clients.items()}


SERVER = "server"


def client_stem(key: Key) -> str:
    seed, client = key
    return f"client-{seed}-{client}"


def encode(manifest: Manifest) -> bytes:
    clients = [[*key, *entry] for key, entry in sorted(manifest.clients.items())]
    return sign({"format": FORMAT, **manifest._asdict(), "clients": clients})


def sign(body: Any) -> bytes:
    """With a checksum in front."""
    return _text({"sha256": hashlib.sha256(_text(body)).hexdigest(), "checkpoint": body})


def _text(value: Any) -> bytes:
    return (json.dumps(value, allow_nan=False, separators=(",", ":")) + "\n").encode()


def decode(content: bytes, name: str) -> Manifest:
    """The manifest, or `Damaged` if these are not the bytes that were written."""
    try:
        body = json.loads(content)["checkpoint"]
        if sign(body) != content:
            raise Damaged(f"{name} does not match its checksum")
        if body["format"] != FORMAT:
            raise Damaged(
                f"{name} has the format {body['format']!r}, but this version reads {FORMAT}"
            )
        return _read(body)
    except (ValueError, KeyError, TypeError, *BEYOND) as error:
        raise Damaged(f"{name} is not a manifest ({type(error).__name__})") from error


def _read(body: dict[str, Any]) -> Manifest:
    """Every value of its kind; a KeyError, TypeError or ValueError says that one is not."""
    return Manifest(
        round=_natural(body["round"]),
        experiment=_kind(dict, body["experiment"]),
        fingerprint=_kind(str, body["fingerprint"]),
        machine=_kind(dict, body["machine"]),
        progress=_progress(*body["progress"]),
        score=None if body["score"] is None else float(body["score"]),
        diverged=tuple(
            Divergence(_natural(seed), _natural(round), _kind(str, where))
            for seed, round, where in body["diverged"]
        ),
        journals=_journals(body["journals"]),
        confusion=[_confusion(**row) for row in body["confusion"]],
        server=_stored(*body["server"]),
        clients={
            (_natural(seed), _natural(client)): _stored(size, sha256)
            for seed, client, size, sha256 in body["clients"]
        },
    )


def _kind(kind: Callable[..., Any], value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(value)
    return value


def _natural(value: Any) -> int:
    if _kind(int, value) < 0:
        raise ValueError(value)
    return value


def _checksum(value: Any) -> str:
    if not _SHA256.fullmatch(_kind(str, value)):
        raise ValueError(value)
    return value


def _plain(name: str) -> str:
    """A file of the run folder itself, not a path that leads out of it."""
    if not re.fullmatch(r"\w+\.jsonl", name):
        raise ValueError(name)
    return name


def _journals(found: dict[str, Any]) -> dict[str, Cursor]:
    if METRICS not in found:
        raise KeyError(METRICS)
    return {
        _plain(name): Cursor(_natural(size), _checksum(sha256))
        for name, (size, sha256) in found.items()
    }


def _confusion(seed: Any, round: Any, confusion: Any) -> dict[str, Any]:
    counts = [[_natural(count) for count in row] for row in confusion]
    if any(len(row) != len(counts) for row in counts):
        raise ValueError(confusion)
    return {"seed": _natural(seed), "round": _natural(round), "confusion": counts}


def _progress(num_trained: Any, *seconds: Any) -> Progress:
    training, wall = (float(value) for value in seconds)
    return Progress(_natural(num_trained), training, wall)


def _stored(size: Any, sha256: Any) -> Stored:
    return Stored(_natural(size), _checksum(sha256))
