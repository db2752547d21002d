"""The command line: parse, call one verb, print. A user's mistake is one line on standard error and exit code 2.

One file per command. Nothing heavy is imported until a command needs it, so that `privet --help` is quick.
"""

import click

from privet.cli.attack import attack_command
from privet.cli.audit import audit_command
from privet.cli.common import Commands
from privet.cli.demo import demo_command
from privet.cli.doctor import doctor_command
from privet.cli.epsilon import epsilon_command
from privet.cli.explore import compare_command
from privet.cli.federate import federate_command
from privet.cli.list import list_command
from privet.cli.plan import plan_command
from privet.cli.report import report_command
from privet.cli.serve import serve_command
from privet.cli.train import train_command
from privet.cli.tune import tune_command


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        import privet

        click.echo(f"privet {privet.__version__}")
        context.exit()


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
              help="Show the version and exit.")  # fmt: skip
@click.pass_context
def main(context: click.Context) -> None:
    """Deep learning with differential privacy (DP-SGD): plan a budget, train, and prove what was spent.

    \b
    Examples:
      privet plan --size 60000 --batch 256 --epochs 60 --epsilon 2 --delta 1e-5 --out plan.json
      privet train --plan plan.json --task digits --out runs/a
      privet epsilon --rate 256/60000 --noise 1.1 --steps 14063 --delta 1e-5
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


COMMANDS = (
    plan_command, compare_command, epsilon_command, train_command, tune_command, doctor_command, audit_command,
    attack_command, federate_command, report_command, serve_command, demo_command, list_command,
)  # fmt: skip
for command in COMMANDS:
    main.add_command(command)
