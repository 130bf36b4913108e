"""What may differ between a run and its resumption: nothing that would alter the result."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fl2fast.errors import UsageError
from fl2fast.experiment import EXECUTION, PRESETS, Experiment, check, experiment
from fl2fast.reading import read_small
from fl2fast.run_folder import CONFIG

MAX_BYTES = 1 << 24  # of a config.json


def read_config_json(run: Path) -> dict[str, Any]:
    """Of a run that has no checkpoint yet."""
    path = run / CONFIG
    try:
        record = json.loads(read_small(path, MAX_BYTES))
        if not isinstance(record, dict):
            raise TypeError("it holds no settings")
        return record
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{str(path)!r} cannot be read ({error}): put it back, or start again with another "
            "--out"
        ) from error


def read_settings(record: dict[str, Any], run: Path) -> Experiment:
    """An experiment as a run stored it, whole."""
    known = {field.name for field in fields(Experiment)}
    if odd := sorted(known ^ set(record)):
        raise UsageError(
            f"{str(run)!r} {'lacks' if odd[0] in known else 'has'} the setting {odd[0]!r}, which "
            f"this version {'needs' if odd[0] in known else 'does not know'}: resume it with the "
            "version that made it"
        )
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in record.items()}
    made = Experiment(**values)
    check(made)
    return made


def apply_changes(
    stored: Experiment,
    given: dict[str, Any],
    preset: str | None,
    done: int,
    say: Callable[[str], object],
) -> Experiment:
    """The experiment that goes on: as it was stored, but for what may change.

    `given` is what the user says this time, which need not be anything; `done` rounds are done.
    """
    asked = experiment(preset, **{"dataset": stored.dataset, "method": stored.method, **given})
    named = set(given) | set(PRESETS[preset] if preset else ())
    changed = {
        name: (getattr(stored, name), getattr(asked, name))
        for name in sorted(named)
        if getattr(stored, name) != getattr(asked, name) and getattr(asked, name) != "auto"
    }
    if "options" in changed and given["options"].items() <= stored.options.items():
        del changed["options"]
    refused = [name for name in changed if name not in (*EXECUTION, "rounds")]
    if refused:
        told = ", ".join(f"{n} from {changed[n][0]!r} to {changed[n][1]!r}" for n in refused)
        raise UsageError(
            f"--resume would change {told}, and with it the result: leave that out, or start a "
            "new run"
        )
    made = replace(stored, **{name: new for name, (_, new) in changed.items()})
    if made.rounds < stored.rounds:
        raise UsageError(
            f"--resume would shorten the run from {stored.rounds} to {made.rounds} rounds: rounds "
            "can only be added"
        )
    if computed := [n for n in changed if n in EXECUTION and not n.startswith("checkpoint")]:
        say(f"{', '.join(computed)} changed: results are the same to rounding, not byte for byte")
    if made.rounds > stored.rounds:
        say(_extension(stored, made, done))
    return made


def _extension(stored: Experiment, made: Experiment, done: int) -> str:
    said = f"extended from {stored.rounds} to {made.rounds} rounds"
    if made.schedule == "constant":
        return said
    last, following = stored.learning_rate(max(done, 1)), made.learning_rate(done + 1)
    return (
        f"{said}: the {made.schedule} schedule now ends after round {made.rounds}, so that the "
        f"learning rate goes from {last:.3g} in round {done} to {following:.3g} in round "
        f"{done + 1}; the result is not that of {made.rounds} rounds from the start"
    )
