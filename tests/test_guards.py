"""Trouble in a round: numbers that are none, memory that is short, a model that gives up."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resume import TINY, Stopper
from torch import Tensor

import fl2fast
from fl2fast.data.inputs import Images
from fl2fast.data.views import ViewDraws
from fl2fast.engine.world import ClientStore, Divergence, Federation, Finite, World
from fl2fast.errors import UsageError
from fl2fast.guards import COLLAPSED_TESTS, Diverged, collapsed_since, with_room
from fl2fast.interrupt import Interrupted
from fl2fast.methods.flfl import flfl
from fl2fast.models.network import Network
from fl2fast.selfcheck import contents
from fl2fast.simulate import RoundReport

simulate = sys.modules["fl2fast.simulate"]  # the package has a function of that name

LOWERINGS = ("loop", "vmap", "grouped", "cores")


@pytest.fixture
def settings(small_digits: str) -> dict[str, Any]:
    return TINY | {"dataset": small_digits, "dtype": "float64"}


def make_world(settings: dict[str, Any], **changes: Any) -> World:
    return fl2fast.build_world(fl2fast.experiment(**settings | changes))


@dataclass(frozen=True)
class Spoilt(Images):
    """Some rows are NaN wherever a client trains on them; statistics and labels see them clean."""

    bad: Tensor | None = None  # bool [D]

    def views(self, row_N: Tensor, draws: ViewDraws, view: str) -> Tensor:
        made = super().views(row_N, draws, view)
        assert self.bad is not None
        spoilt = self.bad[row_N] & (view == "strong")
        return torch.where(spoilt[:, None, None, None], torch.nan, made)


def spoil(world: World, seed: int, client: int) -> World:
    bad = torch.zeros(len(world.truth), dtype=torch.bool)
    bad[torch.from_numpy(world.splits[seed].clients[client])] = True
    assert isinstance(world.inputs, Images)
    return replace(world, inputs=Spoilt(**vars(world.inputs), bad=bad))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_client_with_nan_images_is_named_before_it_reaches_the_global_model(
    settings: dict[str, Any], lowering: str
) -> None:
    world = make_world(settings, lowering=lowering, rounds=8, sure=0.2)
    reports: list[RoundReport] = []
    with pytest.raises(Diverged, match=r"seed 0 diverged in round \d+: .* of client 3 are not"):
        reports += fl2fast.simulate(spoil(world, 0, 3))
    plain = fl2fast.simulate(world)
    for report, other in zip(reports, plain, strict=False):
        torch.testing.assert_close(report.state.params_SP, other.state.params_SP)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_one_seed_is_frozen_while_the_others_go_on(settings: dict[str, Any], lowering: str) -> None:
    """A client of seed 1 has a broken momentum; seeds 0 and 2 end where they would without it."""
    world = make_world(settings, lowering=lowering, rounds=6, seeds=3)
    plain = list(fl2fast.simulate(world))
    start = plain[1].federation
    (key, *_) = (key for key in start.store.rows if key[0] == 1)
    broken = start.store.put([key], torch.full_like(start.state.params_SP[:1], torch.inf))
    ends = list(fl2fast.simulate(world, start._replace(store=broken)))
    last = ends[-1].federation
    (found,) = last.diverged
    assert found.seed == 1
    assert found.where == f"weights, momentum or vote of client {key[1]} are not finite"
    good = plain[found.round - 2].state
    torch.testing.assert_close(last.state.params_SP[1], good.params_SP[1])
    torch.testing.assert_close(last.state.stats_S[1], good.stats_S[1])
    assert Finite.of(last.state, None).params_S.all()
    for s in (0, 2):
        torch.testing.assert_close(
            last.state.params_SP[s], plain[-1].state.params_SP[s], rtol=1e-9, atol=1e-12
        )
    assert [row["seed"] for row in ends[-1].metrics] == [0, 2]
    assert [row["seed"] for row in ends[-1].diagnostics] == [0, 2]
    events = [(event.round, event.kind) for report in ends for event in report.events]
    assert events == [(found.round, "diverged")]


def test_a_frozen_seed_costs_no_steps(settings: dict[str, Any]) -> None:
    world = make_world(settings, rounds=2, seeds=2)
    start = next(fl2fast.simulate(world)).federation
    frozen = start._replace(diverged=(Divergence(1, 1, "told so"),))
    (whole,), (half,) = (list(fl2fast.simulate(world, f)) for f in (start, frozen))
    assert 0 < half.num_trained < whole.num_trained


def test_statistics_and_tests_are_guarded_too(settings: dict[str, Any]) -> None:
    """Weights so large that a forward overflows, though they are finite."""
    world = make_world(settings, rounds=2)
    start = next(fl2fast.simulate(world)).federation
    state = start.state._replace(params_SP=start.state.params_SP * 1e200)
    with pytest.raises(Diverged, match=r"seed 0 diverged in round 2"):
        list(fl2fast.simulate(world, start._replace(state=state)))


def test_a_seed_that_diverged_is_in_the_summary_and_stays_frozen_when_resumed(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fl2fast.experiment(**settings | {"seeds": 2, "rounds": 5})
    take = ClientStore.take

    def broken(store: ClientStore, keys: list[tuple[int, int]], like_P: Tensor) -> Tensor:
        bad_L1 = torch.tensor([seed == 1 and (seed, c) in store.rows for seed, c in keys])[:, None]
        return torch.where(bad_L1, torch.nan, take(store, keys, like_P))

    monkeypatch.setattr(ClientStore, "take", broken)
    warned: list[str] = []
    whole, run = tmp_path / "whole", tmp_path / "run"
    summary = fl2fast.train(made, whole, warn=warned.append)
    (found,) = summary["diverged"]
    assert found["seed"] == 1
    assert [seed["seed"] for seed in summary["seeds"]] == [0]
    assert "seed 1 diverged in round" in warned[0]
    (event,) = (json.loads(line) for line in (whole / "events.jsonl").read_text().splitlines())
    assert (event["kind"], event["round"]) == ("diverged", found["round"])
    with pytest.raises(Interrupted):
        fl2fast.train(made, run, on_round=Stopper(4))
    monkeypatch.setattr(ClientStore, "take", take)
    assert fl2fast.resume(run)["diverged"] == summary["diverged"]
    assert contents(run) == contents(whole)


class Short:
    """Memory that holds only so many lanes: what the method asks for raises, as CUDA would."""

    def __init__(self, lanes: int, error: type[Exception], said: str) -> None:
        self.lanes, self.error, self.said = lanes, error, said
        self.grads = flfl().client.grads  # type: ignore[union-attr]

    def __call__(self, net: Network, params_LP: Tensor, batch: Any) -> Tensor:
        if len(params_LP) > self.lanes:
            raise self.error(self.said)
        return self.grads(net, params_LP, batch)


def short_of_memory(world: World, lanes: int, error: type[Exception], said: str) -> World:
    client = world.method.client
    assert client is not None
    short = client._replace(grads=Short(lanes, error, said))
    return replace(world, method=world.method._replace(client=short))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError, "CUDA out of memory."),
        (RuntimeError, "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_out_of_memory_halves_the_lanes_and_starts_the_round_again(
    settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    world = make_world(settings, seeds=2, rounds=3)
    plain = list(fl2fast.simulate(world))
    reports = list(fl2fast.simulate(short_of_memory(world, 1, error, said)))
    assert [report.world.experiment.chunk for report in reports] == [1, 1, 1]
    events = [event.says for event in reports[0].events]
    assert events == [
        "out of memory with 4 lanes at once: round 1 again with 2",
        "out of memory with 2 lanes at once: round 1 again with 1",
    ]
    for ours, theirs in zip(reports, plain, strict=True):
        torch.testing.assert_close(
            ours.state.params_SP, theirs.state.params_SP, rtol=1e-9, atol=1e-12
        )
        for key, row in theirs.federation.store.rows.items():
            torch.testing.assert_close(ours.federation.store.rows[key], row, rtol=1e-9, atol=1e-12)


def test_one_lane_that_does_not_fit_is_one_sentence(settings: dict[str, Any]) -> None:
    world = make_world(settings)
    short = short_of_memory(world, 0, torch.OutOfMemoryError, "CUDA out of memory.")
    with pytest.raises(UsageError, match=r"out of memory in round 1 with one learner at a time"):
        list(fl2fast.simulate(short))


def test_other_errors_are_not_taken_for_memory(settings: dict[str, Any]) -> None:
    def fail(_: World) -> None:
        raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError, match="a mistake"):
        with_room(make_world(settings), 1, fail, pytest.fail)


def test_the_chunk_that_had_room_is_resumed_with(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, build = tmp_path / "run", fl2fast.train.__globals__["build_world"]

    def tight(*args: Any) -> World:
        return short_of_memory(build(*args), 1, torch.OutOfMemoryError, "CUDA out of memory.")

    monkeypatch.setitem(fl2fast.train.__globals__, "build_world", tight)
    with pytest.raises(Interrupted):
        fl2fast.train(fl2fast.experiment(**settings), run, on_round=Stopper(2))
    reports: list[RoundReport] = []
    fl2fast.resume(run, on_round=reports.append)
    assert not any(report.events for report in reports)


def test_one_class_for_long_is_a_collapse(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's last layer is set to name class 4, whatever it sees."""
    run_round = simulate.run_round

    def stubborn(world: World, before: Federation, *args: Any, **named: Any) -> Any:
        outcome = run_round(world, before, *args, **named)
        if before.round < 2:
            return outcome
        params_SP = outcome.federation.state.params_SP.clone()
        params_SP[:, -10:] = torch.eye(10, dtype=params_SP.dtype)[4] * 1e3  # the biases
        state = outcome.federation.state._replace(params_SP=params_SP)
        return outcome._replace(federation=outcome.federation._replace(state=state))

    monkeypatch.setattr(simulate, "run_round", stubborn)
    warned: list[str] = []
    made = fl2fast.experiment(**settings | {"rounds": 8})
    summary = fl2fast.train(made, tmp_path / "run", warn=warned.append)
    said = "seed 0 has collapsed: since round 3 its tests name one class only"
    assert warned == [said]
    assert summary["collapsed"] == [{"seed": 0, "since_round": 3}]


def test_a_collapse_takes_several_tests() -> None:
    alone = [(round, 1) for round in range(2, 2 + COLLAPSED_TESTS)]
    assert collapsed_since(alone[:-1]) is None
    assert collapsed_since([(1, 7), *alone]) == 2
    assert collapsed_since([*alone, (90, 2)]) is None
