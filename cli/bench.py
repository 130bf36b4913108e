"""fl2fast bench"""

import importlib
import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import click

from fl2fast.errors import UsageError

SUITES = ("step", "round", "seeds", "ragged", "peers")


@click.command("bench", context_settings={"ignore_unknown_options": True})
@click.argument("suite", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print the records; the rest to stderr.")
def bench_command(suite: str | None, options: tuple[str, ...], as_json: bool) -> None:
    """Measure SUITE (step, round, seeds, ragged or peers; default: all) and record it.

    The suites are the programs of benchmarks/, so this runs in a clone of the repository; OPTIONS
    are theirs (python -m benchmarks.step --help). A record holds machine, versions and date.
    """
    if suite is not None and suite not in SUITES:
        raise UsageError(f"unknown suite {suite!r}: choose {', '.join(SUITES)}, or none for all")
    if not Path("benchmarks/harness.py").is_file():
        raise UsageError(
            f"{str(Path.cwd())!r} has no benchmarks/: run this in a clone of the repository"
        )
    sys.path.insert(0, str(Path.cwd()))
    for name in (suite,) if suite else SUITES:
        try:
            module = importlib.import_module(f"benchmarks.{name}")
        except ImportError as error:
            raise UsageError(
                f"the benchmarks/ of {str(Path.cwd())!r} cannot be imported ({error}): run this in "
                "a clone of the repository"
            ) from error
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            module.main.main(
                list(options), prog_name=f"fl2fast bench {name}", standalone_mode=False
            )
        if as_json:
            record = importlib.import_module("benchmarks.harness").latest_record(name)
            click.echo(json.dumps(record, indent=2))
