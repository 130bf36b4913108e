"""Find the newest whole checkpoint of a run, and bring its federation back to life.

Nothing that is read is executed, no name that is read leads out of the folder, and every byte is
checked before it is used.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from fl2fast import journal
from fl2fast.checkpoint.manifest import (
    MANIFEST_NAME,
    MAX_BYTES,
    SERVER,
    Manifest,
    Stored,
    client_stem,
    decode,
)
from fl2fast.checkpoint.writer import CLIENT_TENSORS, FOLDER, SERVER_ROWS, Known
from fl2fast.durable import write_whole
from fl2fast.engine.visit import probe
from fl2fast.engine.world import ClientStore, Federation, Finite, Key, ServerState, World
from fl2fast.errors import UsageError
from fl2fast.journal import Damaged
from fl2fast.models.network import Stats
from fl2fast.simulate import initial_state

Tensors = dict[str, Tensor]


class Checkpoint(NamedTuple):
    """A whole one, as it was stored; and the manifests of all that look whole."""

    manifest: Manifest
    server: Tensors
    clients: dict[Key, Tensors]
    manifests: list[Manifest]


def newest_whole(run: Path, warn: Callable[[str], object]) -> Checkpoint | None:
    """None: the run has not come to its first checkpoint. Damaged ones are named to `warn`."""
    newest_first = sorted(_manifests(run), key=lambda p: int(p.stem.removeprefix("round-")))[::-1]
    whole, manifests = None, []
    for path in newest_first:
        try:
            manifest = _read_manifest(path)
            if whole is None:
                whole = _load(run, manifest, warn)
            manifests.append(manifest)
        except Damaged as error:
            warn(f"checkpoint {path.stem} of {str(run)!r} is damaged: {error}")
    if whole is not None:
        return whole._replace(manifests=manifests)
    if newest_first:
        raise UsageError(
            f"no checkpoint of {str(run)!r} is whole: put its files back from a copy, or start "
            "again with another --out"
        )
    return None


def _manifests(run: Path) -> list[Path]:
    """A folder that cannot be listed is not one without checkpoints: a run must not start over."""
    folder = run / FOLDER
    try:
        names = os.listdir(folder) if os.path.lexists(folder) else []
    except OSError as error:
        raise UsageError(
            f"the checkpoints in {str(folder)!r} cannot be listed: {error.strerror}"
        ) from error
    return [folder / name for name in names if MANIFEST_NAME.fullmatch(name)]


def _read_manifest(path: Path) -> Manifest:
    manifest = decode(_read(path, MAX_BYTES), path.name)
    if manifest.name != path.name:
        raise Damaged(f"{path.name} is of round {manifest.round}")
    return manifest


def _load(run: Path, manifest: Manifest, warn: Callable[[str], object]) -> Checkpoint:
    for name, cursor in manifest.journals.items():
        journal.check(run / name, cursor)
    folder = run / FOLDER
    server = _read_tensors(folder, manifest.server, manifest.server.name(SERVER))
    clients = {
        key: _read_client(folder, stored, client_stem(key), warn)
        for key, stored in manifest.clients.items()
    }
    return Checkpoint(manifest, server, clients, [])


def _read_client(folder: Path, stored: Stored, stem: str, warn: Callable[[str], object]) -> Tensors:
    """A client's file, or what its copy says, which then takes its place."""
    name, copy = (stored.name(stem, copy=is_copy) for is_copy in (False, True))
    try:
        return _read_tensors(folder, stored, name)
    except Damaged as error:
        tensors = _read_tensors(folder, stored, copy) if (folder / copy).exists() else None
        if tensors is None:
            raise
        warn(f"{error} in {str(folder)!r}: its copy is whole and takes its place")
        with suppress(OSError):  # it can be read: the run goes on
            write_whole(folder / name, (folder / copy).read_bytes())
        return tensors


def _read_tensors(folder: Path, stored: Stored, name: str) -> Tensors:
    content = _read(folder / name, stored.size)
    if len(content) != stored.size or hashlib.sha256(content).hexdigest() != stored.sha256:
        raise Damaged(f"{name} does not match its checksum")
    try:
        return safetensors.torch.load(content)
    except Exception as error:  # of a checksum that was made to fit; the parser has its own errors
        raise Damaged(f"{name} holds no tensors ({type(error).__name__})") from error


def _read(path: Path, most: int) -> bytes:
    if path.exists() and not path.is_file():  # a pipe or a device might never end
        raise Damaged(f"{path.name} is no file")
    try:
        if path.stat().st_size > most:
            raise Damaged(f"{path.name} has more than {most} bytes")
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from error


def revive(world: World, checkpoint: Checkpoint) -> tuple[Federation, Known]:
    """The federation on the world's device, and which client's file holds which of its tensors."""
    manifest, fresh = checkpoint.manifest, initial_state(world)
    like_SP, width = fresh.params_SP, world.network.norms.width
    shapes = dict.fromkeys(SERVER_ROWS, like_SP.shape)
    shapes |= dict.fromkeys(("mean", "var"), torch.Size((len(like_SP), width)))
    server = _placed(checkpoint.server, shapes, like_SP, "the server's")
    stats = tuple(map(Stats, server["mean"], server["var"]))
    state = ServerState._make((*(server[name] for name in SERVER_ROWS), stats))
    shapes = _client_shapes(world, like_SP)
    clients = {
        key: _placed(tensors, shapes, like_SP, f"client {key[1]}'s")
        for key, tensors in checkpoint.clients.items()
    }
    store = ClientStore(
        *({k: own[name] for k, own in clients.items() if name in own} for name in CLIENT_TENSORS)
    )
    federation = Federation(manifest.round, state, store, manifest.diverged)
    _check_sound(world, federation, set(clients))
    known = {
        key: ((own.get("momentum"), own.get("kept")), manifest.clients[key])
        for key, own in clients.items()
    }
    return federation, known


def _client_shapes(world: World, like_SP: Tensor) -> dict[str, torch.Size]:
    client, shapes = world.method.client, {}
    if client is not None and world.experiment.client_momentum == "persist":
        shapes["momentum"] = like_SP[0].shape
    if client is not None and client.memory is not None:
        kept_LQ = client.memory.keep(world.network, like_SP[:1], probe(world))
        shapes["kept"] = kept_LQ[0].shape
    return shapes


def _placed(tensors: Tensors, shapes: dict[str, torch.Size], like: Tensor, whose: str) -> Tensors:
    """Tensors of the expected names and shapes, in their order, on the device."""
    found = {name: (t.shape, t.dtype) for name, t in tensors.items()}
    if found != {name: (shape, like.dtype) for name, shape in shapes.items()}:
        raise UsageError(
            f"the checkpoint does not fit the experiment ({whose} tensors have other names, shapes "
            "or precision): resume it with the model and method that it was made with"
        )
    return {name: tensors[name].to(like.device) for name in shapes}


def _check_sound(world: World, federation: Federation, keys: set[Key]) -> None:
    """What a run never writes: rounds too many, strangers, and numbers that are none."""
    e = world.experiment
    if federation.round > e.rounds:
        raise UsageError(f"the checkpoint is of round {federation.round}, but there are {e.rounds}")
    if federation.frozen >= set(e.seed_list):
        raise UsageError("every seed of the checkpoint has diverged: start a new run")
    strangers = {seed for seed, _ in keys} | federation.frozen
    strangers -= set(e.seed_list)
    if strangers or any(client >= e.clients for _, client in keys):
        raise UsageError("the checkpoint holds seeds or clients that the experiment does not have")
    finite = Finite.of(federation.state, None)
    for seed, *fine in zip(e.seed_list, *map(Tensor.tolist, finite[1:]), strict=True):
        if not all(fine) and seed not in federation.frozen:
            raise UsageError(f"the checkpoint holds numbers of seed {seed} that are not finite")
