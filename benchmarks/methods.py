"""Every method under every lowering against one client at a time: python -m benchmarks.methods

Two seeds of a ragged federation train stacked in float64 for two rounds; the truth is each seed on
its own, `loop`, one lane a wave. An error is the largest difference of any number of the final
state (learner rows, momenta, statistics), relative to the largest of its kind.
"""

from typing import Any

import torch

import fl2fast
from benchmarks.harness import write_record
from fl2fast.engine.world import ServerState
from fl2fast.methods import METHODS
from fl2fast.models.lowering import LOWERINGS

SETTINGS: dict[str, Any] = {
    "dataset": "streetdigits",
    "train_size": 320,
    "test_size": 40,
    "labels": 20,
    "partition": "dirichlet:0.3",
    "clients": 5,
    "cohort": 4,
    "rounds": 2,
    "epochs": 1,
    "batch_size": 16,
    "pretrain": 1,
    "sure": 0.25,  # so that a fresh model accepts something, and rejects something else
    "dtype": "float64",
    "server_lowering": "auto",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedmatch": {"confidence": 0.2, "helper_every": 1, "lambda_i": 1.0, "lambda_a": 1.0},
    "fedcon": {"hidden": 16},
}
SEEDS = (0, 1)


def final_state(method: str, lowering: str, seed: int, seeds: int, chunk: int) -> ServerState:
    given = {"method": method, "options": OPTIONS.get(method, {}), "lowering": lowering}
    made = fl2fast.experiment(**SETTINGS | given, seed=seed, seeds=seeds, chunk=chunk)
    *_, last = fl2fast.simulate(fl2fast.build_world(made))
    return last.state


def tensors(state: ServerState, s: int) -> list[torch.Tensor]:
    rows = (state.params_SP, state.server_momentum_SP, state.aggregate_momentum_SP)
    return [*(row[s] for row in rows), *state.stats_S[s]]


def error(state: ServerState, s: int, truth: ServerState) -> float:
    pairs = zip(tensors(state, s), tensors(truth, 0), strict=True)
    return max(
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-300)) for a, b in pairs if b.numel()
    )


def main() -> None:
    rows = []
    for method in METHODS:
        truths = [final_state(method, "loop", seed, 1, 1) for seed in SEEDS]
        errors = {}
        for lowering in LOWERINGS:
            state = final_state(method, lowering, SEEDS[0], len(SEEDS), 0)
            errors[lowering] = max(error(state, s, truth) for s, truth in enumerate(truths))
        rows.append({"method": method, "errors": errors})
        print(method, {name: f"{value:.1e}" for name, value in errors.items()}, flush=True)
    print(write_record("methods", rows, settings=SETTINGS, options=OPTIONS, seeds=len(SEEDS)))


if __name__ == "__main__":
    main()
