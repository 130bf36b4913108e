"""S seeds stacked against S runs one after the other: fl2fast bench seeds

Whole commands in processes of their own, start-up counted; phases from their timing files. A
stacked command takes its turn after as many single ones have run.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.harness import write_record

STACKS = (1, 2, 4, 8)
SETTINGS = {"rounds": 3, "train_size": 6000, "test_size": 2000, "labels": 60}
SERVER = ("pretrain", "fine_tune")


def run(folder: Path, **changes: int) -> dict[str, float]:
    """Seconds of one `fl2fast train`: the whole command, local training and the server's."""
    config = folder.with_suffix(".toml")
    config.write_text("".join(f"{k} = {v}\n" for k, v in (SETTINGS | changes).items()))
    started = time.perf_counter()
    command = [sys.executable, "-m", "fl2fast", "train", "--config", config, "--out", folder]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    wall = time.perf_counter() - started
    rows = [json.loads(line)["seconds"] for line in (folder / "timing.jsonl").open()]

    def total(*phases: str) -> float:
        return sum(row.get(phase, 0.0) for row in rows for phase in phases)

    return {"wall": wall, "local_training": total("local_training"), "server": total(*SERVER)}


@click.command()
def main() -> None:
    rows: list[dict[str, Any]] = []
    singles: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        run(Path(scratch) / "first", rounds=1)  # draws the dataset, times the candidates
        for stack in STACKS:
            run(Path(scratch) / f"first-{stack}", rounds=1, seeds=stack)
            while len(singles) < stack:
                seed = len(singles)
                singles.append(run(Path(scratch) / f"seed-{seed}", seed=seed))
            stacked = run(Path(scratch) / f"stack-{stack}", seeds=stack)
            alone = {k: sum(single[k] for single in singles) for k in stacked}
            ratio = {k: alone[k] / stacked[k] for k in stacked}
            rows.append({"seeds": stack, "alone": alone, "stacked": stacked, "ratio": ratio})
            click.echo(rows[-1])
    click.echo(f"recorded in {write_record('seeds', rows, settings=SETTINGS)}")


if __name__ == "__main__":
    main()
