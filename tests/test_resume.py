"""A run that was stopped ends as if it had not been: the same weights, the same rows, the bytes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl2fast
from fl2fast.checkpoint.manifest import decode, encode
from fl2fast.checkpoint.restore import newest_whole
from fl2fast.checkpoint.writer import FOLDER
from fl2fast.errors import UsageError
from fl2fast.interrupt import Interrupted
from fl2fast.selfcheck import contents
from fl2fast.simulate import RoundReport

TINY: dict[str, Any] = {
    "labels": 20,
    "clients": 5,
    "cohort": 2,
    "rounds": 4,
    "epochs": 1,
    "pretrain": 1,
    "batch_size": 16,
    "model": "cnn",
    "lowering": "grouped",
    "server_lowering": "grouped",
    "augment": "torch",
    "partition": "dirichlet:1.0",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedmatch": {"confidence": 0.2, "helper_every": 1},
    "fedcon": {"hidden": 8},
}


class Stopper:
    """Stops a run after some round, as Ctrl-C would between two steps."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, report: RoundReport) -> None:
        if report.round == self.after:
            raise Interrupted


def newest(run: Path) -> dict[str, Any]:
    """What the last checkpoint holds, tensors by their checksums, without the clock's."""
    checkpoint = newest_whole(run, pytest.fail)
    assert checkpoint is not None
    journals = {n: c for n, c in checkpoint.manifest.journals.items() if n != "timing.jsonl"}
    return checkpoint.manifest._replace(progress=None, journals=journals)._asdict()  # type: ignore


@pytest.fixture
def settings(small_digits: str) -> dict[str, Any]:
    return TINY | {"dataset": small_digits}


@pytest.fixture
def stopped(settings: dict[str, Any], tmp_path: Path) -> Path:
    """A run of four rounds that was stopped after the third."""
    run = tmp_path / "stopped"
    with pytest.raises(Interrupted, match=r"rounds 1 to 3 are kept.*--resume"):
        fl2fast.train(fl2fast.experiment(**settings), run, on_round=Stopper(3))
    return run


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("flfl", {"seeds": 2}),
        ("flfl", {"client_momentum": "fresh", "eval_every": 3}),
        ("semifl", {"lowering": "cores"}),
        ("cat", {"checkpoint_every": 2, "eval_every": 2, "rounds": 5}),
        ("fedmatch", {"lowering": "loop"}),
        ("fedcon", {}),
        ("supervised", {}),
        ("freematch", {"rounds": 3}),
    ],
)
@pytest.mark.usefixtures("no_unkeyed_draws")
def test_stopped_and_resumed_is_never_stopped(
    method: str, changes: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    options = OPTIONS.get(method, {})
    made = fl2fast.experiment(**settings | {"method": method, "options": options} | changes)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = fl2fast.train(made, whole)
    with pytest.raises(Interrupted):
        fl2fast.train(made, broken, on_round=Stopper(1))
    with pytest.raises(Interrupted):
        fl2fast.resume(broken, on_round=Stopper(made.rounds - 1))
    ended = fl2fast.resume(broken)
    for clock in ("wall_seconds", "images_per_second", "out"):
        del ended[clock], expected[clock]
    assert ended == expected
    assert contents(broken) == contents(whole)
    assert newest(broken) == newest(whole)


def test_only_clients_that_trained_have_a_file(stopped: Path) -> None:
    checkpoint = newest_whole(stopped, pytest.fail)
    assert checkpoint is not None
    lines = (stopped / "diagnostics.jsonl").read_text().splitlines()
    met = {client for line in lines for client in json.loads(line)["clients"]}
    assert {client for _, client in checkpoint.manifest.clients} == met
    named = {name for m in checkpoint.manifests for name in (m.name, *m.files)}
    there = {path.name for path in (stopped / FOLDER).iterdir()}
    copies = {name for m in checkpoint.manifests for name in m.copies} & there
    assert there == named | copies
    shared = set.intersection(*(set(m.files) for m in checkpoint.manifests[:2]))
    assert {name.replace(".copy", "") for name in copies} >= shared


def test_the_last_ones_and_the_best_are_kept(settings: dict[str, Any], tmp_path: Path) -> None:
    made = fl2fast.experiment(**settings | {"rounds": 6, "checkpoints": 2, "pretrain": 8})
    run = tmp_path / "run"
    fl2fast.train(made, run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = max(rows, key=lambda row: row["test_accuracy"])["round"]
    checkpoint = newest_whole(run, pytest.fail)
    assert checkpoint is not None
    assert {manifest.round for manifest in checkpoint.manifests} == {5, 6, best}


def test_a_run_killed_before_its_first_checkpoint_starts_over(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    made = fl2fast.experiment(**settings)
    fl2fast.train(made, tmp_path / "whole")
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        fl2fast.train(made, run, on_round=Stopper(2))
    shutil.rmtree(run / FOLDER)
    said: list[str] = []
    fl2fast.resume(run, say=said.append)
    assert any("starts over" in sentence for sentence in said)
    assert contents(run) == contents(tmp_path / "whole")


def test_a_finished_run_is_left_alone(settings: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary = fl2fast.train(fl2fast.experiment(**settings), run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert fl2fast.resume(run) == summary
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_more_rounds_may_be_asked_for(settings: dict[str, Any], tmp_path: Path) -> None:
    """Under a constant rate they are the rounds of a longer run."""
    settings |= {"schedule": "constant"}
    longer, run = tmp_path / "longer", tmp_path / "run"
    fl2fast.train(fl2fast.experiment(**settings | {"rounds": 6}), longer)
    fl2fast.train(fl2fast.experiment(**settings), run)
    fl2fast.resume(run, {"rounds": 6})
    assert contents(run) == contents(longer)
    with pytest.raises(UsageError, match=r"shorten the run from 6 to 5"):
        fl2fast.resume(run, {"rounds": 5})


def test_an_extension_says_what_becomes_of_the_schedule(stopped: Path) -> None:
    said: list[str] = []
    fl2fast.resume(stopped, {"rounds": 8}, say=said.append, on_round=lambda _: None)
    (told,) = (sentence for sentence in said if "extended" in sentence)
    assert "extended from 4 to 8 rounds" in told
    assert "cosine" in told
    assert "from 0.05 in round 3 to 0.0691 in round 4" in told
    lines = (stopped / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[3])["lr"] == pytest.approx(0.0691342)
    assert json.loads((stopped / "config.json").read_text())["rounds"] == 8


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lr": 0.3, "labels": 40}, "labels from 20 to 40, lr from 0.1 to 0.3"),
        ({"method": "semifl"}, "method from 'flfl' to 'semifl'"),
        ({"precision": "bf16"}, "precision"),
        ({"seeds": 2}, "seeds from 1 to 2"),
        ({"eval_every": 2}, "eval_every"),
        ({"options": {"eta": 0.5}}, "options"),
    ],
)
def test_what_would_alter_the_result_is_refused(
    stopped: Path, given: dict[str, Any], words: str
) -> None:
    before = contents(stopped)
    with pytest.raises(UsageError, match=words):
        fl2fast.resume(stopped, given)
    assert contents(stopped) == before


def test_the_same_settings_said_again_are_no_change(
    stopped: Path, settings: dict[str, Any]
) -> None:
    fl2fast.resume(stopped, settings | {"lowering": "auto"})


def test_another_lowering_may_go_on_and_says_so(settings: dict[str, Any], tmp_path: Path) -> None:
    settings |= {"dtype": "float64"}
    made = fl2fast.experiment(**settings)
    summaries, ends = [], []
    for name, lowering in (("a", {}), ("b", {"lowering": "loop", "chunk": 1})):
        said: list[str] = []
        with pytest.raises(Interrupted):
            fl2fast.train(made, tmp_path / name, on_round=Stopper(2))
        reports: list[RoundReport] = []
        summaries.append(
            fl2fast.resume(tmp_path / name, lowering, say=said.append, on_round=reports.append)
        )
        ends.append(reports[-1].state.params_SP)
        assert any("chunk, lowering changed" in s for s in said) == bool(lowering)
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)


def test_other_data_is_refused(settings: dict[str, Any], small_digits: str, tmp_path: Path) -> None:
    """The images alone: labels and sizes stay."""
    data = tmp_path / "data"
    shutil.copytree(small_digits, data)
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        fl2fast.train(
            fl2fast.experiment(**settings | {"dataset": str(data)}), run, on_round=Stopper(1)
        )
    images = (data / "train_images.npy").read_bytes()
    (data / "train_images.npy").write_bytes(images[:-1] + bytes([images[-1] ^ 1]))
    with pytest.raises(UsageError, match="dataset"):
        fl2fast.resume(run)


def test_a_method_file_that_changed_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from fl2fast.methods.flfl import flfl\n")
    run = tmp_path / "run"
    made = fl2fast.experiment(**settings | {"method": f"{file}:flfl"})
    with pytest.raises(Interrupted):
        fl2fast.train(made, run, on_round=Stopper(1))
    with pytest.raises(UsageError, match=r"uses code of its own.* say --method"):
        fl2fast.resume(run)
    file.write_text("from fl2fast.methods.cat import cat as flfl\n")
    with pytest.raises(UsageError, match="own model or method has changed"):
        fl2fast.resume(run, {"method": made.method})
    file.write_text("from fl2fast.methods.flfl import flfl\n")
    fl2fast.resume(run, {"method": made.method})


def test_code_named_by_a_strange_folder_is_not_run(stopped: Path, tmp_path: Path) -> None:
    file = tmp_path / "evil.py"
    file.write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\n")
    (path, *_) = sorted((stopped / FOLDER).glob("round-*.json"), reverse=True)
    manifest = decode(path.read_bytes(), path.name)
    settings = manifest.experiment | {"method": f"{file}:flfl"}
    path.write_bytes(encode(manifest._replace(experiment=settings)))
    with pytest.raises(UsageError, match="uses code of its own"):
        fl2fast.resume(stopped)
    assert not (tmp_path / "owned").exists()


def test_a_dataset_folder_may_move(
    settings: dict[str, Any], small_digits: str, tmp_path: Path
) -> None:
    data, moved, run = tmp_path / "data", tmp_path / "moved", tmp_path / "run"
    shutil.copytree(small_digits, data)
    with pytest.raises(Interrupted):
        fl2fast.train(
            fl2fast.experiment(**settings | {"dataset": str(data)}), run, on_round=Stopper(1)
        )
    data.rename(moved)
    with pytest.raises(UsageError, match="unknown dataset"):
        fl2fast.resume(run)
    fl2fast.resume(run, {"dataset": str(moved)})


def test_a_run_that_starts_over_takes_the_changes_and_minds_its_data(
    settings: dict[str, Any], small_digits: str, tmp_path: Path
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(small_digits, data)
    settings |= {"dataset": str(data), "checkpoint_every": 0}
    with pytest.raises(Interrupted, match="no round is kept"):
        fl2fast.train(fl2fast.experiment(**settings), run, on_round=Stopper(2))
    labels = np.load(data / "train_labels.npy")
    np.save(data / "train_labels.npy", labels[::-1])
    with pytest.raises(UsageError, match="dataset"):
        fl2fast.resume(run)
    np.save(data / "train_labels.npy", labels)
    fl2fast.resume(run, {"rounds": 5})
    assert json.loads((run / "config.json").read_text())["rounds"] == 5
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 5
    said: list[str] = []
    fl2fast.resume(run, say=said.append)
    assert said == [f"{run} is finished: 5 rounds"]


def test_an_extension_outlives_its_newest_checkpoint(stopped: Path) -> None:
    with pytest.raises(Interrupted):
        fl2fast.resume(stopped, {"rounds": 6}, on_round=Stopper(4))
    newest_file = max((stopped / FOLDER).glob("round-*.json"))
    newest_file.write_bytes(b"bad")
    fl2fast.resume(stopped)
    assert len((stopped / "metrics.jsonl").read_text().splitlines()) == 6


def test_what_says_how_fast_is_not_needed(stopped: Path, settings: dict[str, Any]) -> None:
    (stopped / "timing.jsonl").write_bytes(b"\xff{half")
    fl2fast.resume(stopped, {"clients": 5, "partition": "dirichlet:1.0"}, warn=pytest.fail)
    (row,) = map(json.loads, (stopped / "timing.jsonl").read_text().splitlines())
    assert row["round"] == 4


@pytest.mark.parametrize(
    "text",
    [
        '["seeds", "diverged"]',
        '{"seeds": 1, "diverged": []}',
        '{"seeds": [{}], "diverged": []}',
        '{"seeds": [{"seed": 0, "test_accuracy_last": null}], "diverged": []}',
        "{",
    ],
)
def test_a_summary_that_is_none_is_made_again(stopped: Path, text: str) -> None:
    summary = fl2fast.resume(stopped)
    (stopped / "summary.json").write_text(text)
    assert fl2fast.resume(stopped)["seeds"] == summary["seeds"]


def test_one_process_at_a_time(stopped: Path) -> None:
    def intrude(report: RoundReport) -> None:
        with pytest.raises(UsageError, match="another process is at"):
            fl2fast.resume(stopped)
        raise Interrupted

    with pytest.raises(Interrupted):
        fl2fast.resume(stopped, on_round=intrude)
    fl2fast.resume(stopped)


def test_another_machine_is_told(stopped: Path) -> None:
    checkpoint = newest_whole(stopped, pytest.fail)
    assert checkpoint is not None
    manifest = checkpoint.manifest
    elsewhere = manifest._replace(machine=manifest.machine | {"threads": 64})
    (stopped / FOLDER / manifest.name).write_bytes(encode(elsewhere))
    warned: list[str] = []
    fl2fast.resume(stopped, warn=warned.append)
    assert any("threads not the same" in sentence for sentence in warned)


def test_a_manifest_survives_its_own_bytes(stopped: Path) -> None:
    (path, *_) = sorted((stopped / FOLDER).glob("round-*.json"))
    manifest = decode(path.read_bytes(), path.name)
    assert encode(manifest) == path.read_bytes()
    assert decode(encode(manifest), path.name) == manifest


@pytest.mark.cuda
def test_a_run_on_cuda_is_resumed_there_and_on_the_cpu(
    cuda: torch.device, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The writer copies from the device on a stream of its own, while the next round computes."""
    made = fl2fast.experiment(**settings | {"device": str(cuda), "dtype": "float64"})
    whole: list[RoundReport] = []
    fl2fast.train(made, tmp_path / "whole", on_round=whole.append)
    for device in ("cuda", "cpu"):
        run = tmp_path / device
        with pytest.raises(Interrupted):
            fl2fast.train(made, run, on_round=Stopper(2))
        reports: list[RoundReport] = []
        fl2fast.resume(run, {"device": device}, on_round=reports.append)
        ends = (reports[-1].state.params_SP.cpu(), whole[-1].state.params_SP.cpu())
        torch.testing.assert_close(*ends, rtol=1e-8, atol=1e-8)
