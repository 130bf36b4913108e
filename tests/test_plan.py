"""Waves: every lane's own sequence, in order, whatever else is stacked beside it."""

import numpy as np
import pytest

from fl2fast.data.plan import make_waves, shuffled_batches

DRAWS = np.random.Generator(np.random.Philox(2))
KEEP = np.arange(70) < np.array([[70], [33], [32], [5], [0], [64]])
SURE = KEEP & (DRAWS.random(KEEP.shape) < np.array([[0.5], [1], [0], [0.5], [1], [0.1]]))
SEEDS, CLIENTS = np.array([0, 0, 0, 1, 1, 1]), np.array([3, 5, 8, 3, 4, 9])


def steps_of(keep: np.ndarray, seeds: np.ndarray, clients: np.ndarray, epochs: int = 2):
    return shuffled_batches(
        keep, seeds, clients, purpose="client shuffle", round=4, epochs=epochs, batch_size=16
    )


@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_waves_keep_every_lanes_order(chunk: int) -> None:
    steps = steps_of(KEEP, SEEDS, CLIENTS)
    seen: list[list[np.ndarray]] = [[] for _ in steps]
    for wave in make_waves(steps, SURE, batch_size=16, chunk=chunk):
        assert len(np.unique(wave.lane_G)) == len(wave.lane_G) <= (chunk or len(steps))
        for g, lane in enumerate(wave.lane_G):
            live = slice(None) if wave.row_GB is None else wave.row_GB[g]
            own = wave.position_GB[g][live]
            seen[lane].append(own)
            sure = SURE[lane, own]
            assert wave.sureness == ("all" if sure.all() else "some" if sure.any() else "none")
            assert wave.epoch_G[g] == steps[lane][len(seen[lane]) - 1].epoch
    for own, planned in zip(seen, steps, strict=True):
        for actual, batch in zip(own, planned, strict=True):
            assert np.array_equal(actual, batch.position_B)


def test_full_waves_and_single_lanes_need_no_mask() -> None:
    steps = steps_of(KEEP, SEEDS, CLIENTS)
    for wave in make_waves(steps, SURE, batch_size=16):
        assert wave.row_GB is None or wave.position_GB.shape[1] < 16
    assert all(w.row_GB is None for w in make_waves(steps, SURE, batch_size=16, chunk=1))


def test_an_epoch_visits_every_kept_row_once_in_a_fresh_order() -> None:
    steps = steps_of(KEEP, SEEDS, CLIENTS)
    for lane, own in enumerate(steps):
        for epoch in range(2):
            parts = [batch.position_B for batch in own if batch.epoch == epoch]
            rows = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
            assert np.array_equal(np.sort(rows), np.flatnonzero(KEEP[lane]))
            assert all(len(part) == 16 for part in parts[:-1])
    first, second = (
        np.concatenate([b.position_B for b in steps[0] if b.epoch == e]) for e in (0, 1)
    )
    assert not np.array_equal(first, second)


def test_a_plan_does_not_depend_on_its_neighbours() -> None:
    alone = steps_of(KEEP[1:2, :40], SEEDS[1:2], CLIENTS[1:2])[0]
    beside = steps_of(KEEP, SEEDS, CLIENTS)[1]
    for a, b in zip(alone, beside, strict=True):
        assert np.array_equal(a.position_B, b.position_B)


def test_finished_lanes_cost_nothing() -> None:
    """The steps computed are the steps planned, not the longest lane's times the lanes."""
    steps = steps_of(KEEP, SEEDS, CLIENTS)
    waves = make_waves(steps, SURE, batch_size=16)
    assert sum(len(w.lane_G) for w in waves) == sum(map(len, steps))
