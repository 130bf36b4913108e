"""What may differ between a run and its resumption: nothing that would alter the result."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fl2fast.data.settings import SETTINGS
from fl2fast.errors import UsageError, brief
from fl2fast.experiment import EXECUTION, PRESETS, Experiment, check
from fl2fast.methods import find_method
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
    """An experiment as a run stored it, whole; `apply_changes` checks its values."""
    known = {field.name for field in fields(Experiment)}
    if odd := sorted(known ^ set(record)):
        raise UsageError(
            f"{str(run)!r} {'lacks' if odd[0] in known else 'has'} the setting {odd[0]!r}, which "
            f"this version {'needs' if odd[0] in known else 'does not know'}: resume it with the "
            "version that made it"
        )
    return Experiment(**_untoml(record))


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
    _ask_for_code(stored, given)
    given = _of_preset(stored, preset) | _untoml(given)
    if unknown := sorted(set(given) - {field.name for field in fields(Experiment)}):
        raise UsageError(f"unknown setting {unknown[0]!r}: see fl2fast train --help and README.md")
    asked = {name: value for name, value in given.items() if value != "auto"}
    if isinstance(asked.get("options"), dict):
        asked["options"] = stored.options | asked["options"]
    made = replace(stored, **asked)
    check(made)
    changed = [name for name in sorted(asked) if getattr(made, name) != getattr(stored, name)]
    if refused := [name for name in changed if not _may_change(name, stored, made)]:
        told = ", ".join(
            f"{n} from {brief(getattr(stored, n))} to {brief(getattr(made, n))}" for n in refused
        )
        raise UsageError(
            f"--resume would change {told}, and with it the result: leave that out, or start a "
            "new run"
        )
    if made.rounds < stored.rounds:
        raise UsageError(
            f"--resume would shorten the run from {stored.rounds} to {made.rounds} rounds: rounds "
            "can only be added"
        )
    computed = [n for n in changed if n in EXECUTION and not n.startswith("checkpoint")]
    if computed:
        say(f"{', '.join(computed)} changed: results are the same to rounding, not byte for byte")
    if made.rounds > stored.rounds:
        say(_extension(stored, made, done))
    return made


def _untoml(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON and TOML have lists only."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}


def _ask_for_code(stored: Experiment, given: dict[str, Any]) -> None:
    """A run folder may come from anybody: code that it names is run only if the user names it."""
    for name in ("method", "model"):
        value = getattr(stored, name)
        if isinstance(value, str) and ".py:" in value and given.get(name) != value:
            raise UsageError(
                f"the run uses code of its own, {brief(value)}: say --{name} {value} again to "
                "have it executed"
            )


def _of_preset(stored: Experiment, preset: str | None) -> dict[str, Any]:
    """What a preset that is named again says: of rounds there may be more by now."""
    if preset is None:
        return {}
    if preset not in PRESETS:
        raise UsageError(f"unknown preset {brief(preset)}: choose {' or '.join(PRESETS)}")
    own = getattr(find_method(stored.method), "protocol", {})
    return {n: v for n, v in PRESETS[preset].items() if n not in own and n != "rounds"}


def _may_change(name: str, stored: Experiment, made: Experiment) -> bool:
    """A folder of images may stand elsewhere now: its fingerprint tells whether it is the same."""
    moved = name == "dataset" and not {stored.dataset, made.dataset} & set(SETTINGS)
    return moved or name in (*EXECUTION, "rounds")


def _extension(stored: Experiment, made: Experiment, done: int) -> str:
    said = f"extended from {stored.rounds} to {made.rounds} rounds"
    if made.make_method().central is not None:
        return f"{said}: the learning rate falls over all of them, so that {_OTHER}"
    if made.schedule == "constant":
        return said
    last, following = stored.learning_rate(max(done, 1)), made.learning_rate(done + 1)
    return (
        f"{said}: the {made.schedule} schedule now ends after round {made.rounds}, so that the "
        f"learning rate goes from {last:.3g} in round {done} to {following:.3g} in round "
        f"{done + 1}; {_OTHER}"
    )


_OTHER = "the result is not that of so many rounds from the start"
