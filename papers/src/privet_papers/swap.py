"""`privet swap`: the noise that other accountants allow at the epsilon of a plan."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privet.cli.recipe_options import recipe_in
from privet.cli.shell import PATH, print_object, warnings_as_lines

if TYPE_CHECKING:
    from privet.published.noise_swap import Swap

COLUMNS = "  {:<12} {:<12} {:>10} {:>8}   {}"


@click.command("swap", short_help="The noise another accountant allows at the same epsilon.")
@click.argument("source", metavar="PLAN", type=PATH)
@click.option("--to", "to", default="pld,rdp,gdp", show_default=True, metavar="NAMES",
              help="Accountants, with commas between.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def swap_command(*, source: Path, to: str, as_json: bool) -> None:
    """The noise that other accountants allow at the epsilon and delta of a plan, and what is proven of it.

    PLAN is a plan (JSON) or a recipe (TOML). The noise is the height of its shape. A noise that is not certified may
    cost more than the budget: the last column says what it costs.

    \b
    Examples:
      privet swap plan.json --to gdp,rdp
      privet swap recipe.toml --to moments --json
    """
    from privet.planning import Plan, plan
    from privet.planning.plan_file import is_plan
    from privet.planning.question import Question
    from privet.published.noise_swap import Swap, swap

    names = list(dict.fromkeys(name.strip() for name in to.split(",") if name.strip()))
    if not names:
        raise click.UsageError("--to names no accountant. Give --to gdp,rdp, say.")
    with warnings_as_lines():
        before = Plan.load(source) if is_plan(source) else plan(recipe_in(source, {}))
        own = Question(before.recipe).accountant
        same = Swap(before=before, after=before)
        found = [same, *(swap(before, accountant=name) for name in names if name != own)]
    if as_json:
        epsilon, delta = before.guarantee.epsilon, before.guarantee.delta
        print_object(
            {"epsilon": epsilon, "delta": delta, "hash": before.hash, "rows": [row.as_dict() for row in found]}
        )
        return
    from privet.accounting.guarantee import printed

    click.echo(f"the plan: {before.guarantee}")
    click.echo(COLUMNS.format("accountant", "label", "noise", "ratio", "certified epsilon at that noise"))
    for row in found:
        label, proven = row.after.guarantee.label, _proven(row)
        click.echo(COLUMNS.format(row.accountant, label, printed(row.after.scale, up=True), f"{row.ratio:.4f}", proven))


def _proven(row: "Swap") -> str:
    """What is certified of a row, and visibly so if it is too much."""
    from privet.accounting.guarantee import rounded

    if row.after.certified is None or row.excess is None:
        return "none"
    found = rounded(row.after.certified.epsilon, up=True)
    share = rounded(100 * row.excess, up=True, digits=2)
    return found if not row.excess else f"{found}  OVER BUDGET by {share} %"
