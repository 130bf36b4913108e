"""fl2fast demo"""

from pathlib import Path

import click

from fl2fast.cli.paths import PATH
from fl2fast.cli.progress import progress
from fl2fast.demo import demo
from fl2fast.run_folder import free_folder


@click.command("demo")
@click.option("--out", type=PATH, help="Folder; new or empty.")
def demo_command(out: Path | None) -> None:
    """Train (FL)^2 and its two bounds on the embedded dataset, three seeds each."""
    out = out or free_folder("demo")
    summary = demo(out, lambda title: progress(f"{title}: "))
    config = summary["config"]
    click.echo(
        f"\ntest accuracy with {config['labels']} labels on the server and {config['clients']} "
        f"clients, mean and deviation of {config['seeds']} seeds"
    )
    for row in summary["rows"]:
        seeds = ", ".join(f"{value:.1f}" for value in row["test_accuracy"])
        click.echo(f"  {row['title']:<12}{row['mean']:6.1f} ± {row['std']:4.1f} %   ({seeds})")
    gain = summary["rows"][1]["mean"] - summary["rows"][0]["mean"]
    click.echo(f"(FL)^2 gains {gain:.1f} points over the labels alone")
    click.echo(f"{summary['wall_seconds']:.0f} s of training; curves in {out / 'curves.png'}")
