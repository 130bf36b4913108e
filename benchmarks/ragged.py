"""Time per trained image, very unequal clients against equal ones: fl2fast bench ragged

The quick preset under Dirichlet 0.1 and under IID, rounds taking turns; every lowering.
"""

import statistics
from typing import Any

import click

import fl2fast
from benchmarks.harness import median_and_spread, write_record
from fl2fast.memory import keep_freed_memory

SETTINGS: dict[str, Any] = {"train_size": 6000, "test_size": 500, "labels": 60, "pretrain": 3}
PARTITIONS = ("iid", "dirichlet:0.1")


@click.command()
@click.option("--rounds", default=7, show_default=True)
def main(rounds: int) -> None:
    keep_freed_memory()
    rows = []
    for lowering in ("cores", "grouped"):
        runs = {
            name: fl2fast.simulate(
                fl2fast.build_world(
                    fl2fast.experiment(
                        **SETTINGS, partition=name, rounds=rounds + 1, lowering=lowering
                    )
                )
            )
            for name in PARTITIONS
        }
        micros: dict[str, list[float]] = {name: [] for name in runs}
        for round in range(rounds + 1):
            for name, reports in runs.items():
                report = next(reports)
                per_image = report.seconds["local_training"] / report.num_trained
                if round:
                    micros[name].append(1e6 * per_image)
        iid, ragged = (statistics.median(micros[name]) for name in PARTITIONS)
        spread = {name: median_and_spread(values) for name, values in micros.items()}
        rows.append({"lowering": lowering, "micros_per_image": spread, "ratio": ragged / iid})
        click.echo(rows[-1])
    click.echo(f"recorded in {write_record('ragged', rows, settings=SETTINGS)}")


if __name__ == "__main__":
    main()
