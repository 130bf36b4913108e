"""Threads over independent streams: same results, own order, no core idle, errors come through."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fl2fast
from fl2fast.data import dali
from fl2fast.engine.cores import Cores, Stream
from fl2fast.models import find_model
from fl2fast.models.network import Network
from tests.test_federation import BASE, assert_same


@pytest.fixture
def three_threads() -> Iterator[None]:
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def cores(three_threads: None) -> Cores:
    return Cores(Network.of(find_model("cnn")(3), "cores", torch.zeros(())))


def test_every_stream_keeps_its_order_and_every_item_its_turn(cores: Cores) -> None:
    seen: dict[int, list[int]] = {stream: [] for stream in range(7)}
    threads, networks = set(), set()

    def step(network: Network, item: tuple[int, int]) -> None:
        time.sleep(0.001)
        threads.add(threading.get_ident())
        networks.add(id(network))
        assert torch.get_num_threads() == 1
        seen[item[0]].append(item[1])

    sizes = [3, 0, 9, 1, 12, 5, 5]
    cores.fold(step, [Stream(n, zip([s] * n, range(n), strict=True)) for s, n in enumerate(sizes)])
    assert [seen[s] for s in range(7)] == [list(range(n)) for n in sizes]
    assert len(threads) == len(networks) == 3
    assert torch.get_num_threads() == 3


def test_streams_end_together(cores: Cores) -> None:
    """Four equal streams on three cores: each core does a third of the steps, not a half."""
    num_steps: dict[int, int] = {}

    def step(network: Network, item: int) -> None:
        time.sleep(0.004)
        num_steps[id(network)] = num_steps.get(id(network), 0) + 1

    cores.fold(step, [Stream(15, iter(range(15))) for _ in range(4)])
    assert sum(num_steps.values()) == 60
    assert max(num_steps.values()) <= 25  # 30 if whole streams were dealt out


def test_few_streams_are_open_at_a_time(cores: Cores) -> None:
    opened: list[int] = []
    closed: list[int] = []

    def items(number: int) -> Iterator[int]:
        opened.append(number)
        assert len(opened) - len(closed) <= 5
        yield from range(4)
        closed.append(number)

    cores.fold(lambda network, item: time.sleep(0.001), [Stream(4, items(n)) for n in range(20)])
    assert sorted(opened) == sorted(closed) == list(range(20))


def test_map_keeps_the_order_of_its_items(cores: Cores) -> None:
    def late(network: Network, item: int) -> int:
        time.sleep(0.01 if item == 0 else 0)
        return item * item

    assert cores.map(late, range(8)) == [i * i for i in range(8)]
    assert cores.map(late, []) == []


def test_an_error_stops_the_others_and_comes_through(cores: Cores) -> None:
    done: list[int] = []

    def step(network: Network, item: int) -> None:
        if item == 3:
            raise ValueError("no such row")
        time.sleep(0.001)
        done.append(item)

    with pytest.raises(ValueError, match="no such row"):
        cores.fold(step, [Stream(1000, iter(range(1000))) for _ in range(3)])
    assert len(done) < 100
    assert torch.get_num_threads() == 3


def test_a_caller_without_gradients_has_workers_without(cores: Cores) -> None:
    with torch.no_grad():
        assert cores.map(lambda network, item: torch.is_grad_enabled(), range(3)) == [False] * 3
    assert cores.map(lambda network, item: torch.is_grad_enabled(), range(3)) == [True] * 3


@pytest.mark.parametrize("changes", [{}, {"seeds": 2, "seed": 4}, {"chunk": 2}])
@pytest.mark.usefixtures("no_unkeyed_draws", "three_threads")
def test_threads_change_no_result(small_digits: str, changes: dict[str, Any]) -> None:
    """Every phase runs on several threads here; the truth is one learner after another."""
    base = BASE | {"dataset": small_digits, "rounds": 2}
    expected, actual = (
        list(fl2fast.simulate(fl2fast.build_world(fl2fast.experiment(**base | own))))
        for own in ({"lowering": "loop", "chunk": 1}, {"lowering": "cores"} | changes)
    )
    assert_same(actual, expected, seed=BASE["seed"] - changes.get("seed", BASE["seed"]))


@pytest.mark.skipif(not dali.is_installed(), reason="NVIDIA DALI is not installed")
@pytest.mark.usefixtures("three_threads")
def test_threads_share_a_pipeline_of_dali(small_digits: str) -> None:
    base = BASE | {"dataset": small_digits, "rounds": 2, "lowering": "cores"}
    expected, actual = (
        list(fl2fast.simulate(fl2fast.build_world(fl2fast.experiment(**base, augment=name))))
        for name in ("torch", "dali")
    )
    assert_same(actual, expected)
