"""What can go wrong in a round, caught before the next one builds on it.

Shapes: S seeds, L lanes.
"""

import gc
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeVar

import torch

from fl2fast.engine.round import Outcome
from fl2fast.engine.world import Divergence, Federation, World
from fl2fast.errors import UsageError
from fl2fast.evaluate import Test

COLLAPSED_TESTS = 5  # in a row that name one class only: more than bad luck

Made = TypeVar("Made")


class Event(NamedTuple):
    """Something that the owner of a run should know of, beside its figures."""

    round: int
    kind: str
    says: str


class Diverged(Exception):
    """No seed is left whose numbers are finite."""

    def __init__(
        self, seeds: Sequence[Divergence], events: Sequence[Event] = (), left: str = ""
    ) -> None:
        super().__init__("; ".join([*map(str, seeds), *([left] if left else [])]))
        self.seeds = seeds
        self.events = list(events)  # of the last round


def divergences(
    world: World, outcome: Outcome, tests: Sequence[Test | None]
) -> tuple[Divergence, ...]:
    """The running seeds of whose numbers this round made something that is none."""
    federation, labels, finite = outcome
    seeds = world.experiment.seed_list
    params_S, stats_S = finite.params_S.tolist(), finite.stats_S.tolist()
    bad: dict[int, list[str]] = {seed: [] for seed in seeds}
    if labels is not None and finite.client_L is not None:
        lane_seeds = (seed for seed in seeds for _ in range(world.experiment.cohort))
        for seed, client, fine in zip(
            lane_seeds, labels.client_L.tolist(), finite.client_L.tolist(), strict=True
        ):
            bad[seed] += [] if fine else [str(client)]
    found = []
    for s, seed in enumerate(seeds):
        test, where = tests[s], None
        if bad[seed]:
            noun = "client" if len(bad[seed]) == 1 else "clients"
            where = f"weights, momentum or vote of {noun} {', '.join(bad[seed])} are not finite"
        elif not params_S[s]:
            where = "the server's weights or momentum are not finite"
        elif not stats_S[s]:
            where = "batch-norm statistics are not finite"
        elif test is not None and test.loss is None:
            where = "the test loss is not finite"
        if where is not None and seed not in federation.frozen:
            found.append(Divergence(seed, federation.round, where))
    return tuple(found)


def freeze(
    world: World, before: Federation | None, after: Federation, found: Sequence[Divergence]
) -> Federation:
    """The federation after a round, every frozen seed as it was when it was last sound.

    `before` None: there was no earlier one.
    """
    after = after._replace(diverged=(*after.diverged, *found))
    if before is None or not after.diverged:
        return after
    runs = [seed not in after.frozen for seed in world.experiment.seed_list]
    runs_S1 = torch.tensor(runs, device=world.device)[:, None]
    rows = (
        torch.where(runs_S1, new, old)
        for new, old in zip(after.state[:3], before.state[:3], strict=True)
    )
    stats = zip(runs, after.state.stats_S, before.state.stats_S, strict=True)
    state = after.state._make((*rows, tuple(new if go else old for go, new, old in stats)))
    store = after.store.where(lambda seed: seed not in after.frozen, before.store)
    return after._replace(state=state, store=store)


def collapsed_since(tests: Sequence[tuple[int, int]]) -> int | None:
    """The round since which a seed's tests name one class only, if there are enough of them.

    Of every test the round and the number of classes that it named.

    >>> collapsed_since([(1, 10), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)])
    2
    """
    alone = list(takewhile(lambda test: test[1] == 1, reversed(tests)))
    return alone[-1][0] if len(alone) >= COLLAPSED_TESTS else None


def with_room(
    world: World, round: int, make: Callable[[World], Made], tell: Callable[[Event], object]
) -> tuple[World, Made]:
    """What `make` makes of the world; out of memory, of half as many lanes at once, and so on.

    Draws are keyed and nothing was changed, so a second try computes what the first one would
    have, to rounding. The world that had room comes back with it.
    """
    while True:
        try:
            return world, make(world)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
        # outside of the handler, whose traceback keeps the failed try's tensors
        gc.collect()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
        lanes = _lanes_at_once(world)
        if lanes == 1:
            raise UsageError(
                f"out of memory in round {round} with one learner at a time: choose a smaller "
                "--model or --batch-size, or a device with more memory"
            )
        world = world.with_chunk(lanes // 2)
        said = f"out of memory with {lanes} lanes at once: round {round} again with {lanes // 2}"
        tell(Event(round, "out of memory", said))


def _is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a class of its own; a CPU's allocator says so in words."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate" in str(error)


def _lanes_at_once(world: World) -> int:
    if world.network.execution.alone:
        return world.clients.count
    return min(world.experiment.chunk or world.num_lanes, world.num_lanes)
