"""Two rounds on every real dataset that is at hand: python -m benchmarks.datasets"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.harness import write_record
from fl2fast.data.load import default_data_dir

NAMES = ("svhn", "cifar10", "fashion-mnist")
FLAGS = "--labels 40 --model wrn-10-1 --rounds 2 --clients 100 --cohort 10"


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path))
def main(data_dir: Path | None) -> None:
    data_dir, rows = data_dir or default_data_dir(), []
    for name in NAMES:
        if not (data_dir / name).is_dir():
            click.echo(f"{name} is not in {data_dir}: left out")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "run"
            command = [sys.executable, "-m", "fl2fast", "train", "--dataset", name, *FLAGS.split()]
            started = time.perf_counter()
            subprocess.run([*command, "--data-dir", str(data_dir), "--out", str(out)], check=True)
            seconds = time.perf_counter() - started
            summary = json.loads((out / "summary.json").read_text())
        rows.append(
            {
                "dataset": name,
                "images_per_second": summary["images_per_second"],
                "wall_seconds": seconds,
                "test_accuracy": summary["mean"]["test_accuracy_last"],
            }
        )
        click.echo(rows[-1])
    click.echo(f"recorded in {write_record('datasets', rows, flags=FLAGS)}")


if __name__ == "__main__":
    main()
