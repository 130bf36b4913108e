"""Checkpoints on a hostile disk: damaged, forged, full, half written."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from test_cli import call
from test_resume import TINY, Stopper

import fl2fast
from fl2fast import durable
from fl2fast.checkpoint.manifest import Manifest, Stored, client_stem, decode, encode
from fl2fast.checkpoint.restore import newest_whole
from fl2fast.checkpoint.writer import FOLDER, to_bytes
from fl2fast.errors import UsageError
from fl2fast.interrupt import Interrupted
from fl2fast.selfcheck import contents


@pytest.fixture(scope="module")
def original(small_digits: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every client trains in every round, so that checkpoints share no file."""
    run = tmp_path_factory.mktemp("runs") / "original"
    settings = TINY | {"dataset": small_digits, "cohort": 5, "checkpoints": 3}
    with pytest.raises(Interrupted):
        fl2fast.train(fl2fast.experiment(**settings), run, on_round=Stopper(3))
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def manifest_of(run: Path, round: int) -> Manifest:
    path = run / FOLDER / f"round-{round:06}.json"
    return decode(path.read_bytes(), path.name)


def files_of(run: Path, round: int) -> list[Path]:
    manifest = manifest_of(run, round)
    return [run / FOLDER / name for name in (manifest.name, *manifest.files)]


def flip(path: Path, place: int, bits: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= bits
    path.write_bytes(content)


def test_a_flipped_byte_is_found_and_the_checkpoint_before_is_used(run: Path) -> None:
    draws = np.random.Generator(np.random.Philox(1))
    files = files_of(run, 3)
    sizes = [path.stat().st_size for path in files]
    for _ in range(60):
        # the manifest is small, but its every byte counts as much
        path = files[0] if draws.random() < 0.3 else files[int(draws.integers(1, len(files)))]
        place, bits = int(draws.integers(path.stat().st_size)), int(draws.integers(1, 256))
        flip(path, place, bits)
        warned: list[str] = []
        checkpoint = newest_whole(run, warned.append)
        assert checkpoint is not None
        assert checkpoint.manifest.round == 2
        (said,) = warned
        assert "checkpoint round-000003 of" in said
        assert path.name in said
        flip(path, place, bits)
    assert [path.stat().st_size for path in files] == sizes
    assert newest_whole(run, pytest.fail) is not None


@pytest.mark.parametrize("damage", ["truncated", "longer", "empty", "gone", "a folder"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_other_damage_is_found_too(run: Path, damage: str, which: int) -> None:
    path = files_of(run, 3)[which]
    content = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes(
            {"truncated": content[:-7], "longer": content + b" ", "empty": b""}[damage]
        )
    warned: list[str] = []
    checkpoint = newest_whole(run, warned.append)
    assert checkpoint is not None
    assert checkpoint.manifest.round == 2
    assert len(warned) == (damage != "gone" or which > 0)


def test_a_damaged_checkpoint_costs_a_round_and_nothing_else(
    run: Path, original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(original, whole)
    fl2fast.resume(whole)
    flip(files_of(run, 3)[1], 5000, 4)
    assert call("train", "--resume", run) == 0
    captured = capsys.readouterr()
    assert "goes on after round 2" in captured.out
    assert "checkpoint round-000003" in captured.err
    assert "is damaged: server-" in captured.err
    assert contents(run) == contents(whole)


def test_what_two_checkpoints_rest_on_has_a_copy(small_digits: str, tmp_path: Path) -> None:
    """A bad byte there costs nothing: the copy takes the file's place."""
    run = tmp_path / "run"
    settings = TINY | {"dataset": small_digits, "cohort": 1, "rounds": 6}
    with pytest.raises(Interrupted):
        fl2fast.train(fl2fast.experiment(**settings), run, on_round=Stopper(5))
    newest, before = manifest_of(run, 5), manifest_of(run, 4)
    shared = sorted({*newest.files} & {*before.files})
    assert shared
    path = run / FOLDER / shared[0]
    original = path.read_bytes()
    flip(path, 200, 8)
    warned: list[str] = []
    checkpoint = newest_whole(run, warned.append)
    assert checkpoint is not None
    assert checkpoint.manifest == newest
    (said,) = warned
    assert f"{path.name} does not match its checksum" in said
    assert "copy is whole" in said
    assert path.read_bytes() == original


def test_a_row_that_was_changed_is_found(run: Path) -> None:
    rows = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(rows[0] + rows[1] + rows[2].replace(b"lr", b"LR"))
    warned: list[str] = []
    checkpoint = newest_whole(run, warned.append)
    assert checkpoint is not None
    assert checkpoint.manifest.round == 2
    assert "metrics.jsonl is not what it was" in warned[0]


def test_rows_after_the_checkpoint_are_cut_off(run: Path, original: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(original, whole)
    fl2fast.resume(whole)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "half a ro')
    fl2fast.resume(run)
    assert contents(run) == contents(whole)


def test_nothing_whole_is_one_sentence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (run / FOLDER).glob("server-*"):
        flip(path, 100, 1)
    before = contents(run)
    assert call("train", "--resume", run) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" of '")[0] for line in said[:-1]] == [
        f"checkpoint round-00000{round}" for round in (3, 2, 1)
    ]
    assert "no checkpoint of" in said[-1]
    assert contents(run) == before


def forge(run: Path, **changes: Any) -> None:
    """A manifest whose checksum fits."""
    manifest = manifest_of(run, 3)._replace(**changes)
    (run / FOLDER / manifest.name).write_bytes(encode(manifest))


def put(run: Path, tensors: dict[str, torch.Tensor], stem: str) -> Stored:
    content = to_bytes(tensors)
    stored = Stored.of(content)
    (run / FOLDER / stored.name(stem)).write_bytes(content)
    return stored


def forge_server(run: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    manifest = manifest_of(run, 3)
    path = run / FOLDER / manifest.server.name("server")
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    forge(run, server=put(run, tensors, "server"))


def forge_client(run: Path, key: tuple[int, int]) -> None:
    """The tensors of some client under another's name."""
    manifest = manifest_of(run, 3)
    stored, folder = manifest.clients[0, 0], run / FOLDER
    shutil.copy(folder / stored.name("client-0-0"), folder / stored.name(client_stem(key)))
    forge(run, clients=manifest.clients | {key: stored})


FORGERIES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "NaN weights": (lambda run: forge_server(run, lambda t: t["params"].fill_(np.nan)), "finite"),
    "another shape": (
        lambda run: forge_server(run, lambda t: t.update(params=t["params"][:, 1:])),
        "does not fit",
    ),
    "another precision": (
        lambda run: forge_server(run, lambda t: t.update(params=t["params"].double())),
        "does not fit",
    ),
    "a name too many": (
        lambda run: forge_server(run, lambda t: t.update(more=torch.zeros(1))),
        "does not fit",
    ),
    "a strange client": (lambda run: forge_client(run, (0, 99)), "does not have"),
    "a strange seed": (lambda run: forge_client(run, (7, 1)), "does not have"),
    "an unknown setting": (
        lambda run: forge(run, experiment=manifest_of(run, 3).experiment | {"colour": "red"}),
        "colour",
    ),
    "a setting of another kind": (
        lambda run: forge(run, experiment=manifest_of(run, 3).experiment | {"rounds": "many"}),
        "rounds",
    ),
    "another dataset": (lambda run: forge(run, fingerprint="0" * 64), "dataset"),
    "more rounds than asked for": (
        lambda run: forge(run, experiment=manifest_of(run, 3).experiment | {"rounds": 2}),
        "of round 3, but there are 2",
    ),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_checkpoint_is_refused_in_one_sentence(
    run: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = FORGERIES[case]
    change(run)
    before = contents(run)
    assert call("train", "--resume", run) == 2
    err = capsys.readouterr().err
    assert words in err.splitlines()[-1]
    assert len(err.splitlines()) == 1
    assert contents(run) == before


@pytest.mark.parametrize("name", ["../escape.jsonl", "/etc/passwd", "a/b.jsonl", "metrics.json"])
def test_no_name_leads_out_of_the_folder(run: Path, name: str) -> None:
    manifest = manifest_of(run, 3)
    forge(run, journals=manifest.journals | {name: manifest.journals["metrics.jsonl"]})
    warned: list[str] = []
    checkpoint = newest_whole(run, warned.append)
    assert checkpoint is not None
    assert checkpoint.manifest.round == 2
    assert "not a manifest" in warned[0]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{", b'{"sha256": 3, "checkpoint": {}}', b"[" * 10**5, b"\xff"],
)
def test_what_is_no_manifest_is_damaged(run: Path, content: bytes) -> None:
    (run / FOLDER / "round-000004.json").write_bytes(content)
    warned: list[str] = []
    checkpoint = newest_whole(run, warned.append)
    assert checkpoint is not None
    assert checkpoint.manifest.round == 3
    assert len(warned) == 1


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--resume", tmp_path / "void"], "not a run folder"),
        (["--resume", tmp_path], "not a run folder"),
        (["--resume", "auto"], "needs --out"),
        (["--resume", tmp_path, "--out", tmp_path / "x"], "--out cannot go with --resume"),
        (["--resume", tmp_path, "--dry-run"], "--dry-run cannot go"),
    ):
        assert call("train", *words) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["a file", "a dangling link"])
def test_checkpoints_that_cannot_be_listed_are_not_none(run: Path, kind: str) -> None:
    """Starting over would overwrite the rows that they rest on."""
    folder, aside = run / FOLDER, run / "aside"
    folder.rename(aside)
    folder.write_text("") if kind == "a file" else folder.symlink_to("nowhere")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match="cannot be listed"):
        fl2fast.resume(run)
    assert (run / "metrics.jsonl").read_bytes() == before
    folder.unlink()
    aside.rename(folder)
    fl2fast.resume(run)


@pytest.mark.parametrize("kind", ["here", "empty", "a link"])
def test_an_empty_folder_becomes_a_run_in_place(
    kind: str, tmp_path: Path, small_digits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be a mount point, which no rename replaces."""
    out = tmp_path / "out"
    out.mkdir()
    (out / ".new").mkdir()  # of a process that was killed there
    (tmp_path / "link").symlink_to(out)
    monkeypatch.chdir(out)
    given = {"here": Path("."), "empty": out, "a link": tmp_path / "link"}[kind]
    settings = TINY | {"dataset": small_digits, "rounds": 1}
    fl2fast.train(fl2fast.experiment(**settings), given)
    assert (out / "summary.json").is_file()
    assert not (out / ".new").exists()
    assert newest_whole(out, pytest.fail) is not None


def test_scratch_files_of_a_killed_writer_are_cleared(run: Path) -> None:
    (run / FOLDER / "server-0.safetensors.part").write_bytes(b"half")
    fl2fast.resume(run)
    assert not list(run.rglob("*.part"))


def test_a_full_disk_leaves_old_files_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable.write_all(tmp_path, [("a", b"old"), ("b", b"old")])
    sync = os.fsync

    def full(handle: int) -> None:
        if b"new" in Path(f"/proc/self/fd/{handle}").resolve().read_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        durable.write_all(tmp_path, [("a", b"fine"), ("b", b"new")])
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"old", "b": b"old"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Five megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_of_five_megabytes(
    small_disk: Path, small_digits: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The run stops in one sentence; with room made, it ends as if the disk had been large."""
    settings = TINY | {"dataset": small_digits, "seeds": 2, "cohort": 5, "rounds": 8}
    config = tmp_path / "c.toml"
    config.write_text("\n".join(f"{name} = {json.dumps(v)}" for name, v in settings.items()))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(500_000))
    run = small_disk / "run"
    assert call("train", "--config", config, "--out", run) == 2
    err = capsys.readouterr().err
    assert "No space left on device" in err
    assert "--resume" in err
    assert err.count("\n") == 1
    kept = newest_whole(run, pytest.fail)
    assert kept is not None
    assert f"rounds 1 to {kept.manifest.round} are kept" in err
    assert call("train", "--resume", run) == 2
    assert f"rounds 1 to {kept.manifest.round} are kept" in capsys.readouterr().err
    roomy = tmp_path / "roomy"
    shutil.copytree(run, roomy)
    assert call("train", "--resume", roomy) == 0
    assert call("train", "--config", config, "--out", tmp_path / "whole") == 0
    assert contents(roomy) == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["timing.jsonl", "metrics.jsonl", "timing.jsonl.part"])
@pytest.mark.parametrize("kind", ["a pipe", "a link out"])
def test_what_only_bears_the_name_of_a_file_is_replaced(
    run: Path, name: str, kind: str, tmp_path: Path
) -> None:
    """A pipe would wait for ever, a link would be written through."""
    shutil.rmtree(run / FOLDER)  # it starts over: nothing rests on its rows
    outside = tmp_path / "thesis.txt"
    outside.write_text("years of work")
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name) if kind == "a pipe" else (run / name).symlink_to(outside)
    fl2fast.resume(run)
    assert outside.read_text() == "years of work"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_forged_file_holds_no_code(run: Path) -> None:
    """A pickle with a fitting checksum is no tensor file."""
    content = b"cos\nsystem\n(S'touch /tmp/owned'\ntR."
    stored = Stored.of(content)
    (run / FOLDER / stored.name("server")).write_bytes(content)
    forge(run, server=stored)
    warned: list[str] = []
    checkpoint = newest_whole(run, warned.append)
    assert checkpoint is not None
    assert checkpoint.manifest.round == 2
    assert "holds no tensors" in warned[0]


def test_a_config_that_is_none_is_refused(run: Path) -> None:
    shutil.rmtree(run / FOLDER)
    for content in (b"", b"[]", b'{"rounds": 1e99}', b"\xff\xfe", b"[" * 10**6):
        (run / "config.json").write_bytes(content)
        with pytest.raises(UsageError):
            fl2fast.resume(run)
