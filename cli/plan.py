"""fl2fast plan"""

import json
from functools import partial
from typing import Any

import click

from fl2fast.cli.options import experiment_options, read_flags
from fl2fast.forecast import forecast
from fl2fast.roofline import EFFICIENCY, GPUS


@click.command("plan", context_settings={"show_default": False})
@experiment_options()
@click.option(
    "--assume",
    type=click.Choice(["none", "some", "all"]),
    default="some",
    help="Rows of a client's batch that are sure; some (default) is the dearest.",
)
@click.option("--gpu", multiple=True, help=", ".join(GPUS) + "; repeatable (default: all).")
@click.option("--memory", type=float, help="GiB of another device, for the largest --chunk.")
@click.option("--no-here", is_flag=True, help="Do not time a step on this device.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan_command(
    assume: Any,
    gpu: tuple[str, ...],
    memory: float | None,
    no_here: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Say what a run will cost: operations, memory and time.

    Needs no data. Every client's rows are taken to be accepted, which is the most it can cost.
    """
    made = read_flags(flags).experiment
    say = partial(click.echo, err=True)  # stdout is the forecast's
    found = forecast(made, assume=assume, gpus=gpu, memory_gib=memory, here=not no_here, say=say)
    for line in [json.dumps(found, indent=2)] if as_json else describe(found):
        click.echo(line)


def describe(found: dict[str, Any]) -> list[str]:
    """The forecast, to be read."""
    here, memory = found["here"], found["memory"]
    lines = [f"{'':<18}{'GFLOP':>12}" + (f"{'seconds here':>16}" if here else "")]
    for name, flops in found["flops"].items():
        seconds = f"{here[name]:>16,.1f}" if here else ""
        lines.append(f"  {name:<16}{flops / 1e9:>12,.1f}{seconds}")
    lines += ["", f"{'':<18}{'MiB':>12}"]
    lines += [f"  {name:<16}{size / 2**20:>12,.1f}" for name, size in memory.items()]
    lines += [f"  largest --chunk {found['largest_chunk']:>13}", ""]
    lines.append(
        f"seconds of a round and hours of the run by a roofline at {EFFICIENCY:.0%} of the"
    )
    lines.append("published peaks, views not included: a prediction, never measured")
    for name, row in found["roofline"].items():
        cells = (f"{p} {t['round']:,.2f} s {t['run'] / 3600:,.2f} h" for p, t in row.items())
        lines.append(f"  {name:<10}" + "   ".join(cells))
    return lines
