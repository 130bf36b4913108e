"""Writes checkpoints beside the run that makes them.

A federation never changes (see engine.world), so handing it over is the snapshot; a thread copies
it from the device, encodes and writes it while the next round trains. A client's file is written
again only when the client has trained again; once a second checkpoint rests on it, it gets a copy,
lest one bad byte spoil both. A checkpoint exists once its manifest bears its name, and that comes
last.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from fl2fast.checkpoint.manifest import (
    MANIFEST_NAME,
    SERVER,
    Manifest,
    Progress,
    Stored,
    client_stem,
    encode,
)
from fl2fast.durable import remove_scratch, sync, write_all, write_whole
from fl2fast.engine.world import ClientStore, Federation, Key, ServerState
from fl2fast.journal import Cursor

FOLDER = "checkpoints"
# in the order of the fields of a state, and of a store
SERVER_ROWS: list[str] = ["params", "server_momentum", "aggregate_momentum"]
CLIENT_TENSORS = ("momentum", "kept")

Kept = tuple[Tensor | None, Tensor | None]  # a client's momentum, and what its method keeps
Known = dict[Key, tuple[Kept, Stored]]  # clients whose files are whole


class Snapshot(NamedTuple):
    federation: Federation
    experiment: dict[str, Any]
    progress: Progress
    score: float | None
    journals: dict[str, Cursor]
    confusion: list[dict[str, Any]]


class Writer:
    """The checkpoints of one run: the last `keep` of them, and the best."""

    def __init__(
        self,
        run: Path,
        keep: int,
        fingerprint: str,
        machine: dict[str, Any],
        before: Sequence[Manifest],
        known: Known,
    ) -> None:
        """`before`: the checkpoints that are there."""
        self._run, self._folder, self._keep = run, run / FOLDER, keep
        self._fingerprint, self._machine = fingerprint, machine
        self._manifests = {manifest.round: manifest for manifest in before}
        self._known = dict(known)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._side: torch.cuda.Stream | None = None
        self._folder.mkdir(exist_ok=True)
        sync(run)
        remove_scratch(self._folder)

    @property
    def newest(self) -> int:
        """The round of the newest checkpoint; 0: there is none."""
        return max(self._manifests, default=0)

    def write(self, snapshot: Snapshot) -> None:
        """Returns at once, unless the one before is still being written."""
        self.wait()
        ready = None
        if snapshot.federation.state.params_SP.is_cuda:
            ready = torch.cuda.Event()
            ready.record()
        self._pending = self._thread.submit(self._commit, snapshot, ready)

    def wait(self) -> None:
        """Until all is on the disk; what went wrong there is raised here."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def close(self) -> None:
        """Wait, as `wait` does, and let the thread go."""
        try:
            self.wait()
            self._clear()  # what a process left that was killed just before it did
        finally:
            self._thread.shutdown()

    def _commit(self, snapshot: Snapshot, ready: "torch.cuda.Event | None") -> None:
        if ready is None:
            self._write(snapshot)
            return
        self._side = self._side or torch.cuda.Stream()
        with torch.cuda.stream(self._side):  # the run's own stream goes on
            self._side.wait_event(ready)
            self._write(snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        federation = snapshot.federation
        content = to_bytes(server_tensors(federation.state))
        server, fresh = Stored.of(content), {}

        def files() -> Iterator[tuple[str, bytes]]:
            yield server.name(SERVER), content
            for key, kept in held_by_clients(federation.store).items():
                before, stored = self._known.get(key, ((None, None), server))
                if not _is_same(before, kept):
                    own = to_bytes(client_tensors(kept))
                    fresh[key] = kept, Stored.of(own)
                    yield fresh[key][1].name(client_stem(key)), own
                elif not (copy := self._folder / stored.name(client_stem(key), copy=True)).exists():
                    yield copy.name, to_bytes(client_tensors(kept))

        write_all(self._folder, files())
        for name in snapshot.journals:
            sync(self._run / name)
        self._known |= fresh
        manifest = Manifest(
            federation.round,
            snapshot.experiment,
            self._fingerprint,
            self._machine,
            snapshot.progress,
            snapshot.score,
            federation.diverged,
            snapshot.journals,
            snapshot.confusion,
            server,
            {key: stored for key, (_, stored) in self._known.items()},
        )
        write_whole(self._folder / manifest.name, encode(manifest))
        self._manifests[manifest.round] = manifest
        self._clear()

    def _clear(self) -> None:
        """Remove what is neither among the last ones nor the best, manifests first."""
        if not self._manifests:
            return
        last = sorted(self._manifests)[-self._keep :]
        best = max(self._manifests.values(), key=lambda m: (m.score is not None, m.score, -m.round))
        self._manifests = {
            round: m for round, m in self._manifests.items() if round in last or m is best
        }
        kept = self._manifests.values()
        names = {name for m in kept for name in (m.name, *m.files, *m.copies)}
        others = [path for path in self._folder.iterdir() if path.name not in names]
        for path in sorted(others, key=lambda path: not MANIFEST_NAME.fullmatch(path.name)):
            path.unlink(missing_ok=True)


def held_by_clients(store: ClientStore) -> dict[Key, Kept]:
    return {key: (store.rows.get(key), store.kept.get(key)) for key in {**store.rows, **store.kept}}


def _is_same(a: Kept, b: Kept) -> bool:
    """Tensors of a store never change, so the same ones hold the same."""
    return a[0] is b[0] and a[1] is b[1]


def server_tensors(state: ServerState) -> dict[str, Tensor]:
    return {
        **dict(zip(SERVER_ROWS, state[:3], strict=True)),
        "mean": torch.stack([stats.mean_Q for stats in state.stats_S]),
        "var": torch.stack([stats.var_Q for stats in state.stats_S]),
    }


def client_tensors(kept: Kept) -> dict[str, Tensor]:
    named = zip(CLIENT_TENSORS, kept, strict=True)
    return {name: tensor for name, tensor in named if tensor is not None}


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """The same tensors give the same bytes: no metadata, whose order varies."""
    return safetensors.torch.save({name: t.cpu().contiguous() for name, t in tensors.items()})
