"""Run folders gone bad, for `train --resume`: damaged, forged with fitting checksums, replaced."""

import json
import os
import tempfile
from contextlib import chdir, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import fl2fast
from benchmarks.damage import damage, damaged_json, npy_bytes
from benchmarks.hostile_inputs import Case, Place, good_images
from fl2fast.checkpoint.manifest import Stored, decode, encode, sign
from fl2fast.checkpoint.writer import FOLDER
from fl2fast.simulate import RoundReport

ROUNDS = 3
SETTINGS: dict[str, Any] = {
    "dataset": "./data",
    "labels": 6,
    "clients": 2,
    "cohort": 2,
    "rounds": ROUNDS,
    "epochs": 1,
    "pretrain": 0,
    "model": "cnn",
    "lowering": "loop",
    "server_lowering": "loop",
    "augment": "torch",
}
COSTLY = ("rounds", "epochs", "server_epochs", "pretrain", "seeds", "clients", "cohort")


class Stop(Exception):
    """The run has come far enough."""


@cache
def good_run() -> dict[str, bytes]:
    """The files of a run that was stopped after its second round, and of its dataset."""

    def stop(report: RoundReport) -> None:
        if report.round == ROUNDS - 1:
            raise Stop

    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("data").mkdir()
        for name, array in good_images().items():
            Path("data", f"{name}.npy").write_bytes(npy_bytes(array))
        with suppress(Stop):
            fl2fast.train(fl2fast.experiment(**SETTINGS), "run", on_round=stop)
        paths = [path for path in Path().rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}


def stopped_run(draws: Random, place: Place) -> Case:
    """One thing is wrong with it, or with what is asked of it."""
    files = dict(good_run())
    newest = str(Path("run", FOLDER, f"round-{ROUNDS - 1:06}.json"))
    way = draws.randrange(6)
    if way == 0:  # any file, any damage
        name = draws.choice([name for name in files if name.startswith("run")])
        files[name] = _cheap(damage(files[name], draws))
    if way == 1:  # no checkpoint: its settings are all there is
        files = {name: content for name, content in files.items() if FOLDER not in name}
        text = damaged_json(json.loads(files["run/config.json"]), draws)
        files["run/config.json"] = _cheap(text.encode("utf-8", "surrogatepass"))
    if way == 2:  # a manifest that says something else, rightly signed
        text = damaged_json(json.loads(files[newest])["checkpoint"], draws)
        files[newest] = _signed(text, files[newest])
    if way == 3:  # tensors that are none, or others, by the checksum that they have
        manifest = decode(files[newest], "newest")
        old = str(Path("run", FOLDER, manifest.server.name("server")))
        content = damage(files[old], draws)
        stored = Stored.of(content)
        files[str(Path("run", FOLDER, stored.name("server")))] = content
        files[newest] = encode(manifest._replace(server=stored))
    flags: list[str] = []
    if way == 4:
        flags = draws.choice(
            (
                ["--lr", "0.5"],
                ["--rounds", "2"],
                ["--labels", "7"],
                ["--seeds", "2"],
                ["--method", "cat"],
                ["--preset", "paper"],
                ["--dataset", "void"],
                ["--out", "x"],
                ["--dry-run"],
                ["--option", "beta=1"],
            )
        )
    for name, content in files.items():
        path = place.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if way == 5:
        _replace(draws, place.folder / draws.choice([n for n in files if n.startswith("run")]))
    run = draws.choice(("run",) * 12 + ("run/checkpoints", "data", "void", "", "a\0b", "/dev/null"))
    if draws.random() < 0.2 and not flags:
        flags = ["--out", run, "--labels", "6" if run == "run" else "0"]  # else it would start
        run = "auto"
    return Case(["train", "--resume", run, *flags], (0, 3), ("run",), ("run",))


def _replace(draws: Random, path: Path) -> None:
    """Something else of that name."""
    path.unlink()
    draws.choice(
        (
            path.mkdir,
            lambda: None,
            lambda: path.symlink_to("/dev/zero"),
            lambda: path.symlink_to(path.name),
            lambda: os.mkfifo(path),
        )
    )()


def _signed(text: str, otherwise: bytes) -> bytes:
    try:
        return sign(json.loads(_cheap(text.encode("utf-8", "surrogatepass"))))
    except (ValueError, RecursionError):
        return otherwise


def _cheap(content: bytes) -> bytes:
    """As it is, unless it asks for a long run, which is no mistake."""
    with suppress(ValueError, RecursionError, AttributeError):
        value = json.loads(content)
        settings = value.get("experiment", value)
        if any(isinstance(settings.get(name), int) and settings[name] > 12 for name in COSTLY):
            return b"[]"
    return content
