"""`privet federate`: a plan and a task in, a federation of simulated clients out."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet._text import format_outward
from privet.cli.common import PATH, free_folder, integer, number, print_lines, print_object, progress_bar
from privet.errors import InvalidValue

if TYPE_CHECKING:
    from privet.federated import Federated

TRUST = {
    "client": "trust: the server sees each client's update before noise, and the coins; everybody else sees the model",
    "example": "trust: no client need trust anyone; what it sends is noisy already, and only its own disk has more",
}


@click.command("federate", short_help="A plan and a task in, a federation of clients out.")
@click.option("--plan", "plan_file", type=PATH, metavar="FILE", help="A plan of `privet plan`.")
@click.option("--resume", type=PATH, metavar="FOLDER", help="Go on with one; --rounds for more.")
@click.option("--out", type=PATH, metavar="FOLDER", help="The federation's folder. Default: runs/federated.")
@click.option("--task", metavar="NAME", help="What to train on: digits (default), mnist, ..., or my.module:task.")
@click.option("--model", metavar="NAME", help="Another network than the task's.")
@click.option("--clients", type=integer, help="How many. With --unit client: the plan's size.")
@click.option("--rounds", type=integer, help="How many. Default: those of the plan.")
@click.option("--split", metavar="NAME", help="Who has which records: iid (default), dirichlet:alpha=0.5, user.")
@click.option("--algorithm", metavar="NAME", help="Of clients under --unit client: fedavg (default) or fedsgd.")
@click.option("--local-epochs", type=integer, help="FedAvg: epochs of a client in a round. Default: 1.")
@click.option("--local-batch", type=integer, help="FedAvg: batch of a client. Default: 32.")
@click.option("--local-lr", type=number, help="Learning rate of clients. Default: 0.1.")
@click.option("--local-steps", type=integer, help="--unit example: private steps of a client in a round. Default: 1.")
@click.option("--sample", type=number, help="--unit example: the chance that a client is asked. Default: 1.")
@click.option("--optimizer", metavar="NAME", help="Of the server: sgd (default), adam, ...")
@click.option("--lr", type=number, help="Of the server. Default: 1 for fedavg, 0.1 for fedsgd.")
@click.option("--momentum", type=number, help="Of the server. Default: 0.")
@click.option("--evaluate-every", type=integer, help="Rounds between evaluations. Default: a twentieth of all.")
@click.option("--dropout", type=number, help="Simulated: the chance that a client does not answer. Default: 0.")
@click.option("--more", metavar="ROUNDS", help="--unit example: also show what so many more rounds would cost: 50,100.")
@click.option("--data-dir", type=PATH, metavar="FOLDER", help="Where files of datasets are.")
@click.option("--seed", type=click.IntRange(0), help="A reproducible federation, which is not private.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def federate_command(
    *, plan_file: Path | None, resume: Path | None, out: Path | None, more: str | None, data_dir: Path | None,
    seed: int | None, as_json: bool, **flags: Any,
) -> int:  # fmt: skip
    """Train with clients that keep their records: all in this process, with ledgers that no crash can overspend.

    A plan with --unit client protects whole clients: the server samples them at the plan's rate, clips each update, and
    adds one noise. With --unit example each client protects its own records with its own plan and its own ledger.
    examples/federated/ runs the same over the network, on Flower.

    \b
    Examples:
      privet plan --unit client --size 100 --batch 20 --steps 200 --epsilon 8 --delta 1e-3 --out plan.json
      privet federate --plan plan.json --task mnist --clients 100 --rounds 200
      privet federate --resume runs/federated
    """
    from privet.data import DataFolders

    where, rounds = DataFolders(folder=data_dir), flags["rounds"]
    extra = [] if more is None else [integer(word.strip()) for word in more.split(",")]
    with progress_bar("federating") as bar:

        def tell(line: Mapping[str, Any]) -> None:
            _tell(line, bar)

        if resume is not None:
            from privet.federated.federate import resume_federation

            given = flags | {"plan": plan_file, "out": out, "seed": seed, "rounds": None}
            wrong = next((name for name, value in given.items() if value is not None), None)
            if wrong is not None:
                raise InvalidValue(
                    f"--{wrong.replace('_', '-')} is given beside --resume. It goes on as it began. Leave it out."
                )
            found = resume_federation(resume, rounds=rounds, where=where, tell=tell)
        else:
            found = _begin(plan_file, out, seed, flags, where=where, tell=tell)
    _print(found, extra, as_json=as_json)
    return 0 if found.is_over else 130


def _begin(
    plan_file: Path | None, out: Path | None, seed: int | None, flags: dict[str, Any], **how: Any
) -> "Federated":
    from privet.federated.federate import federate
    from privet.planning import Plan

    if plan_file is None:
        raise InvalidValue(
            "--plan is missing. It says what may be spent, and on whom. Make one with `privet plan --unit client --size"
            " CLIENTS --batch CLIENTS_IN_A_ROUND --steps ROUNDS`, or go on with --resume."
        )
    plan = Plan.load(plan_file)
    if flags["clients"] is None and plan.recipe.budget.unit == "client":
        flags["clients"] = plan.recipe.dataset_size
    return federate(
        plan, flags.pop("task"), out=out or free_folder(Path("runs"), "federated"), seed=seed, **flags, **how
    )


def _tell(line: Mapping[str, Any], bar: Any) -> None:
    words = [f"round {line['step']}"]
    words += [f"{k.removeprefix('held_out_')} {v:.4f}" for k, v in line.items() if k.startswith("held_out_")]
    if "epsilon" in line:
        side = "<= " if line["label"] == "certified" else ""
        words.append(f"epsilon {side}{format_outward(line['epsilon'], up=True, digits=4)} {line['label']}")
    if bar is not None:
        bar("  ".join(words))
    else:
        click.echo("  ".join(words), err=True)


# --- what is said at the end -------------------------------------------------------------------------
def _print(found: "Federated", more: list[int], *, as_json: bool) -> None:
    from privet.federated.example_level import epsilon_distribution

    unit = found.plan.recipe.budget.unit
    spread = epsilon_distribution(found.standing) if unit == "example" else None
    outlook = _outlook(found, more) if more else []
    if as_json:
        print_object({
            "folder": str(found.folder), "task": found.settings.task, "clients": found.settings.clients, "unit": unit,
            "rounds": found.rounds, "planned": found.planned, "over": found.is_over, "private": found.seed is None,
            "guarantee": found.guarantee.as_dict(), "spent": None if found.spent is None else found.spent.as_dict(),
            "distribution": spread, "more": outlook, "held_out": found.scores, "notes": list(found.notes),
            "trust": TRUST[unit],
        })  # fmt: skip
        return
    said = "is over" if found.is_over else "was stopped"
    click.echo(
        f"the federation {said}: {found.rounds} of {found.planned} rounds of {found.settings.task}, "
        f"{found.settings.clients} clients"
    )
    print_lines(_lines(found, spread, outlook))


def _lines(
    found: "Federated", spread: dict[str, float | int] | None, outlook: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    from privet.federated.example_level import weakest_label
    from privet.training.progress import format_scores

    lines = [("guarantee", str(found.guarantee))]
    if found.seed is not None:
        lines.append(("seed", f"{found.seed}: reproducible, not private"))
    if found.spent is not None and (spread is not None or found.rounds < found.planned):
        lines.append(("spent", f"{found.spent}, if the moment to stop was fixed beforehand"))
    if spread is not None and "most" in spread:
        names = ("least", "quarter", "median", "three quarters", "most")
        values = ", ".join(f"{name} {format_outward(float(spread[name]), up=True, digits=4)}" for name in names)
        lines.append(("clients", f"epsilon so far [{weakest_label(found.standing)}]: {values}"))
        lines.append(("", f"{spread['clients']} took part, {spread['stopped']} have spent or refused their plan"))
    for row in outlook:
        lines.append(("more", f"{row['rounds']} more rounds: {row['text']}"))
    lines += [("torn", note) for note in found.notes]
    if found.scores is not None:
        lines.append(("held-out", ", ".join(format_scores(found.scores))))
    lines.append(("trust", TRUST[found.plan.recipe.budget.unit].removeprefix("trust: ")))
    lines.append(("folder", str(found.folder)))
    if not found.is_over:
        lines.append(("next", f"privet federate --resume {found.folder}"))
    return lines


def _outlook(found: "Federated", rounds: list[int]) -> list[dict[str, Any]]:
    """What more rounds would cost the records of a client of the plan's size: what it asks before it agrees."""
    from privet.planning.frontier import extend_rounds

    each = found.settings.local_steps if found.plan.recipe.budget.unit == "example" else 1
    asked = extend_rounds(found.plan, [count * each for count in rounds])
    return [
        {"rounds": row.rounds // each, "guarantee": row.guarantee.as_dict(), "text": str(row.guarantee)}
        for row in asked.rows
    ]
