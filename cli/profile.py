"""fl2fast profile"""

from typing import Any

import click

from fl2fast.cli.options import data_dir_option, experiment_options, fetch, out_option, read_flags
from fl2fast.profile import profile
from fl2fast.run_folder import check_folder, free_folder


@click.command("profile", context_settings={"show_default": False})
@experiment_options(data_dir_option, out_option)
@click.option("--steps", type=int, default=8, help="Steps of a client that are traced (default 8).")
def profile_command(steps: int, **flags: Any) -> None:
    """Run two rounds and say where the time goes.

    The first is timed, after the warm-up. Of the second the clients' first steps are traced, on
    every thread. Writes trace.json.gz (for chrome://tracing or Perfetto) and profile.json.
    """
    asked = read_flags(flags)
    out = asked.out or free_folder(f"profile-{asked.experiment.model.replace('/', '-')}")
    check_folder(out)  # before a download
    fetch(asked)
    found = profile(asked.experiment, out, steps, asked.data_dir, say=click.echo)
    for line in describe(found):
        click.echo(line)
    click.echo(f"written to {out}")


def describe(found: dict[str, Any]) -> list[str]:
    """The figures of profile.json, to be read."""
    kinds = found["steps_by_sureness"].items()
    flops = found["flops_per_client_step"]
    launches = found["launches_per_client_step"]
    rows = [
        *((f"warm-up: {name}", f"{s:.2f} s") for name, s in found["warm_up_seconds"].items()),
        *((name, f"{s:.2f} s") for name, s in found["round_seconds"].items()),
        ("client-steps timed", f"{found['client_steps']:,}, {found['images']:,} images"),
        ("with no, some, all rows sure", ", ".join(f"{number:,}" for _, number in kinds)),
        ("MFLOP of such a step", ", ".join(f"{value / 1e6:,.1f}" for value in flops.values())),
        (
            "ops dispatched per client-step",
            f"{found['dispatched_per_client_step']:,.1f}, of which "
            f"{found['computing_per_client_step']:,.1f} compute",
        ),
        *([] if launches is None else [("kernel launches per client-step", f"{launches:,.1f}")]),
        ("local training", f"{found['flops_per_second'] / 1e9:,.1f} GFLOP/s, views included"),
        ("a large matrix product", f"{found['matmul_flops_per_second'] / 1e9:,.1f} GFLOP/s"),
        ("share of it", f"{found['percent_of_matmul']:.1f} %"),
        ("peak memory", f"{found['peak_memory_bytes'] / 2**30:.2f} GiB"),
    ]
    return [f"  {name:<34}{value}" for name, value in rows]
