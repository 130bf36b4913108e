"""A whole run in one call: simulate, record, keep; and the same for a run that was stopped."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fl2fast.checkpoint.changes import apply_changes, read_config_json, read_settings
from fl2fast.checkpoint.manifest import Manifest, encode
from fl2fast.checkpoint.restore import Checkpoint, newest_whole, revive
from fl2fast.checkpoint.writer import FOLDER, Known, Writer
from fl2fast.durable import write_whole
from fl2fast.engine.world import Federation, World
from fl2fast.errors import UsageError
from fl2fast.experiment import Experiment
from fl2fast.fingerprint import fingerprint
from fl2fast.guards import Diverged
from fl2fast.interrupt import Interrupted, stopping_between_steps
from fl2fast.machine import environment
from fl2fast.memory import keep_freed_memory
from fl2fast.record import (
    SUMMARY,
    Recorder,
    read_fingerprint,
    read_summary,
    write_config,
    write_settings,
)
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
        return _go_on(folder, world, lambda: Start(), on_round, warn)


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
        told = f"goes on after round {done}" if done else "starts over: it has no checkpoint yet"
        say(f"{run} {told}")
        return _go_on(run, world, partial(_start, run, world, checkpoint, warn), on_round, warn)


def _prepare(experiment: Experiment, data_dir: str | Path | None, say: Say) -> World:
    if experiment.device == "cpu":
        keep_freed_memory()
    return build_world(experiment, None if data_dir is None else Path(data_dir), say)


def _start(run: Path, world: World, checkpoint: Checkpoint | None, warn: Say) -> Start:
    """The checkpoint's federation; from here on the world's settings are the run's."""
    known = read_fingerprint(run) if checkpoint is None else checkpoint.manifest.fingerprint
    if known not in (None, fingerprint(world)):
        raise UsageError(
            f"the dataset or the user's own model or method has changed since {str(run)!r} was "
            "stopped: put it back, or start a new run"
        )
    if checkpoint is None:
        write_settings(world, run)
        return Start()
    machine = checkpoint.manifest.machine
    if others := [name for name, value in _machine(world).items() if machine.get(name) != value]:
        warn(
            f"{', '.join(others)} not the same as when {str(run)!r} was stopped: results are the "
            "same to rounding, not byte for byte"
        )
    federation, files = revive(world, checkpoint)
    settings = json.loads(json.dumps(asdict(world.experiment)))
    if settings != checkpoint.manifest.experiment:
        (run / SUMMARY).unlink(missing_ok=True)  # first: a run that has one is finished
        for manifest in checkpoint.manifests:  # all: an older one may have to do
            changed = manifest._replace(experiment=settings)
            write_whole(run / FOLDER / manifest.name, encode(changed))
    write_config(world, run)  # of a changed run that was killed here it may be an old one
    return Start(federation, checkpoint.manifest, tuple(checkpoint.manifests), files)


def _machine(world: World) -> dict[str, Any]:
    """What bytes depend on, besides the settings."""
    found = environment(world.experiment.device)
    return {name: found[name] for name in ("device", "cpu", "threads", "python", "versions")}


def _go_on(
    run: Path, world: World, begin: Callable[[], Start], on_round: OnRound, warn: Say
) -> dict[str, Any]:
    with _explained(run, world.experiment) as kept, stopping_between_steps():
        start = begin()
        kept.append(start.manifest.round if start.manifest else 0)
        writer = _writer(run, world, start) if world.experiment.checkpoint_every else None
        recorder = Recorder(run, world, warn, start.manifest)
        try:
            federation = _train(world, start.federation, recorder, writer, on_round)
        except Diverged as error:
            recorder.tell(error.events)
            raise
        finally:
            recorder.close()
            if writer:
                try:
                    writer.close()
                finally:
                    kept.append(writer.newest)
        return recorder.finish(federation) | {"out": str(run)}


def _train(
    world: World,
    federation: Federation | None,
    recorder: Recorder,
    writer: Writer | None,
    on_round: OnRound,
) -> Federation:
    """The rounds that are left, recorded and kept: the last federation."""
    e = world.experiment
    for report in simulate(world, federation):
        federation = report.federation
        recorder.add(report)
        if writer and e.is_due(report.round, e.checkpoint_every):
            writer.write(recorder.snapshot())
        on_round(report)
    assert federation is not None, "a run has at least one round"
    return federation


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
def _explained(run: Path, experiment: Experiment) -> Iterator[list[int]]:
    """What stops a run says which rounds are kept, and how to go on; the block appends the last."""
    kept = [0]

    def left() -> str:
        rounds = f"rounds 1 to {kept[-1]} are kept" if kept[-1] else "no round is kept"
        code = "".join(
            f" --{name} {shlex.quote(value)}"
            for name, value in (("method", experiment.method), ("model", experiment.model))
            if ".py:" in value
        )
        return f"{rounds}: go on with `fl2fast train --resume {shlex.quote(str(run))}{code}`"

    try:
        yield kept
    except Interrupted as error:
        raise Interrupted(f"stopped; {left()}") from error
    except Diverged as error:
        rounds = f"rounds 1 to {kept[-1]} are kept in {run}" if kept[-1] else "no round is kept"
        raise Diverged(error.seeds, left=f"{rounds}; try a smaller --lr") from error
    except MemoryError as error:
        raise UsageError(f"out of memory; {left()}, where there is more") from error
    except OSError as error:
        raise UsageError(
            f"cannot write to {str(run)!r} ({error.strerror or error}); {left()}, once there is "
            "room"
        ) from error
