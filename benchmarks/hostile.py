"""Bad input through every entry point: python -m benchmarks.hostile [--count N] [--processes N]

Every case must end with exit code 2 and one sentence on stderr, or, where the damage did no harm,
as the command says; in time, within memory, and leaving nothing behind but in the cache. A case is
known by its number: --only NUMBER runs it alone and shows what it says.
"""

import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import click
import torch

from benchmarks.harness import write_record
from benchmarks.hostile_inputs import GENERATORS, Case, Place, make_case, verdicts
from benchmarks.hostile_runs import stopped_run
from fl2fast.cli.main import main as fl2fast

LIMIT = 20  # seconds of a case in this process,
PROCESS_LIMIT = 120  # and of one that is a process of its own
GROWTH = 512 << 20  # bytes that a case may add to this process's largest size
ADDRESS_SPACE = 24 << 30  # bytes of a process; torch alone maps many
LONGEST = 1_000  # characters of a sentence
PROGRESS = re.compile(  # of data get and import; and what --resume warns of
    r"(reading|checking|writing|getting|waiting for) .*|checkpoint round-.* is damaged: .*"
    r"|.*: its copy is whole and takes its place|.* not the same as when .*"
)
GENERATORS["--resume"] = (stopped_run, 8)


class Outcome(NamedTuple):
    code: int | None
    stdout: str
    stderr: str
    seconds: float


class Finding(NamedTuple):
    """One case and what came of it; `broken` says which rule it broke, if any."""

    number: int
    entry: str
    args: list[str]
    outcome: Outcome
    broken: str | None


class TooLong(BaseException):
    """The case did not end in time."""


class Scratch:
    """A home, a cache and a folder for one case after the other; the rest of it is watched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = Place(root / "case", root / "cache")
        self.env = {
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            "XDG_CACHE_HOME": str(root / "cache"),
            "MPLCONFIGDIR": str(root / "cache" / "matplotlib"),
            "FL2FAST_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        for name in ("home", "tmp", "cache", "case"):
            (root / name).mkdir()

    def renew(self) -> None:
        for path in (self.place.folder, self.place.cache / "fl2fast"):
            shutil.rmtree(path, ignore_errors=True)
        self.place.folder.mkdir()
        kept = self.root / "verdicts"
        if kept.exists():
            shutil.copytree(kept, self.place.cache / "fl2fast" / "tuned")

    def seen(self) -> dict[str, tuple[int, int]]:
        """Everything but the cache, with sizes and times."""
        found = {}
        for folder, folders, files in os.walk(self.root):
            if folder == str(self.root):
                folders.remove("cache")
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                stat = os.lstat(path)
                changed = 0 if name in folders else stat.st_mtime_ns
                found[os.path.relpath(path, self.root)] = (stat.st_size * bool(changed), changed)
        return found


def run_inside(args: list[str]) -> Outcome:
    """In this process; whatever escapes it but an exit is shown as a traceback."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors=e) for e in ("strict", "replace"))
    code, started = None, time.perf_counter()

    def stop(number: int, frame: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            fl2fast(args)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        err.write(traceback.format_exc())
    finally:
        signal.alarm(0)
    seconds = time.perf_counter() - started
    return Outcome(code, _written(out), _written(err), seconds)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.detach().getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]


def run_process(args: list[str], scratch: Scratch) -> Outcome:
    """As a process of its own, with limits to its time and its address space."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    started = time.perf_counter()
    command = [sys.executable, "-m", "fl2fast", *args]
    try:
        done = subprocess.run(
            command,
            cwd=scratch.place.folder,
            env=os.environ | scratch.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROCESS_LIMIT,
            preexec_fn=limit,
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, "", "it did not end in time", time.perf_counter() - started)
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return Outcome(done.returncode, out, err, time.perf_counter() - started)


def judge(
    case: Case, outcome: Outcome, before: dict[str, Any], after: dict[str, Any]
) -> str | None:
    """Which rule an outcome breaks."""
    if outcome.code is None or "Traceback" in outcome.stderr:
        return "no clean end"
    left = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    if outcome.code == 2:
        lines = outcome.stderr.splitlines()
        said = [line for line in lines if not PROGRESS.fullmatch(line)]
        if len(said) != 1 or lines[-1:] != said or not said[0].startswith("fl2fast: "):
            return "not one sentence"
        if len(said[0]) > LONGEST or not said[0].isprintable():
            return "a sentence that cannot be read"
    elif outcome.code not in case.accepted:
        return f"exit code {outcome.code}"
    names = case.kept if outcome.code == 2 else (*case.kept, *case.made)
    allowed = tuple(f"case/{name}" for name in names)
    other = [path for path in left if not path.startswith(allowed)]
    return f"it left {min(other)}" if other else None


@contextmanager
def in_scratch() -> Iterator[Scratch]:
    """A scratch folder that this process lives in until the end of the block."""
    cwd, env, threads = Path.cwd(), dict(os.environ), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as root:
        scratch = Scratch(Path(root))
        os.environ.update(scratch.env)
        tempfile.tempdir = None  # it is to look at TMPDIR again
        torch.set_num_threads(1)
        try:
            yield scratch
        finally:
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(env)
            tempfile.tempdir = None
            torch.set_num_threads(threads)


def keep_verdicts(scratch: Scratch) -> None:
    """Time what the tiny runs would, once; cases start with these verdicts."""
    scratch.renew()
    case = verdicts(Random(0), scratch.place)  # there are none yet that could be damaged
    os.chdir(scratch.place.folder)
    done = run_inside(case.args)
    assert done.code == 0, done.stderr
    tuned = scratch.place.cache / "fl2fast" / "tuned"
    with suppress(FileNotFoundError):
        shutil.copytree(tuned, scratch.root / "verdicts")


def attack(seed: int, numbers: Sequence[int], scratch: Scratch) -> Iterator[Finding]:
    """These cases in this process."""
    largest = peak_memory()
    for number in numbers:
        scratch.renew()
        os.chdir(scratch.place.folder)
        entry, case = make_case(seed, number, scratch.place)
        before = scratch.seen()
        outcome = run_inside(case.args)
        broken = judge(case, outcome, before, scratch.seen())
        if peak_memory() > largest + GROWTH:
            broken = broken or f"it took {(peak_memory() - largest) >> 20} MiB"
        largest = peak_memory()
        yield Finding(number, entry, case.args, outcome, broken)


def attack_process(seed: int, number: int) -> Finding | None:
    """The case as a process; None if its words cannot be a process's arguments."""
    with tempfile.TemporaryDirectory() as root:
        scratch = Scratch(Path(root))
        entry, case = make_case(seed, number, scratch.place)
        try:
            arguments = [os.fsencode(arg) for arg in case.args]
        except UnicodeEncodeError:
            return None
        if any(b"\0" in argument for argument in arguments):
            return None
        before = scratch.seen()
        outcome = run_process(case.args, scratch)
        return Finding(
            number, entry, case.args, outcome, judge(case, outcome, before, scratch.seen())
        )


def peak_memory() -> int:
    """Bytes of this process at its largest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def table(findings: Sequence[Finding], kind: str) -> list[dict[str, Any]]:
    """A row for every entry point."""
    rows = []
    for entry in GENERATORS:
        own = [f for f in findings if f.entry == entry]
        if own:
            refused = sum(f.outcome.code == 2 for f in own)
            rows.append(
                {
                    "entry": entry,
                    "run": kind,
                    "cases": len(own),
                    "refused": refused,
                    "accepted": len(own) - refused,
                    "worst_seconds": round(max(f.outcome.seconds for f in own), 2),
                    "broken": sum(f.broken is not None for f in own),
                }
            )
    return rows


def attack_processes(seed: int, count: int) -> Iterator[Finding]:
    """The first cases that can be processes, two at a time."""
    found = 0
    with ThreadPoolExecutor(2) as pool:
        for first in range(0, 2 * count + 100, 20):
            for finding in pool.map(lambda n: attack_process(seed, n), range(first, first + 20)):
                if finding is not None and found < count:
                    found += 1
                    yield finding
            if found == count:
                return


def show(finding: Finding) -> None:
    outcome = finding.outcome
    click.echo(f"case {finding.number} ({finding.entry}): {finding.broken or 'as it should be'}")
    click.echo(f"  exit code {outcome.code} after {outcome.seconds:.2f} s")
    for line in outcome.stderr.splitlines()[-30:]:
        click.echo(f"  {line[:300]}")


def run_all(seed: int, count: int, processes: int) -> tuple[list[dict[str, Any]], list[Finding]]:
    """The rows of the table, and the cases that broke a rule."""
    found: list[Finding] = []
    with in_scratch() as scratch:
        keep_verdicts(scratch)
        for finding in attack(seed, range(count), scratch):
            found.append(finding)
            if finding.broken:
                show(finding)
    own = list(attack_processes(seed, processes))
    for finding in own:
        if finding.broken:
            show(finding)
    rows = table(found, "inside") + table(own, "process")
    return rows, [finding for finding in found + own if finding.broken]


@click.command()
@click.option("--count", default=10_000, show_default=True, help="Cases in this process.")
@click.option("--processes", default=200, show_default=True, help="Cases as processes.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", type=int, help="Run the case of this number alone, and show what it says.")
def main(count: int, processes: int, seed: int, only: int | None) -> None:
    if only is not None:
        with in_scratch() as scratch:
            keep_verdicts(scratch)
            for finding in attack(seed, [only], scratch):
                click.echo(f"fl2fast {' '.join(map(repr, finding.args))}")
                show(finding)
        return
    started = time.perf_counter()
    rows, broken = run_all(seed, count, processes)
    click.echo(
        f"{'entry point':<28}{'run':<9}{'cases':>7}{'refused':>9}{'accepted':>10}{'worst':>9}"
    )
    for row in rows:
        click.echo(
            f"{row['entry']:<28}{row['run']:<9}{row['cases']:>7,}{row['refused']:>9,}"
            f"{row['accepted']:>10,}{row['worst_seconds']:>7.2f} s"
        )
    about = {"seed": seed, "seconds": round(time.perf_counter() - started, 1)}
    about |= {"peak_memory_mib": peak_memory() >> 20, "broken": [f.number for f in broken]}
    click.echo(f"peak memory {about['peak_memory_mib']:,} MiB, {about['seconds']:,} s in all")
    click.echo(f"recorded in {write_record('hostile', rows, **about)}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
