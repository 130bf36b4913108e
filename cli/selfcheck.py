"""fl2fast selfcheck"""

import tempfile
from pathlib import Path

import click

from fl2fast.selfcheck import selfcheck


@click.command("selfcheck")
@click.option("--method", help="As in fl2fast train.")
@click.option("--lowering", help="As in fl2fast train.")
@click.option("--device", help="As in fl2fast train.")
def selfcheck_command(**flags: str | None) -> int:
    """Prove on this machine that equal runs, and killed and resumed ones, have equal bytes.

    A tiny federation on streetdigits; exit code 1 if a promise is broken.
    """
    changes = {name: value for name, value in flags.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        verdicts = selfcheck(Path(folder), click.echo, **changes)
    for verdict in verdicts:
        differing = ", ".join(verdict.differing)
        kept = "byte for byte the same" if not differing else f"DIFFERS in {differing}"
        click.echo(f"{verdict.what}: {kept}")
    return int(any(verdict.differing for verdict in verdicts))
