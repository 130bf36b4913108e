"""fl2fast: one entry point, one way to fail."""

import io
import sys
from contextlib import suppress

import click

from fl2fast.cli.bench import bench_command
from fl2fast.cli.data import data_command
from fl2fast.cli.demo import demo_command
from fl2fast.cli.listing import list_command, show_command
from fl2fast.cli.plan import plan_command
from fl2fast.cli.profile import profile_command
from fl2fast.cli.reproduce import reproduce_command
from fl2fast.cli.selfcheck import selfcheck_command
from fl2fast.cli.train import DIVERGED, train_command
from fl2fast.cli.tune import tune_command
from fl2fast.cli.verify import verify_command
from fl2fast.errors import UsageError, one_line
from fl2fast.guards import Diverged
from fl2fast.interrupt import EXIT_CODE


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fl2fast")
@click.pass_context
def fl2fast(context: click.Context) -> None:
    """Federated semi-supervised learning, all clients and seeds trained at once."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


fl2fast.add_command(train_command)
fl2fast.add_command(demo_command)
fl2fast.add_command(data_command)
fl2fast.add_command(verify_command)
fl2fast.add_command(selfcheck_command)
fl2fast.add_command(plan_command)
fl2fast.add_command(profile_command)
fl2fast.add_command(tune_command)
fl2fast.add_command(bench_command)
fl2fast.add_command(reproduce_command)
fl2fast.add_command(list_command)
fl2fast.add_command(show_command)


def main(args: list[str] | None = None) -> None:
    """Run the command; bad input is one sentence on stderr and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a path need not be text
    try:
        code = fl2fast.main(args, prog_name="fl2fast", standalone_mode=False)
    except UsageError as error:
        code = _refuse(str(error))
    except click.ClickException as error:
        code = _refuse(error.format_message())
    except Diverged as error:
        code = _refuse(str(error), DIVERGED)
    except (click.Abort, KeyboardInterrupt) as error:
        told = error.__cause__ if isinstance(error, click.Abort) else error
        code = _refuse(str(told or "") or "interrupted", EXIT_CODE)
    sys.exit(code)


def _refuse(message: str, code: int = 2) -> int:
    with suppress(BrokenPipeError):  # the code says it too
        click.echo(f"fl2fast: {one_line(message)}", err=True)
    return code
