"""The command as a user meets it: what it writes, and how it refuses."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from fl2fast import selfcheck
from fl2fast.cli.main import main
from fl2fast.cli.train import train_command
from fl2fast.demo import demo
from fl2fast.models import find_model

TINY = [
    *("--labels", "20", "--clients", "4", "--cohort", "2", "--rounds", "2", "--epochs", "1"),
    *("--pretrain", "1"),
]
SIZES = "train_size = 300\ntest_size = 50\n"


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.toml"
    path.write_text(SIZES)
    return path


def call(*args: str | Path) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    return int(stop.value.code or 0)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_train_writes_a_whole_run_folder(tmp_path: Path, sizes: Path, capsys) -> None:
    out = tmp_path / "run"
    assert call("train", *TINY, "--seeds", "2", "--seed", "3", "--config", sizes, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "round 2/2" in printed
    assert "images/s" in printed
    assert {p.name for p in out.iterdir()} == {
        *("config.json", "env.json", "partition.json", "metrics.jsonl", "timing.jsonl"),
        *("summary.json", "model.safetensors", "curves.png", "partition.png"),
        *("diagnostics.jsonl", "diagnostics.png", "confusion.json", "checkpoints"),
    }
    metrics = rows(out / "metrics.jsonl")
    assert [(row["round"], row["seed"]) for row in metrics] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert list(metrics[0]) == [
        *("round", "seed", "test_accuracy", "test_loss", "predicted_classes", "label_ratio"),
        *("pseudo_label_accuracy", "correct_ratio", "wrong_ratio", "cw_ratio", "tau_mean", "lr"),
    ]
    for row in metrics:
        assert row["correct_ratio"] + row["wrong_ratio"] == pytest.approx(row["label_ratio"])
        accuracy = 100 * row["correct_ratio"] / row["label_ratio"]
        assert row["pseudo_label_accuracy"] == pytest.approx(accuracy)
    summary = json.loads((out / "summary.json").read_text())
    assert [s["seed"] for s in summary["seeds"]] == [3, 4]
    last = [row["test_accuracy"] for row in metrics[2:]]
    assert [s["test_accuracy_last"] for s in summary["seeds"]] == last
    assert summary["mean"]["test_accuracy_last"] == pytest.approx(np.mean(last))
    assert summary["images_per_second"] > 0
    config = json.loads((out / "config.json").read_text())
    assert (config["train_size"], config["model"], config["server_epochs"]) == (300, "cnn", 1)
    timing = rows(out / "timing.jsonl")
    assert [row["round"] for row in timing] == [1, 2]
    assert {"local_training", "fine_tune", "recalibrate"} <= set(timing[1]["seconds"])
    parts = json.loads((out / "partition.json").read_text())["seeds"]
    assert [len(part["clients"]) for part in parts] == [4, 4]


def test_the_model_file_loads_into_the_plain_module(tmp_path: Path, sizes: Path) -> None:
    out = tmp_path / "run"
    assert call("train", *TINY, "--config", sizes, "--out", out) == 0
    find_model("cnn")(10).load_state_dict(load_file(out / "model.safetensors"), strict=True)


def test_equal_runs_give_equal_bytes(tmp_path: Path, sizes: Path) -> None:
    for name in ("a", "b"):
        assert call("train", *TINY, "--config", sizes, "--out", tmp_path / name) == 0
    for file in ("metrics.jsonl", "config.json", "partition.json", "model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_eval_every_tests_the_last_round(tmp_path: Path, sizes: Path) -> None:
    out = tmp_path / "run"
    flags = ("--rounds", "3", "--eval-every", "2", "--method", "supervised")
    assert call("train", *TINY, *flags, "--config", sizes, "--out", out) == 0
    accuracy = [row["test_accuracy"] for row in rows(out / "metrics.jsonl")]
    assert [value is None for value in accuracy] == [True, False, False]
    assert rows(out / "metrics.jsonl")[0]["tau_mean"] is None
    assert json.loads((out / "summary.json").read_text())["images_per_second"] is None


def dry_run(capsys, *flags: str | Path) -> dict[str, Any]:
    assert call("train", "--dry-run", *flags) == 0
    return json.loads(capsys.readouterr().out)


def test_precedence_of_flags_config_and_presets(tmp_path: Path, capsys) -> None:
    config = tmp_path / "c.toml"
    config.write_text('rounds = 7\nserver-epochs = 2\nmodel = "wrn-10-1"\nlr = 1\n')
    made = dry_run(capsys, "--config", config, "--rounds", "9", "--epochs", "3")
    assert (made["rounds"], made["model"], made["server_epochs"]) == (9, "wrn-10-1", 2)
    assert made["clients"] == 20
    assert dry_run(capsys, "--epochs", "4")["server_epochs"] == 4


def test_presets_follow_the_dataset(capsys) -> None:
    svhn = dry_run(capsys, "--dataset", "svhn", "--labels", "250")
    assert (svhn["clients"], svhn["rounds"], svhn["pretrain"]) == (100, 800, 16)
    assert svhn["mean"] == [0.438, 0.444, 0.473]
    hundred = dry_run(capsys, "--dataset", "cifar100", "--labels", "100")
    assert (hundred["model"], hundred["rho"], hundred["pretrain"]) == ("wrn-28-8", 1.0, 10)
    assert dry_run(capsys, "--dataset", "cifar10", "--preset", "quick")["model"] == "cnn"
    assert dry_run(capsys, "--preset", "paper")["model"] == "wrn-28-2"


def test_the_flags_are_these_and_no_others() -> None:
    """A setting that is not here belongs into --config."""
    names = (
        "dataset labels method option model partition clients cohort rounds epochs server-epochs "
    )
    names += "batch-size server-batch-size pretrain lr rho schedule seed seeds device dtype "
    names += "lowering compile precision augment chunk encoder eval-every "
    names += "data-dir out preset config resume dry-run"
    assert [option.opts[0] for option in train_command.params] == [f"--{n}" for n in names.split()]


BAD_FLAGS = {
    "dataset": (["--dataset", "nope"], "nope"),
    "published but absent": (["--dataset", "svhn", "--data-dir", "void"], "svhn"),
    "method": (["--method", "nope"], "nope"),
    "model": (["--model", "nope"], "nope"),
    "depth": (["--model", "wrn-27-2"], "6n+4"),
    "width": (["--model", "wrn-28-0"], "wrn-28-0"),
    "lowering": (["--lowering", "nope"], "nope"),
    "compile": (["--compile", "maybe"], "auto, on, off"),
    "compile cores": (["--compile", "on", "--lowering", "cores"], "--lowering cores"),
    "precision": (["--precision", "fp8"], "fp32, tf32, bf16"),
    "tf32 without a GPU": (["--precision", "tf32"], "tf32"),
    "augment": (["--augment", "nope"], "torch, dali"),
    "labels not divisible": (["--labels", "45"], "multiple of 10"),
    "more labels than images": (["--labels", "20010"], "20010"),
    "no labels": (["--labels", "0"], "labels is 0"),
    "cohort": (["--clients", "5", "--cohort", "6"], "cohort 6"),
    "negative rounds": (["--rounds", "-1"], "-1"),
    "alpha 0": (["--partition", "dirichlet:0"], "dirichlet:0"),
    "alpha negative": (["--partition", "dirichlet:-2"], "dirichlet:-2"),
    "alpha x": (["--partition", "dirichlet:x"], "dirichlet:x"),
    "lr nan": (["--lr", "nan"], "nan"),
    "rho": (["--rho", "-0.1"], "-0.1"),
    "batch size": (["--batch-size", "0"], "batch_size is 0"),
    "seeds": (["--seeds", "0"], "seeds is 0"),
    "seed": (["--seed", "-1"], "-1"),
    "absent device": (["--device", "cuda:99"], "cuda:99"),
    "unknown device": (["--device", "toaster"], "toaster"),
    "dtype": (["--dtype", "float16"], "float16"),
    "schedule": (["--schedule", "linear"], "linear"),
    "preset": (["--preset", "slow"], "slow"),
    "no integer": (["--rounds", "many"], "many"),
    "flag": (["--colour", "red"], "--colour"),
    "config": (["--config", "void.toml"], "void.toml"),
    "dirichlet without 10 each": (["--partition", "dirichlet:0.3", "--clients", "3000"], "10"),
    "folder without arrays": (["--dataset", "."], "train_images.npy"),
}


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    flags, words = BAD_FLAGS[case]
    monkeypatch.chdir(tmp_path)
    assert call("train", *flags, "--out", "run") == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "rounds = ",
        "colour = 1",
        'rounds = "3"',
        "rounds = 2.5",
        "flip = 1",
        "mean = 3",
        "mean = []",
        "std = [inf, inf, inf]",
        "mean = [0.5, 0.5]",
        'dataset = ["s"]',
        'constants = "mine"',
        'preset = ["quick"]',
        "out = 3",
    ],
)
def test_bad_config_is_refused(text: str, tmp_path: Path, capsys) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    assert call("train", "--dry-run", "--config", config) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_preset_in_the_file_yields_to_the_flag(tmp_path: Path, capsys) -> None:
    config = tmp_path / "c.toml"
    config.write_text('preset = "paper"\n')
    assert dry_run(capsys, "--config", config)["model"] == "wrn-28-2"
    assert dry_run(capsys, "--config", config, "--preset", "quick")["model"] == "cnn"


def test_a_diverged_run_exits_with_three(tmp_path: Path, sizes: Path, capsys) -> None:
    out = tmp_path / "run"
    assert call("train", *TINY, "--lr", "1e30", "--config", sizes, "--out", out) == 3
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("fl2fast: seed 0 diverged in round 0: the server's weights")
    assert (out / "metrics.jsonl").read_text() == ""
    assert not (out / "summary.json").exists()


def test_an_existing_folder_is_left_alone(tmp_path: Path, sizes: Path, capsys) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "thesis.txt").write_text("years of work")
    assert call("train", *TINY, "--config", sizes, "--out", kept) == 2
    assert "kept" in capsys.readouterr().err
    assert [p.name for p in kept.iterdir()] == ["thesis.txt"]


def test_data_show_draws_two_pictures(grey_folder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "pictures" / "grid.png"
    assert call("data", "show", grey_folder, "--out", out) == 2
    assert "pictures" in capsys.readouterr().err
    out.parent.mkdir()
    assert call("data", "show", grey_folder, "--out", out, "--count", "4") == 0
    for path in (out, out.with_name("grid-ops.png")):
        with Image.open(path) as picture:
            assert min(picture.size) > 200
    assert len(list(out.parent.iterdir())) == 2
    assert call("data", "show", grey_folder, "--out", tmp_path / "grid.txt") == 2
    assert call("data", "show", "nope") == 2


def test_data_list_says_what_is_here(tmp_path: Path, capsys) -> None:
    (tmp_path / "svhn").mkdir()
    assert call("data", "list", "--data-dir", tmp_path) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert f"in {tmp_path / 'svhn'}" in lines["svhn"]
    assert "170 MB" in lines["cifar10"]
    assert "streetdigits" in lines


def test_data_get_knows_its_names(tmp_path: Path, capsys) -> None:
    assert call("data", "get", "mnist", "--data-dir", tmp_path) == 2
    assert "fashion-mnist" in capsys.readouterr().err
    assert call("data", "get", "svhn", "--data-dir", tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_constants_follow_the_chosen_pipeline(tmp_path: Path, capsys) -> None:
    config = tmp_path / "c.toml"
    config.write_text('dataset = "svhn"\nconstants = "semifl"\n')
    ours, theirs = dry_run(capsys, "--dataset", "svhn"), dry_run(capsys, "--config", config)
    assert (ours["mean"], ours["flip"]) == ([0.438, 0.444, 0.473], True)
    assert (theirs["mean"], theirs["flip"]) == ([0.4377, 0.4438, 0.4728], False)
    config.write_text('dataset = "svhn"\nconstants = "semifl"\nflip = true\n')
    assert dry_run(capsys, "--config", config)["flip"] is True


def test_a_truncated_trace_is_refused(tmp_path: Path, capsys) -> None:
    path = tmp_path / "trace.npz"
    path.write_bytes(b"PK\x03\x04 and no more")
    assert call("verify", path) == 2
    assert "trace.npz" in capsys.readouterr().err


def test_the_demo_writes_its_three_lines(tmp_path: Path) -> None:
    tiny = {"train_size": 300, "test_size": 50, "rounds": 2, "epochs": 1, "pretrain": 1, "seeds": 2}
    summary = demo(tmp_path / "demo", lambda title: nullcontext(id), **tiny)
    assert [row["title"] for row in summary["rows"]] == ["labels only", "(FL)^2", "all labels"]
    for row in summary["rows"]:
        assert row["mean"] == pytest.approx(np.mean(row["test_accuracy"]))
    names = {"supervised", "flfl", "fedavg", "curves.png", "curves.svg", "summary.json"}
    assert {path.name for path in (tmp_path / "demo").iterdir()} == names


def test_python_dash_m_works() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fl2fast", "--version"], capture_output=True, text=True, check=True
    )
    assert "0.1.0" in done.stdout


SMALL = ("--labels", "20", "--clients", "4", "--cohort", "2", "--model", "cnn", "--seeds", "2")


def test_tune_times_once_and_a_run_takes_the_verdict(tmp_path: Path, capsys) -> None:
    config = tmp_path / "c.toml"
    config.write_text("train_size = 300\ntest_size = 40\npretrain = 1\n")
    assert call("tune", *SMALL, "--config", config) == 0
    said = capsys.readouterr().out.splitlines()
    chosen = dict(line.split(": ") for line in said if " auto: " not in line)
    verdicts = {line for line in said if "lowering auto: " in line}
    assert len(verdicts) == 2
    assert call("train", *SMALL, "--config", config, "--rounds", "1", "--out", tmp_path / "r") == 0
    assert verdicts <= set(capsys.readouterr().out.splitlines())
    resolved = json.loads((tmp_path / "r" / "config.json").read_text())
    for name in ("lowering", "server_lowering", "compile", "kernels"):
        assert resolved[name] == chosen[name.replace("_", " ")]


def test_bench_is_for_a_clone_and_knows_its_suites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, expected in ((["bench", "nope"], "step, round"), (["bench"], "clone")):
        assert call(*words) == 2
        captured = capsys.readouterr()
        assert expected in captured.err
        assert captured.err.count("\n") == 1


def test_selfcheck_proves_equality_and_sees_a_difference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("selfcheck", "--lowering", "cores", "--method", "semifl") == 0
    kept = [line for line in capsys.readouterr().out.splitlines() if "byte for byte" in line]
    assert len(kept) == 2
    assert call("selfcheck", "--lowering", "nope") == 2
    resume = selfcheck.resume

    def careless(run: Path) -> None:
        resume(run)
        path = run / "metrics.jsonl"
        path.write_text(path.read_text().replace("lr", "LR"))

    monkeypatch.setattr(selfcheck, "resume", careless)
    assert call("selfcheck", "--lowering", "grouped") == 1
    assert "a run killed and resumed: DIFFERS in metrics.jsonl\n" in capsys.readouterr().out


def test_a_terminal_shows_one_live_line(
    tmp_path: Path, sizes: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert call("train", *TINY, "--config", sizes, "--out", tmp_path / "run") == 0
    captured = capsys.readouterr()
    assert "round 2/2" in captured.err
    assert "round 1/2" not in captured.out
