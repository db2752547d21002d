"""`privet audit`: a claim tested by attack."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet.cli import common
from privet.cli.common import PATH, integer, number
from privet.cli.recipe_options import JSON, option, words_of

if TYPE_CHECKING:
    from privet.auditing import Audit

_KINDS = {"distinguish": "step"}
FOUND = 3  # the exit code of --fail-on-violation


@click.command("audit", short_help="Test a privacy guarantee by attack.")
@option("--method", metavar="NAME", help="A published method; see `privet list methods`.")
@option("--uncertified", "uncertified", former=("--as-published",), is_flag=True,
        help="With --method: the paper's own clipping rule, which may have no guarantee.")  # fmt: skip
@option("--control", metavar="NAME", help="A mechanism with a known fault, which the audit must find.")
@option("--plan", "plan_file", type=PATH, metavar="FILE", help="A plan (JSON).")
@option("--run", "folder", type=PATH, metavar="FOLDER", help="A training run's folder.")
@option("--kind", "kinds", metavar="KINDS", help="Of replay, distinguish (or step) and one-run, with commas between "
        "them. Default: replay and step; for plans and runs of at most 2,000 steps also one-run.")  # fmt: skip
@option("--samples", type=integer, default=2000, show_default=True, help="Samples of each of two neighbouring "
        "datasets, for distinguish.")  # fmt: skip
@option("--canaries", type=integer, default=1000, show_default=True, help="Number of canaries, for one-run.")
@option("--task", metavar="NAME", help="For one-run: canaries are mislabelled examples of this task.")
@option("--significance", "significance", former=("--alarm",), type=number, default="1e-3", show_default=True,
        help="Significance level: false-positive rate per test.")  # fmt: skip
@option("--delta", type=number, default="1e-5", show_default=True, help="Delta of the direct bounds.")
@option("--seed", type=click.IntRange(min=0), help="Seed of sampling and noise, for a reproducible audit.")
@option("--fail-on-violation", is_flag=True, help=f"Exit with {FOUND} if the verdict is `violation`.")
@JSON
def audit_command(
    *, method: str | None, uncertified: bool, control: str | None, plan_file: Path | None, folder: Path | None,
    kinds: str | None, fail_on_violation: bool, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Test by attack whether a mechanism leaks more than its guarantee allows.

    replay runs neighbouring datasets with the same noise; distinguish tests the claimed trade-off curve by samples of
    one step; one-run guesses which of many canaries were in one run of the real training loop. The verdict is
    `consistent`, `violation`, or `inconclusive` with the sample size that would decide. A violation is a finding: the
    exit code stays 0.

    \b
    Examples:
      privet audit --method dynamic
      privet audit --method auto-linear --uncertified
      privet audit --control realised-batch
      privet audit --plan plan.json --kind replay,step,one-run
    """
    chosen = {"--method": method, "--control": control, "--plan": plan_file, "--run": folder}
    given = [name for name, value in chosen.items() if value is not None]
    if len(given) != 1:
        raise click.UsageError("Give one of --method, --control, --plan and --run.")
    if uncertified and method is None:
        raise click.UsageError("--uncertified needs --method.")
    names = None if kinds is None else [_KINDS.get(kind, kind) for kind in words_of("--kind", kinds)]
    with common.warnings_as_lines(), common.progress("auditing") as tell:
        found = _audit(given[0], chosen[given[0]], kinds=names, uncertified=uncertified, progress=tell, **options)
    if as_json:
        common.print_object(found.as_dict())
    else:
        click.echo(str(found))
    if folder is not None:
        from privet.reporting.evidence import store_audit
        from privet.training.run import Run

        common.keep_for_report(lambda: store_audit(Run.load(folder), found, {"kinds": kinds} | options))
    return FOUND if fail_on_violation and found.verdict == "violation" else 0


def _audit(option: str, value: Any, *, task: str | None, seed: int | None, **options: Any) -> "Audit":
    from privet.auditing import audit, broken_mechanisms
    from privet.data.task import task as task_of
    from privet.noise.randomness import Randomness
    from privet.planning import method

    if option == "--method":  # a method is looked for among methods, a control among controls: each has its own list
        method(value)
    elif option == "--control":
        broken_mechanisms.registry.maker(value)
    elif option == "--plan":
        value = common.load(value, None)
    else:
        value = common.load(None, value)
    if task is not None and option not in ("--plan", "--run"):
        raise click.UsageError("--task needs --plan or --run: one-run is a run of a plan.")
    return audit(
        value, task=None if task is None else task_of(task), randomness=None if seed is None else Randomness(seed),
        **options,
    )  # fmt: skip
