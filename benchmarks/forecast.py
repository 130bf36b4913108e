"""Predicted against measured, on this CPU: python -m benchmarks.forecast [--rounds N]

The quick preset, run and forecast. Seconds of phases are means over all rounds but the first;
memory is what the run, its trials of lowerings included, adds to the process.
"""

import time
from typing import Any

import click
import torch

import fl2fast
from benchmarks.harness import write_record
from fl2fast.forecast import forecast
from fl2fast.memory import keep_freed_memory
from fl2fast.profile import peak_memory


def compare(predicted: dict[str, Any], measured: dict[str, float]) -> list[dict[str, Any]]:
    """A row for every figure that both have."""
    return [
        {"what": name, "predicted": predicted[name], "measured": value}
        | {"ratio": predicted[name] / value}
        for name, value in measured.items()
        if name in predicted
    ]


@click.command()
@click.option("--rounds", type=click.IntRange(2), default=3, show_default=True)
@click.option("--model", default="cnn", show_default=True)
@click.option("--train-size", default=0, help="Images of the dataset; 0 (default): all.")
def main(rounds: int, model: str, train_size: int) -> None:
    made = fl2fast.experiment(rounds=rounds, model=model, train_size=train_size)
    cpu = torch.device("cpu")
    keep_freed_memory()
    before = peak_memory(cpu)
    world = fl2fast.build_world(made, say=click.echo)
    started = time.perf_counter()
    reports = list(fl2fast.simulate(world))
    run, grown = time.perf_counter() - started, peak_memory(cpu) - before
    found = forecast(made)  # afterwards: its trials would hide what the run takes
    phases = {
        name: sum(report.seconds[name] for report in reports[1:]) / len(reports[1:])
        for name in reports[-1].seconds
    }
    rows = compare(found["here"], {**phases, "round": sum(phases.values()), "run": run})
    rows += compare(found["memory"], {"peak": grown})
    for row in rows:
        cells = f"{row['predicted']:>16,.2f}{row['measured']:>16,.2f}{row['ratio']:>8.2f}"
        click.echo(f"{row['what']:<16}{cells}")
    about = {"rounds": rounds, "model": model, "train_size": train_size}
    click.echo(f"recorded in {write_record('forecast', rows, **about)}")


if __name__ == "__main__":
    main()
