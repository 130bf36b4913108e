"""fl2fast verify TRACE.npz"""

from pathlib import Path

import click

from fl2fast.cli.paths import PATH
from fl2fast.models.lowering import LOWERINGS
from fl2fast.verify import Trace, verify


@click.command("verify")
@click.argument("trace", type=PATH)
@click.option("--lowering", type=click.Choice([*LOWERINGS, "all"]), default="all")
@click.option("--dtype", type=click.Choice(["float64", "float32"]), default="float64")
def verify_command(trace: Path, lowering: str, dtype: str) -> int:
    """Replay a recorded round and compare every array; exit 1 if one is off."""
    recorded = Trace(trace)
    names = list(LOWERINGS) if lowering == "all" else [lowering]
    failed = 0
    for name in names:
        click.echo(f"{name}, {dtype}")
        for check in verify(recorded, name, dtype):
            limit = "shown only" if check.tolerance is None else f"<= {check.tolerance:g}"
            verdict = "ok" if check.passed else "OFF"
            click.echo(f"  {check.stage:<22}{check.error:>10.2e}  {limit:<12}{verdict}")
            failed += not check.passed
    click.echo("every array agrees" if not failed else f"{failed} stages are off")
    return int(failed > 0)
