"""What reduced precision does to accuracy over three seeds: python -m benchmarks.precision

bf16 is the real option, on a CPU. TF32 exists on GPUs only, so here its rounding is imitated in
float32 (benchmarks.tf32_model); speeds mean nothing here.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np

import fl2fast
from benchmarks.harness import write_record
from fl2fast.memory import keep_freed_memory

SETTINGS: dict[str, Any] = {
    "labels": 60,
    "train_size": 3000,
    "test_size": 2000,
    "seeds": 3,
    "augment": "torch",
    "lowering": "cores",
}
TF32 = f"{Path(__file__).with_name('tf32_model.py')}:cnn"
WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp32, another lowering": {"lowering": "grouped"},  # how far rounding alone goes
    "tf32, imitated": {"model": TF32},
    "bf16": {"precision": "bf16"},
}


@click.command()
@click.option("--rounds", default=10, show_default=True)
def main(rounds: int) -> None:
    keep_freed_memory()
    rows = []
    for name, changes in WAYS.items():
        settings: dict[str, Any] = SETTINGS | changes
        settings |= {"rounds": rounds, "eval_every": rounds}
        *_, last = fl2fast.simulate(fl2fast.build_world(fl2fast.experiment(**settings)))
        accuracy = [row["test_accuracy"] for row in last.metrics]
        mean, std = float(np.mean(accuracy)), float(np.std(accuracy, ddof=1))
        rows.append({"way": name, "test_accuracy": accuracy, "mean": mean, "std": std})
        click.echo(rows[-1])
    path = write_record("precision", rows, settings=SETTINGS, rounds=rounds)
    click.echo(f"recorded in {path}")


if __name__ == "__main__":
    main()
