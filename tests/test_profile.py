"""Counted costs against hand counts, and what `fl2fast profile` writes and refuses."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fl2fast.methods import flfl
from fl2fast.methods.method import Sureness
from fl2fast.models import find_model
from fl2fast.models.lowering import LOWERINGS
from fl2fast.models.network import Network
from fl2fast.profile import Meter, meter_step
from tests.test_cli import call

# FLOPs of the cnn on an image of 32 x 32: two for every multiply-add.
CONVS = [2 * side**2 * 9 * c * d for side, c, d in ((16, 3, 16), (8, 16, 32), (4, 32, 64))]
HEAD = 2 * 1024 * 10
FORWARD = sum(CONVS) + HEAD
BACKWARD = 2 * FORWARD - CONVS[0]  # to weights and inputs; nobody asks for the image's gradient


def meter_of(
    lowering: str, lanes: int, sureness: Sureness = "some", batch: int = 32, model: str = "cnn"
) -> Meter:
    client = flfl().client
    assert client is not None
    network = Network.of(find_model(model)(10), lowering, torch.zeros((), dtype=torch.float64))
    return meter_step(network, client, lanes, batch, (3, 32, 32), sureness)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_step_is_counted_as_by_hand(lowering: str) -> None:
    """Also where lanes are groups of one convolution."""
    rows = 3 * 8
    passes = {"none": (1, 1), "some": (2, 3), "all": (2, 2)}
    for sureness, (forwards, backwards) in passes.items():
        meter = meter_of(lowering, 3, sureness, batch=8)  # type: ignore[arg-type]
        assert meter.flops == rows * (forwards * FORWARD + backwards * BACKWARD)


def test_a_meter_counts_real_tensors_too() -> None:
    network = Network.of(find_model("cnn")(10), "grouped", torch.zeros(()))
    params_LP, x_LBCHW = torch.zeros(2, network.layout.width), torch.zeros(2, 4, 3, 32, 32)
    with Meter() as meter:
        network.forward(params_LP, x_LBCHW, None)
    assert meter.flops == 2 * 4 * FORWARD


@pytest.mark.parametrize("model", ["cnn", "wrn-10-1"])
def test_stacked_steps_launch_eight_times_fewer_ops(model: str) -> None:
    """One client at a time against ten in one step; views launch nothing."""
    alone, stacked = meter_of("loop", 1, model=model), meter_of("grouped", 10, model=model)
    assert 10 * len(alone.ops) / len(stacked.ops) >= 8


TINY = [
    *("--labels", "20", "--clients", "4", "--cohort", "2", "--rounds", "2", "--epochs", "1"),
    *("--pretrain", "1", "--augment", "torch", "--steps", "2"),
]


@pytest.mark.parametrize(("lowering", "threads"), [("grouped", 1), ("cores", 2)])
def test_a_profile_is_written(lowering: str, threads: int, tmp_path: Path, capsys: Any) -> None:
    config, out = tmp_path / "sizes.toml", tmp_path / "profile"
    config.write_text("train_size = 300\ntest_size = 50\n")
    torch.set_num_threads(threads)
    try:
        flags = ("--lowering", lowering, "--config", config, "--out", out)
        assert call("profile", *TINY, *flags) == 0
    finally:
        torch.set_num_threads(1)
    assert {path.name for path in out.iterdir()} == {"profile.json", "trace.json.gz"}
    found = json.loads((out / "profile.json").read_text())
    assert found["client_steps"] == sum(found["steps_by_sureness"].values())
    assert found["flops_per_client_step"]["some"] == 32 * (2 * FORWARD + 3 * BACKWARD)
    assert 0 < found["percent_of_matmul"] < 100
    assert {"pseudo_label", "local_training", "fine_tune"} < set(found["round_seconds"])
    with gzip.open(out / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    convolutions = [event["tid"] for event in events if event["name"] == "aten::convolution"]
    assert len(set(convolutions)) == threads
    assert "GFLOP/s" in capsys.readouterr().out


BAD = {
    "steps": (["--steps", "0"], "steps is 0"),
    "method": (["--method", "supervised"], "supervised"),
    "model": (["--model", "nope"], "nope"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    flags, words = BAD[case]
    monkeypatch.chdir(tmp_path)
    assert call("profile", *flags, "--out", "run") == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []
