"""Damage checkpoints at one byte and look: python -m benchmarks.corruption [--tries N]

Every try changes one byte, drawn over all bytes of the newest checkpoint's files, its manifest's
included. It must be noticed and named, and the previous checkpoint be used; or, for the file of a
client that has not trained since the previous one, its copy. What is used must have the bytes that
it was written with. Two federations: one whose clients all train in every round, so that
checkpoints share no file, and one half of whose clients do. Exit code 1 if one try is off.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

import fl2fast
from benchmarks.harness import write_record
from benchmarks.kills import SETTINGS, small_digits
from fl2fast.checkpoint.manifest import Manifest, Stored
from fl2fast.checkpoint.restore import Checkpoint, newest_whole
from fl2fast.checkpoint.writer import FOLDER, to_bytes

COHORTS = {"every client trains": 6, "half of the clients train": 3}


def damage(run: Path, manifests: list[Manifest], draws: np.random.Generator) -> dict[str, Any]:
    """One try: which file, which checkpoint was used instead, and what was wrong with that."""
    folder, newest = run / FOLDER, manifests[0]
    files = [folder / name for name in (newest.name, *newest.files)]
    sizes = np.array([path.stat().st_size for path in files])
    path = files[int(draws.choice(len(files), p=sizes / sizes.sum()))]
    if draws.random() < 0.2:  # the manifest is small, and every byte of it counts
        path = files[0]
    original = path.read_bytes()
    place, bits = int(draws.integers(len(original))), int(draws.integers(1, 256))
    path.write_bytes(original[:place] + bytes([original[place] ^ bits]) + original[place + 1 :])
    shared = path.name in manifests[1].files
    warned: list[str] = []
    checkpoint = newest_whole(run, warned.append)
    named, healed = bool(warned) and path.name in warned[0], path.read_bytes() == original
    path.write_bytes(original)
    used = manifests[0 if shared else 1]
    right = checkpoint is not None and checkpoint.manifest == used and _holds(checkpoint)
    return {"file": path.name, "shared": shared, "right": right and named and healed == shared}


def _holds(checkpoint: Checkpoint) -> bool:
    """Whether the tensors are those of the manifest."""
    manifest = checkpoint.manifest
    stored = {None: manifest.server, **manifest.clients}
    tensors = {None: checkpoint.server, **checkpoint.clients}
    return all(Stored.of(to_bytes(tensors[key])) == stored[key] for key in stored)


@click.command()
@click.option("--tries", default=1000, show_default=True, help="Of each federation.")
@click.option("--seed", default=0, show_default=True)
def main(tries: int, seed: int) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        dataset = str(small_digits(Path(scratch) / "digits"))
        for title, cohort in COHORTS.items():
            run, draws = Path(scratch) / str(cohort), np.random.Generator(np.random.Philox(seed))
            settings = SETTINGS | {"dataset": dataset, "cohort": cohort, "lowering": "grouped"}
            fl2fast.train(fl2fast.experiment(**settings), run)
            whole = newest_whole(run, click.echo)
            assert whole is not None, "a finished run has a checkpoint"
            found = [damage(run, whole.manifests, draws) for _ in range(tries)]
            rows.append(
                {
                    "federation": title,
                    "tries": tries,
                    "right": sum(row["right"] for row in found),
                    "used the previous one": sum(not row["shared"] for row in found),
                    "used a copy": sum(row["shared"] for row in found),
                    "in the manifest": sum(row["file"].endswith(".json") for row in found),
                }
            )
            click.echo(rows[-1])
    click.echo(f"recorded in {write_record('corruption', rows, seed=seed, settings=SETTINGS)}")
    sys.exit(any(row["right"] < row["tries"] for row in rows))


if __name__ == "__main__":
    main()
