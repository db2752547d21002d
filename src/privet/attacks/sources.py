"""What is attacked: methods by name, a plan, a run, and training without privacy beside them."""

from collections.abc import Sequence
from typing import Any

from privet import _check
from privet.data.files import Where
from privet.data.task import Task
from privet.data.task import task as task_of
from privet.planning import Plan, method, plan
from privet.training.gate import check_covered
from privet.training.run import Run
from privet.training.settings import Settings

REFERENCE = "non-private"
RHO = 2.0  # first over last value, for methods that ask for it
_KEPT = (  # of a plan's [training] table
    "model", "weights", "train", "fresh", "optimizer", "lr", "momentum", "weight_decay", "max_physical_batch",
)  # fmt: skip

Source = Plan | Run | None  # None: without privacy


def sources_of(
    what: "str | Sequence[str] | Plan | Run | None", task: "str | Task | None", where: Where | None,
    as_published: bool, **given: Any,
) -> tuple[Task, dict[str, Source], list[Plan]]:  # fmt: skip
    """The task, what is attacked by name, and a plan or more: without privacy, the first one's batches are drawn."""
    if isinstance(what, Run) and task is None:
        loaded = what.task(where=where)
    else:
        named = what.recipe.training.get("task") if isinstance(what, Plan) else None
        loaded = task_of(task or named or "digits", where=where)
    if not (isinstance(what, Run) and what.not_private):  # whose own guarantee says that there is none
        check_covered(loaded.not_private)  # what attacks find is held against the plans' guarantees
    if isinstance(what, Run):
        return loaded, {"run": what}, [what.plan]
    if isinstance(what, Plan):
        return loaded, {REFERENCE: None, "plan": what}, [what]
    names = [what] if isinstance(what, str) else list(what or [])
    made = {
        name: method_plan(name, loaded.size, as_published=as_published, **given) for name in names if name != REFERENCE
    }
    plans = list(made.values()) or [method_plan("noisy-sgd", loaded.size, as_published=False, **given)]
    return loaded, {REFERENCE: None, **made}, plans


def method_plan(
    name: str, size: int, *, noise: float, clip: float, rate: float, steps: int, as_published: bool
) -> Plan:
    """The plan of a method at a given noise, for a comparison: it says what that costs."""
    _check.whole(steps=steps)
    return plan(
        delta=min(1e-5, 1 / (10 * size)), size=size, rate=rate, steps=steps, method=name, noise=noise, clip=clip,
        solve="epsilon", as_published=as_published, **dict.fromkeys(method(name).needs, RHO),
    )  # fmt: skip


def settings_for(plan: Plan, *, model: str | None, otherwise: str | None = None) -> Settings:
    """How the plan is trained here: by its own table where it has one."""
    table = {key: value for key, value in plan.recipe.training.items() if key in _KEPT}
    own = None if "weights" in table else otherwise  # weights are of the task's network
    return Settings.of({"model": own, "device": "cpu", **table, **({} if model is None else {"model": model})})


def cost_of(source: Source) -> str:
    """What a source guarantees, in words."""
    return "none" if source is None else str(source.guarantee)
