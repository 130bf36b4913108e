"""A whole run in one call: simulate and record."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl2fast.experiment import Experiment
from fl2fast.memory import keep_freed_memory
from fl2fast.record import Recorder, claim_folder, default_folder
from fl2fast.simulate import RoundReport, build_world, simulate


def train(
    experiment: Experiment,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    on_round: Callable[[RoundReport], object] = lambda report: None,
    say: Callable[[str], object] = lambda sentence: None,
) -> dict[str, Any]:
    """Run the experiment, write its run folder and return the summary."""
    if experiment.device == "cpu":
        keep_freed_memory()
    folder = Path(out) if out is not None else default_folder(experiment)
    world = build_world(experiment, None if data_dir is None else Path(data_dir), say)
    recorder = Recorder(claim_folder(folder), world)
    for report in simulate(world):
        recorder.add(report)
        on_round(report)
    return recorder.finish() | {"out": str(folder)}
