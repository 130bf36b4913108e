"""A whole run in one call: simulate, record, keep; and the same for a run that was stopped."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from fl2fast.checkpoint.changes import apply_changes, read_config_json, read_settings
from fl2fast.checkpoint.manifest import Manifest, encode
from fl2fast.checkpoint.restore import Checkpoint, fingerprint, newest_whole, revive
from fl2fast.checkpoint.writer import FOLDER, Known, Writer
from fl2fast.durable import write_whole
from fl2fast.engine.world import Federation, World
from fl2fast.errors import UsageError
from fl2fast.experiment import Experiment
from fl2fast.guards import Diverged
from fl2fast.interrupt import Interrupted, stopping_between_steps
from fl2fast.machine import environment
from fl2fast.memory import keep_freed_memory
from fl2fast.record import SUMMARY, Recorder, read_summary, write_config, write_settings
from fl2fast.run_folder import default_folder, new_run, old_run
from fl2fast.simulate import RoundReport, build_world, simulate

OnRound = Callable[[RoundReport], object]
Say = Callable[[str], object]


def quiet(_: object) -> None:
    return


class Start(NamedTuple):
    """Where a run goes on from; by default, from nothing."""

    federation: Federation | None = None
    manifest: Manifest | None = None
    manifests: tuple[Manifest, ...] = ()  # of every checkpoint that is there
    known: Known | None = None


def train(
    experiment: Experiment,
    out: str | Path | None = None,
    data_dir: str | Path | None = None,
    on_round: OnRound = quiet,
    say: Say = quiet,
    warn: Say = quiet,
) -> dict[str, Any]:
    """Run the experiment, write its run folder and return the summary.

    `say` is told what was chosen, `warn` what went wrong.
    """
    folder = Path(out) if out is not None else default_folder(experiment)
    world = _prepare(experiment, data_dir, say)
    with new_run(folder, lambda scratch: write_settings(world, scratch)):
        return _go_on(folder, world, Start(), on_round, warn)


def resume(
    run: str | Path,
    changes: Mapping[str, Any] | None = None,
    preset: str | None = None,
    data_dir: str | Path | None = None,
    on_round: OnRound = quiet,
    say: Say = quiet,
    warn: Say = quiet,
) -> dict[str, Any]:
    """Go on with a run from its newest whole checkpoint, to the end it would have come to.

    Of `changes`, settings as in `experiment`, only those are taken that do not alter the result;
    more `rounds` extend it. A finished run is left as it is.
    """
    run = Path(run)
    with old_run(run):
        checkpoint = newest_whole(run, warn)
        record = read_config_json(run) if checkpoint is None else checkpoint.manifest.experiment
        stored = read_settings(record, run)
        done = 0 if checkpoint is None else checkpoint.manifest.round
        asked = apply_changes(stored, dict(changes or {}), preset, done, say)
        if (summary := read_summary(run)) is not None:
            if asked.rounds == stored.rounds:
                say(f"{run} is finished: {stored.rounds} rounds")
                return summary | {"out": str(run)}
            if checkpoint is None:
                raise UsageError(
                    f"{str(run)!r} is finished and has kept no checkpoint to go on from: start a "
                    f"new run of {asked.rounds} rounds"
                )
        world = _prepare(asked, data_dir, say)
        if checkpoint is None:
            say(f"{run} starts over: it has no checkpoint yet")
            return _go_on(run, world, Start(), on_round, warn)
        say(f"{run} goes on after round {done}")
        start = _start(run, world, checkpoint, warn)
        return _go_on(run, world, start, on_round, warn)


def _prepare(experiment: Experiment, data_dir: str | Path | None, say: Say) -> World:
    if experiment.device == "cpu":
        keep_freed_memory()
    return build_world(experiment, None if data_dir is None else Path(data_dir), say)


def _start(run: Path, world: World, checkpoint: Checkpoint, warn: Say) -> Start:
    """The checkpoint's federation, and its manifest with the settings that now hold."""
    manifest = checkpoint.manifest
    if fingerprint(world) != manifest.fingerprint:
        raise UsageError(
            f"the dataset or the user's own model or method has changed since {str(run)!r} was "
            "stopped: put it back, or start a new run"
        )
    here = _machine(world)
    if others := [name for name, value in here.items() if manifest.machine.get(name) != value]:
        warn(
            f"{', '.join(others)} not the same as when {str(run)!r} was stopped: results are the "
            "same to rounding, not byte for byte"
        )
    federation, known = revive(world, checkpoint)
    (run / SUMMARY).unlink(missing_ok=True)  # first: a run that has one is finished
    settings = asdict(world.experiment)
    if json.loads(json.dumps(settings)) != manifest.experiment:
        manifest = manifest._replace(experiment=settings)
        write_whole(run / FOLDER / manifest.name, encode(manifest))
    write_config(world, run)
    return Start(federation, manifest, tuple(checkpoint.manifests), known)


def _machine(world: World) -> dict[str, Any]:
    """What bytes depend on, besides the settings."""
    found = environment(world.experiment.device)
    return {name: found[name] for name in ("device", "cpu", "threads", "python", "versions")}


def _go_on(run: Path, world: World, start: Start, on_round: OnRound, warn: Say) -> dict[str, Any]:
    e, federation, before = world.experiment, start.federation, start.manifest
    with _explained(run) as kept:
        writer = _writer(run, world, start) if e.checkpoint_every else None
        recorder = Recorder(run, world, warn, before)
        try:
            with stopping_between_steps():
                for report in simulate(world, federation):
                    federation = report.federation
                    recorder.add(report)
                    if writer and e.is_due(report.round, e.checkpoint_every):
                        writer.write(recorder.snapshot())
                    on_round(report)
        except Diverged as error:
            recorder.tell(error.events)
            raise
        finally:
            recorder.close()
            if writer:
                writer.close()
                kept.append(writer.newest)
        assert federation is not None, "a run has at least one round"
        return recorder.finish(federation) | {"out": str(run)}


def _writer(run: Path, world: World, start: Start) -> Writer:
    return Writer(
        run,
        world.experiment.checkpoints,
        fingerprint(world),
        _machine(world),
        start.manifests,
        start.known or {},
    )


@contextmanager
def _explained(run: Path) -> Iterator[list[int]]:
    """What stops a run says which rounds are kept, and how to go on; the block appends the last."""
    kept = [0]

    def left() -> str:
        rounds = f"rounds 1 to {kept[-1]} are kept" if kept[-1] else "no round is kept"
        return f"{rounds}: go on with `fl2fast train --resume {run}`"

    try:
        yield kept
    except Interrupted as error:
        raise Interrupted(f"stopped; {left()}") from error
    except Diverged as error:
        last = f"round {kept[-1]} of {run} was the last good one" if kept[-1] else "none was good"
        raise Diverged(error.seeds, left=f"{last}; try a smaller --lr") from error
    except OSError as error:
        raise UsageError(
            f"cannot write to {str(run)!r} ({error.strerror or error}); {left()}, once there is "
            "room"
        ) from error
