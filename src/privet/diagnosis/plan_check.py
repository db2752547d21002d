"""A look at a plan before training: does it fit the dataset, the optimizer and the number of parameters?

Plan and dataset go through the very gates that `Training` has. Of the dataset its length is read, and no record.
"""

import math
from collections.abc import Iterator

from torch import nn
from torch.optim import Optimizer

from privet.clipping.rule import bounded, clipping_rule
from privet.diagnosis.model_check import ModelIssue, issue_from_error, sort_by_severity
from privet.errors import PrivetError
from privet.per_example.gradients import unwrap_model
from privet.per_example.model_facts import trainable_parameters
from privet.planning import Plan
from privet.sampling.samplers import sampler
from privet.sampling.users import UserIds, user_sampler
from privet.training.checks import check_optimizer, check_rule, check_unit

MUCH_NOISE = 10.0  # times the longest average gradient: a rule of thumb, no theorem


def examine_optimizer(optimizer: Optimizer, model: nn.Module) -> tuple[ModelIssue, ...]:
    """What `Training` would say of this optimizer. Momentum, weight decay and schedulers need no data: they are free.

    >>> import torch
    >>> model = nn.Linear(3, 2)
    >>> [f.severity for f in examine_optimizer(torch.optim.LBFGS(model.parameters()), model)]
    ['stop']
    """
    inner = unwrap_model(model)
    try:
        check_optimizer(optimizer, trainable_parameters(inner), inner)
    except PrivetError as error:
        return (issue_from_error("optimizer", error),)
    why = "Weight decay reads weights alone: it costs nothing."
    note = ModelIssue(severity="note", where="optimizer", why=why)
    return (note,) if any(group.get("weight_decay") for group in optimizer.param_groups) else ()


def examine_plan(
    plan: Plan, *, records: int | None = None, users: UserIds | None = None, rows: int | None = None,
    parameters: int | None = None,
) -> tuple[ModelIssue, ...]:  # fmt: skip
    """What does not fit between a plan and a dataset of `records`; `rows` of a loop's own batch, `parameters` to train.

    >>> from privet import plan
    >>> p = plan(epsilon=2.0, delta=1e-5, dataset_size=60000, batch_size=256, epochs=15)
    >>> [(f.severity, f.way_out) for f in examine_plan(p, records=50000)]
    [('stop', "Plan with this size, or for adjacency='add-remove'.")]
    """
    found = list(_gate_issues(plan, records, users, rows))
    found += _budget_issues(plan, users)
    sampling = plan.steps.sampling
    if sampling.name != "poisson":
        found.append(ModelIssue(
            severity="note", where="plan", why=f"Batches are drawn by {sampling} sampling, and priced for it.",
            way_out="A loader of your own must not draw them: iterate over Training." if sampling.name != "shuffled"
            else "A run can be taken up between two epochs only. Poisson sampling costs less.",
        ))  # fmt: skip
    if rows is not None and abs(rows - plan.batch_size) >= 0.5:
        found.append(ModelIssue(
            severity="note", where="plan",
            why=f"The batch given has {rows} rows; the plan expects {plan.batch_size:.6g}.",
            way_out="Training draws the plan's batches; the rate is not that of your loader.",
        ))  # fmt: skip
    if parameters:
        found += _noise_issues(plan, parameters)
    return sort_by_severity(found)


def _gate_issues(plan: Plan, records: int | None, users: UserIds | None, rows: int | None) -> Iterator[ModelIssue]:
    try:
        check_rule(bounded(clipping_rule(plan.rule)).is_uncertified, plan)
    except PrivetError as error:
        yield issue_from_error("plan", error)
    unit = plan.recipe.budget.unit
    if records is None and (rows is None or unit != "client"):
        return  # nothing is known of the records
    try:
        check_unit(plan, records or 0, users if unit == "user" else None)
        if unit == "user" and users is not None:
            user_sampler(plan, users=users)
        else:
            sampler(plan, records=records or 0)
    except PrivetError as error:
        yield issue_from_error("dataset", error)


def _budget_issues(plan: Plan, users: UserIds | None) -> Iterator[ModelIssue]:
    budget, size = plan.recipe.budget, plan.recipe.dataset_size
    if budget.delta >= 1 / size:
        yield ModelIssue(
            severity="warn", where="plan",
            why=f"delta={budget.delta:g} is not below 1/{size}: publishing one {budget.unit} in full would be allowed.",
            way_out=f"Plan with delta=1/(10 size)={0.1 / size:.3g} or less.",
        )  # fmt: skip
    if budget.unit == "example" and users is not None:
        yield ModelIssue(
            severity="note", where="plan",
            why="Records have owners, and the plan protects single records: one who owns several has less.",
            way_out="Plan with unit='user', and size the number of users.",
        )  # fmt: skip
    if budget.adjacency == "add-remove":
        why = "Under add-remove the number of records is private: it was not compared with the plan."
        yield ModelIssue(severity="note", where="plan", why=why)


def _noise_issues(plan: Plan, parameters: int) -> Iterator[ModelIssue]:
    """Expected noise over the largest average gradient, both in units of the clip: noise sqrt(d) / batch."""
    times = math.sqrt(parameters) * float(plan.steps.noise_multipliers[0]) / plan.batch_size
    if times > MUCH_NOISE:
        yield ModelIssue(
            severity="note", where="plan",
            why=f"The noise of a step is about {times:.0f} times as long as the longest average gradient "
            f"(noise sqrt(parameters) / batch; above {MUCH_NOISE:g} little is learnt, by rule of thumb).",
            way_out="Use a larger batch, or train fewer parameters.",
        )  # fmt: skip
