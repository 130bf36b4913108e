"""What holds for any input: splits, plans, masks, the optimiser, aggregation, draws and settings.

Shapes: L lanes, B rows, Y classes, P parameters, S seeds, K cohort, M rows of a client.
"""

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fl2fast import losses, rng
from fl2fast.cli.main import main
from fl2fast.data.partition import split_rows
from fl2fast.data.plan import LaneBatch, lane_counts, make_streams, make_waves, shuffled_batches
from fl2fast.data.plan import widths as wave_widths
from fl2fast.engine.server import aggregate, aggregation_weights
from fl2fast.errors import UsageError
from fl2fast.experiment import experiment, read_config, read_options
from fl2fast.optim import SGD

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, max_examples=60
)
settings.load_profile("repeatable")

SEEDS = st.integers(0, rng.MAX_SEED)
SIZES = st.integers(1, 9)


def tensor(seed: int, *shape: int) -> Tensor:
    """Anything, but the same for the same seed."""
    draws = np.random.Generator(np.random.Philox(seed))
    return torch.from_numpy(draws.standard_normal(shape))


# -- who holds what --------------------------------------------------------------------------------

PARTITIONS = st.one_of(
    st.just("iid"),
    st.floats(0.05, 50).map(lambda alpha: f"dirichlet:{alpha}"),
    st.integers(1, 4).map(lambda pieces: f"shards:{pieces}"),
)


@given(
    counts=st.lists(st.integers(4, 90), min_size=2, max_size=6),
    per_class=st.integers(1, 3),
    partition=PARTITIONS,
    clients=st.integers(1, 12),
    seed=SEEDS,
)
def test_a_split_deals_every_row_at_most_once(
    counts: list[int], per_class: int, partition: str, clients: int, seed: int
) -> None:
    labels = rng.generator(1, "probe").permutation(np.repeat(np.arange(len(counts)), counts))
    ask = (labels, len(counts), per_class * len(counts), partition, clients, seed)
    try:
        split = split_rows(*ask)
    except UsageError:
        assume(False)  # it cannot be dealt like this
        raise
    assert np.bincount(labels[split.labelled]).tolist() == [per_class] * len(counts)
    everybody = np.concatenate([split.labelled, split.unlabelled])
    assert np.array_equal(np.sort(everybody), np.arange(len(labels)))
    held = np.concatenate(split.clients)
    assert len(np.unique(held)) == len(held)
    assert np.isin(held, split.unlabelled).all()
    assert len(split.clients) == clients
    sizes, left = [len(rows) for rows in split.clients], len(split.unlabelled) - len(held)
    if partition == "iid":
        assert len(set(sizes)) == 1
        assert left < clients
    else:
        assert left == 0
        pieces = int(partition[7:]) if partition.startswith("shards") else len(counts)
        assert all(len(np.unique(labels[rows])) <= pieces for rows in split.clients)
        assert min(sizes) >= (pieces if partition.startswith("shards") else 10)
    for own, again in zip(split.clients, split_rows(*ask).clients, strict=True):
        assert np.array_equal(own, again)


# -- who steps when --------------------------------------------------------------------------------


@st.composite
def plans(draw: Callable[..., Any]) -> tuple[list[list[LaneBatch]], np.ndarray, np.ndarray, int]:
    """The steps of up to seven lanes, their kept and sure rows, and the size of a batch."""
    lanes, rows, size = draw(st.integers(1, 7)), draw(st.integers(1, 40)), draw(st.integers(1, 12))
    shares = draw(st.tuples(*[st.sampled_from((0.0, 0.3, 0.8, 1.0))] * 2))
    random = tensor(draw(SEEDS), 2, lanes, rows).numpy()
    keep, sure = (norm_share(random[i], shares[i]) for i in (0, 1))
    steps = shuffled_batches(
        keep,
        np.full(lanes, draw(SEEDS)),
        np.arange(lanes),
        purpose="client shuffle",
        round=draw(st.integers(1, 1000)),
        epochs=draw(st.integers(1, 3)),
        batch_size=size,
    )
    return steps, keep, keep & sure, size


def norm_share(normal: np.ndarray, share: float) -> np.ndarray:
    """About this share of the entries."""
    return normal < {0.0: -np.inf, 0.3: -0.5, 0.8: 0.8, 1.0: np.inf}[share]


@given(plan=plans())
def test_an_epoch_has_every_kept_row_once(plan: Any) -> None:
    steps, keep_LM, _, size = plan
    for lane, own in enumerate(steps):
        kept = np.flatnonzero(keep_LM[lane])
        epochs = {batch.epoch for batch in own}
        assert [batch.epoch for batch in own] == sorted(batch.epoch for batch in own)
        for epoch in epochs:
            batches = [batch.position_B for batch in own if batch.epoch == epoch]
            assert np.array_equal(np.sort(np.concatenate(batches)), kept)
            assert all(len(batch) == size for batch in batches[:-1])
            assert len(batches) == -(-len(kept) // size)


@given(plan=plans(), chunk=st.integers(0, 9), steady=st.booleans())
def test_waves_are_the_plan_in_every_lanes_order(plan: Any, chunk: int, steady: bool) -> None:
    steps, _, sure_LM, size = plan
    cap = min(chunk or len(steps), len(steps))
    seen: list[list[np.ndarray]] = [[] for _ in steps]
    for wave in make_waves(steps, sure_LM, batch_size=size, chunk=chunk, steady=steady):
        width = wave.position_GB.shape[1]
        assert len(wave.lane_G) <= cap
        assert not steady or (len(wave.lane_G) in lane_counts(cap) and width in wave_widths(size))
        lanes, first = np.unique(wave.lane_G, return_index=True)
        assert steady or len(lanes) == len(wave.lane_G)
        for lane, g in zip(lanes, first, strict=True):
            live = np.ones(width, bool) if wave.row_GB is None else wave.row_GB[g]
            own = wave.position_GB[g][live]
            assert (wave.position_GB[g][~live] == own[0]).all()
            assert wave.epoch_G[g] == steps[lane][len(seen[lane])].epoch
            sure = sure_LM[lane, own]
            assert wave.sureness == ("all" if sure.all() else "some" if sure.any() else "none")
            seen[lane].append(own)
        for g, lane in enumerate(wave.lane_G):  # whoever fills a wave up does the same again
            assert np.array_equal(wave.position_GB[g], wave.position_GB[first[lanes == lane][0]])
    assert_same_rows(seen, steps)


@given(plan=plans())
def test_a_lane_alone_has_the_same_steps(plan: Any) -> None:
    steps, _, sure_LM, size = plan
    seen: list[list[np.ndarray]] = [[] for _ in steps]
    for stream in make_streams(steps, sure_LM, batch_size=size, alone=True):
        for wave in stream:
            (lane,) = wave.lane_G
            assert wave.row_GB is None
            seen[lane].append(wave.position_GB[0])
    assert_same_rows(seen, steps)


def assert_same_rows(seen: list[list[np.ndarray]], steps: list[list[LaneBatch]]) -> None:
    for own, planned in zip(seen, steps, strict=True):
        assert len(own) == len(planned)
        for rows, batch in zip(own, planned, strict=True):
            assert np.array_equal(rows, batch.position_B)


# -- a mask is a subset ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["cross_entropy_cotangent", "divergence_cotangent", "reverse_divergence_cotangent"],
)
@given(seed=SEEDS, rows=st.integers(1, 9), classes=st.integers(2, 6), scale=st.floats(0.1, 30))
def test_a_masked_cotangent_is_that_of_the_subset(
    name: str, seed: int, rows: int, classes: int, scale: float
) -> None:
    cotangent = getattr(losses, name)
    logits, moved = scale * tensor(seed, 2, 3, rows, classes)
    y_LB = tensor(seed + 1, 3, rows).abs().mul(7).long() % classes
    other = y_LB if name.startswith("cross") else moved
    rows_LB = tensor(seed + 2, 3, rows) > 0
    rows_LB[0] = False  # a lane without a row
    masked = cotangent(logits, other, rows_LB, rows_LB.sum(-1))
    assert (masked[~rows_LB] == 0).all()
    for lane, own in enumerate(rows_LB):
        if own.any():
            whole = torch.ones(1, int(own.sum()), dtype=torch.bool)
            subset = (x[lane, own][None] for x in (logits, other))
            alone = cotangent(*subset, whole, whole.sum(-1))
            torch.testing.assert_close(masked[lane, own], alone[0], rtol=1e-12, atol=1e-14)


# -- optimiser and aggregation ---------------------------------------------------------------------


@given(
    seed=SEEDS,
    lanes=st.integers(1, 4),
    num=SIZES,
    momentum=st.sampled_from((0.0, 0.5, 0.9)),
    nesterov=st.booleans(),
    weight_decay=st.sampled_from((0.0, 5e-4, 0.1)),
    clip=st.sampled_from((0.0, 0.1, 1.0, 1e6)),
    lr=st.floats(1e-4, 1.0),
)
def test_stacked_sgd_is_torchs_for_every_lane(
    seed: int,
    lanes: int,
    num: int,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    clip: float,
    lr: float,
) -> None:
    assume(momentum or not nesterov)
    start_LP, grads = tensor(seed, lanes, num), tensor(seed + 1, 3, lanes, num) * 3
    params_LP, buffer_LP = start_LP, torch.zeros_like(start_LP)
    sgd = SGD(momentum, nesterov, weight_decay, clip)
    for grad_LP in grads:
        params_LP, buffer_LP = sgd.step(params_LP, buffer_LP, grad_LP, lr)
    for lane in range(lanes):
        own = torch.nn.Parameter(start_LP[lane].clone())
        theirs = torch.optim.SGD(
            [own], lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
        )
        for grad_LP in grads:
            own.grad = grad_LP[lane].clone()
            if clip:
                torch.nn.utils.clip_grad_norm_([own], clip)
            theirs.step()
        torch.testing.assert_close(params_LP[lane], own.detach(), rtol=1e-10, atol=1e-12)


WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=8)


@given(weights=WEIGHTS, seed=SEEDS)
def test_aggregation_is_a_convex_mean_of_clients_in_any_order(
    weights: list[float], seed: int
) -> None:
    weight_SK = torch.tensor([weights], dtype=torch.float64)
    beta_SK = aggregation_weights(weight_SK)
    assert (beta_SK >= 0).all()
    assert beta_SK.sum().item() == pytest.approx(1.0, abs=1e-12)
    if weight_SK.any():
        assert (beta_SK[weight_SK == 0] == 0).all()
    else:
        assert (beta_SK == 1 / len(weights)).all()
    clients_SKP = tensor(seed, 1, len(weights), 5)
    start_SP, zero_SP = tensor(seed + 1, 1, 5), torch.zeros(1, 5, dtype=torch.float64)
    mean_SP, _ = aggregate(start_SP, zero_SP, clients_SKP, beta_SK, 0.0)
    assert (mean_SP <= clients_SKP.amax(1) + 1e-12).all()
    assert (mean_SP >= clients_SKP.amin(1) - 1e-12).all()
    order = rng.generator(seed, "probe").permutation(len(weights))
    shuffled = aggregate(
        start_SP, zero_SP, clients_SKP[:, order], aggregation_weights(weight_SK[:, order]), 0.0
    )
    torch.testing.assert_close(shuffled[0], mean_SP, rtol=1e-12, atol=1e-12)


@given(seed=SEEDS, decay=st.floats(0, 1))
def test_aggregation_with_momentum_moves_by_its_buffer(seed: int, decay: float) -> None:
    params_SP, momentum_SP = tensor(seed, 2, 2, 5)
    clients_SKP = tensor(seed + 1, 2, 3, 5)
    beta_SK = aggregation_weights(tensor(seed + 2, 2, 3).abs())
    new_SP, buffer_SP = aggregate(params_SP, momentum_SP, clients_SKP, beta_SK, decay)
    for s in range(2):
        mean_P = sum(beta_SK[s, k] * clients_SKP[s, k] for k in range(3))
        expected_P = decay * momentum_SP[s] + params_SP[s] - mean_P
        torch.testing.assert_close(buffer_SP[s], expected_P, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(new_SP, params_SP - buffer_SP)


# -- draws -----------------------------------------------------------------------------------------


@given(
    seed=SEEDS,
    purpose=st.sampled_from(rng.PURPOSES),
    places=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9),
    num=st.integers(1, 9),
    epoch=st.integers(0, 2**32 - 1),
)
def test_a_draw_does_not_depend_on_its_companions(
    seed: int, purpose: str, places: list[int], num: int, epoch: int
) -> None:
    together = rng.words(seed, purpose, np.array(places), epoch, num=num)
    for place, drawn in zip(places, together, strict=True):
        assert np.array_equal(rng.words(seed, purpose, place, epoch, num=num), drawn)
        more = rng.words(np.array([seed, 7]), purpose, place, epoch, num=num + 3)
        assert np.array_equal(more[0, :num], drawn)
    assert together.min() >= 0
    assert together.max() < 2**32


@given(seeds=st.lists(SEEDS, min_size=2, max_size=6, unique=True), place=st.integers(0, 1000))
def test_seeds_and_purposes_share_no_stream(seeds: list[int], place: int) -> None:
    streams = {
        rng.words(seed, purpose, place, num=4).tobytes()
        for seed in seeds
        for purpose in rng.PURPOSES
    }
    assert len(streams) == len(seeds) * len(rng.PURPOSES)


# -- settings --------------------------------------------------------------------------------------

NAMES = st.text("abcdefgh_", min_size=1, max_size=8)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(options=st.dictionaries(NAMES, VALUES, max_size=5))
def test_options_are_read_as_they_are_written(options: dict[str, Any]) -> None:
    pairs = [f"{name}={json.dumps(value)}" for name, value in options.items()]
    assert read_options(pairs) == options


@given(text=st.text(min_size=1, max_size=40))
def test_an_option_is_read_or_is_its_own_text(text: str) -> None:
    found = read_options([f"name={text}"])
    assert found.keys() == {"name"}
    assert found["name"] == text or not isinstance(found["name"], str) or text[0] in "\"' \t"


CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "labels": st.integers(1, 10_000),
    "method": st.sampled_from(("flfl", "semifl", "fixmatch", "fedmatch", "fedavg")),
    "dataset": st.sampled_from(("streetdigits", "svhn", "cifar10", "cifar100", "fashion-mnist")),
    "rounds": st.integers(1, 10_000),
    "epochs": st.integers(1, 100),
    "clients": st.integers(10, 1000),
    "batch_size": st.integers(1, 1000),
    "lr": st.one_of(st.floats(0, 10), st.integers(0, 3)),
    "seed": st.integers(0, 2**31),
    "partition": st.sampled_from(("iid", "dirichlet:0.3", "shards:2")),
    "preset": st.sampled_from(("quick", "paper")),
    "strict": st.booleans(),
    "sure": st.floats(0, 1),
    "constants": st.sampled_from(("flfl", "semifl")),
    "crop": st.floats(0, 0.5),
}
FLAGS = ("labels", "method", "dataset", "rounds", "clients", "lr", "seed", "partition", "preset")


@given(changes=st.fixed_dictionaries({}, optional=CHANGES), flagged=st.sets(st.sampled_from(FLAGS)))
def test_a_dry_run_given_back_is_the_same_experiment(
    changes: dict[str, Any], flagged: set[str], tmp_path_factory: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "given-back.toml"
    file.write_text(toml({n: v for n, v in changes.items() if n not in flagged}))
    flags = [f"--{n}={v}" for n, v in changes.items() if n in flagged]
    first = dry_run("--config", file, *flags)
    file.write_text(toml(first))
    assert dry_run("--config", file) == first
    assert asdict(experiment(**read_config(file))) == json.loads(
        json.dumps(first), object_hook=with_tuples
    )


def with_tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}


def toml(table: dict[str, Any]) -> str:
    """JSON's values are TOML's, but for the empty table."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())


def dry_run(*args: str | Path) -> dict[str, Any]:
    said = io.StringIO()
    with pytest.raises(SystemExit) as stop, redirect_stdout(said), redirect_stderr(said):
        main(["train", "--dry-run", *map(str, args)])
    assert not stop.value.code, said.getvalue()
    return json.loads(said.getvalue())
