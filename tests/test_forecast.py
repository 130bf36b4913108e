"""Counts against hand counts and against reality, and how `fl2fast plan` refuses."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fl2fast
from fl2fast.engine.auto import make_step
from fl2fast.engine.cores import Cores
from fl2fast.errors import UsageError
from fl2fast.forecast import count_flops, forecast, largest_chunk, make_calls, make_works
from fl2fast.methods import flfl
from fl2fast.models import find_model
from fl2fast.models.network import Network
from fl2fast.outline import make_outline
from fl2fast.profile import Op, meter_step
from fl2fast.roofline import EFFICIENCY, GPUS, LAUNCH, seconds_on
from tests.test_cli import call
from tests.test_profile import BACKWARD, FORWARD

SHAPE = (3, 32, 32)
BASE = {"labels": 20, "clients": 4, "cohort": 2, "rounds": 5, "epochs": 2, "pretrain": 3}
BASE |= {"train_size": 420, "test_size": 50, "lowering": "grouped"}


def flops_of(**changes: Any) -> dict[str, int]:
    outline = make_outline(fl2fast.experiment(**BASE | changes), here=False)
    return count_flops(make_works(outline), make_calls(outline, "some"))


def test_phases_are_counted_as_by_hand() -> None:
    client_rows = 2 * 100  # 400 unlabelled images over four clients, two of which train
    assert flops_of() == {
        "pretrain": 20 * 2 * (FORWARD + BACKWARD),
        "pseudo_label": client_rows * FORWARD,
        "local_training": 2 * client_rows * (2 * FORWARD + 3 * BACKWARD),
        "fine_tune": 20 * 2 * (FORWARD + BACKWARD),
        "recalibrate": 420 * FORWARD,
        "evaluate": 50 * FORWARD,
    }


def test_counts_scale_with_lanes_epochs_and_images() -> None:
    base = flops_of()
    assert flops_of(seeds=3) == {name: 3 * value for name, value in base.items()}
    assert flops_of(cohort=4)["local_training"] == 2 * base["local_training"]
    assert flops_of(epochs=6)["local_training"] == 3 * base["local_training"]
    assert flops_of(train_size=820)["pseudo_label"] == 2 * base["pseudo_label"]
    assert flops_of(test_size=150)["evaluate"] == 3 * base["evaluate"]
    assert "local_training" not in flops_of(method="supervised")
    assert "pseudo_label" not in flops_of(method="fedavg")


def allocated_at_most(cores: Cores, part: Any, lanes: int, batch: int) -> int:
    """What the allocator itself says, which knows nothing of our meter."""
    step = make_step(cores, part, lanes, batch, SHAPE)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as traced:
        step()
    assert traced.profiler is not None
    assert traced.profiler.kineto_results is not None
    events = [e for e in traced.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


@pytest.mark.parametrize(
    ("model", "lowering", "lanes"),
    [("cnn", "grouped", 6), ("cnn", "cores", 1), ("wrn-10-1", "grouped", 3)],
)
def test_memory_of_a_step_is_what_it_takes(model: str, lowering: str, lanes: int) -> None:
    client = flfl().client
    assert client is not None
    network = Network.of(find_model(model)(10), lowering, torch.zeros(()))
    predicted = meter_step(network, client, lanes, 16, SHAPE).peak_bytes
    taken = allocated_at_most(Cores(network, 1), client, lanes, 16)
    assert predicted == pytest.approx(taken, rel=0.25)


def test_the_largest_chunk_is_what_fits() -> None:
    memory = {"data": 10, "global models": 2, "client momenta": 0, "client memories": 3}
    memory |= {"cohort": 5, "views": 10}
    memory |= {"step of one lane": 7, "step": 70, "pass": 20}
    assert largest_chunk(memory, lanes=10, available=1000) == 10
    assert largest_chunk(memory, lanes=10, available=20 + 10 + 3 * 7 + 6) == 3
    assert largest_chunk(memory, lanes=10, available=30) == 0
    assert largest_chunk(memory | {"pass": 100}, lanes=10, available=100) == 0


def test_a_roofline_has_three_sides() -> None:
    gpu = GPUS["A100"]
    arithmetic, traffic = Op(10**13, 1), Op(1, 10**12)
    assert seconds_on(gpu, "fp32", [arithmetic]) == pytest.approx(10 / 19.5 / EFFICIENCY)
    assert seconds_on(gpu, "fp32", [traffic]) == pytest.approx(1000 / 2039 / EFFICIENCY)
    assert seconds_on(gpu, "bf16", [traffic]) == pytest.approx(500 / 2039 / EFFICIENCY)
    assert seconds_on(gpu, "tf32", [Op(0, 0)] * 3) == pytest.approx(3 * LAUNCH)


TINY = [
    *("--labels", "20", "--clients", "4", "--cohort", "2", "--rounds", "2", "--epochs", "1"),
    *("--lowering", "grouped", "--augment", "torch"),
]


def test_json_is_whole(capsys: Any, tmp_path: Path) -> None:
    config = tmp_path / "sizes.toml"
    config.write_text("train_size = 300\ntest_size = 50\n")
    flags = ("--json", "--gpu", "T4", "--gpu", "H100", "--memory", "2")
    assert call("plan", *TINY, "--config", config, *flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["roofline"]) == ["T4", "H100"]
    assert list(found["roofline"]["T4"]) == ["fp32"]
    assert found["memory"]["available"] == 2 * 2**30
    assert found["largest_chunk"] == 2
    phases = [name for name in found["flops"] if name not in ("round", "run")]
    assert set(phases) < set(found["here"])
    once = sum(found["here"][name] for name in phases if name != "pretrain")
    assert found["here"]["round"] == pytest.approx(once)
    assert all(math.isfinite(found["here"][name]) for name in ("round", "run"))


def test_the_table_needs_no_data(capsys: Any) -> None:
    """Nor does it time anything: svhn is absent here."""
    flags = ("--dataset", "svhn", "--model", "cnn", "--no-here")
    assert call("plan", *flags) == 0
    printed = capsys.readouterr().out
    assert "never measured" in printed
    assert all(name in printed for name in ("local_training", "largest --chunk", *GPUS))


BAD = {
    "gpu": (["--gpu", "Voodoo2"], "Voodoo2"),
    "memory": (["--memory", "-1"], "-1"),
    "memory nan": (["--memory", "nan"], "nan"),
    "assumption": (["--assume", "most"], "most"),
    "labels": (["--labels", "20000"], "20 clients"),
    "experiment": (["--rounds", "0"], "rounds is 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case: str, capsys: Any) -> None:
    flags, words = BAD[case]
    assert call("plan", "--no-here", *flags) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_forecast_refuses_a_size_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="73257"):
        forecast(fl2fast.experiment(dataset="svhn", train_size=80_000), here=False)


def test_what_methods_keep_is_counted() -> None:
    def memory(method: str) -> dict[str, int]:
        settings = {"lowering": "grouped", "train_size": 600, "batch_size": 32}
        made = fl2fast.experiment(method=method, **settings)
        return forecast(made, here=False)["memory"]

    flfl, fedmatch, freematch = (memory(name) for name in ("flfl", "fedmatch", "freematch"))
    assert freematch["client momenta"] == freematch["client memories"] == 0
    assert flfl["client memories"] == 0 < fedmatch["client memories"]
    parts = ("data", "global models", "client momenta", "client memories", "cohort")
    assert fedmatch["peak"] > sum(fedmatch[part] for part in parts)
    assert memory("semifl")["views"] == 3 * flfl["views"]  # strong, weak, and a partner's
