"""fl2fast list, fl2fast show"""

import click

from fl2fast.catalogue import describe_method, entries


@click.command("list")
@click.argument("kind")
def list_command(kind: str) -> None:
    """Name all methods, models, datasets, partitions or presets."""
    found = entries(kind)
    width = max(map(len, found)) + 2
    for name, line in found.items():
        click.echo(f"{name:<{width}}{line}")


@click.command("show")
@click.argument("method")
def show_command(method: str) -> None:
    """Print what METHOD computes, its options and where it comes from."""
    found = describe_method(method)
    click.echo(f"{found.name}\n\n{found.text}\n\n{found.module}\n")
    click.echo("options" if found.options else "no options")
    for option in found.options:
        choices = f"  ({', '.join(map(str, option.choices))})" if option.choices else ""
        click.echo(f"  {option.name:<20}{option.default}{choices}")
    if found.protocol:
        own = ", ".join(f"{name} = {value}" for name, value in found.protocol.items())
        click.echo(f"\nsettings of its own, unless you give others: {own}")
    click.echo(f"\nreference: {found.reference}")
