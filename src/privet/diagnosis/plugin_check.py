"""The contract of each extension point, as functions: for what is registered here, and for a user's own by its address.

Those of schedules and accountants are in `plugin_contract.py`, the attack's in `attacks/contract.py`.
"""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privet._registry import import_address
from privet.clipping.clipped_sum import clipped_sum
from privet.clipping.rule import BoundedRule, bounded, clipping_rule, is_adaptive
from privet.data.task import Task, task as task_of
from privet.diagnosis.estimate import random_rows
from privet.diagnosis.model_check import examine_model
from privet.diagnosis.plugin_contract import ACCOUNTANT, SCHEDULE, Contract, Outcome, outcome_of
from privet.errors import InvalidValue
from privet.per_example.gradients import explain
from privet.per_example.layers import base as layers
from privet.planning.clipping_rules import registry as rules

LOSS = nn.CrossEntropyLoss(reduction="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """What was checked of a plug-in."""

    address: str
    kind: str
    outcomes: tuple[Outcome, ...]

    @property
    def passes(self) -> bool:
        return all(outcome.passes for outcome in self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        rows = [asdict(outcome) | {"passes": outcome.passes} for outcome in self.outcomes]
        return {"plugin": self.address, "kind": self.kind, "passes": self.passes, "checks": rows}


def check_plugin(address: str, *, more: Sequence[Contract] = (), make: Any = None) -> PluginReport:
    """The contract run on `my_lab.module:Class`, or `my_lab.module:Class:key=value`; its kind is that of its methods.

    Args:
        more: contracts of layers above this one.
        make: (model, loss_fn, batch) that uses a layer rule, for its comparison with autograd.
    """
    head = ":".join(address.split(":")[:2])
    thing = import_address(head, kind="plugin")
    contract = _contract_of(thing, address, (*CONTRACTS, *more))
    if contract is LAYER_RULE:
        return PluginReport(address=address, kind=contract.kind, outcomes=_check_layer_rule(thing, make))
    outcomes = tuple(outcome_of(name, check, address) for name, check in contract.checks.items())
    return PluginReport(address=address, kind=contract.kind, outcomes=outcomes)


def _contract_of(thing: Any, address: str, contracts: Sequence[Contract]) -> Contract:
    for contract in contracts:
        methods = [getattr(thing, name, None) for name in contract.needs]
        if methods and isinstance(thing, type) and all(map(callable, methods)):
            return contract
        if not contract.needs and callable(thing) and not isinstance(thing, type):
            return contract
    known = "; ".join(f"{c.kind}: {', '.join(c.needs) or 'a function that returns a Task'}" for c in contracts)
    raise InvalidValue(
        f"plugin={address!r} has the methods of no extension point. The contract follows from them. Give a class or a "
        f"function of one of these kinds: {known}."
    )


# --- clipping rules: by spelling, or the rule itself ------------------------------------------------

CLIP, SIZE = 0.3, 9


class Network(nn.Module):
    """Shared, sparse and plain layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.last = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.middle(self.table(x)))  # (B, T, 4)
        return self.last(torch.tanh(self.middle(h)).mean(1))  # type: ignore[no-any-return]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Network()


def batch(size: int = SIZE, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.randint(7, (size, 5), generator=source), torch.randint(3, (size,), generator=source)


def _bounded(spec: Any) -> BoundedRule:
    return bounded(clipping_rule(spec, uncertified=True))


def _parameters_are_grouped(spec: Any) -> str:
    names = [name for name, _ in network().named_parameters()]
    groups = _bounded(spec).groups(names)
    if sorted(name for group in groups for name in group) != sorted(names):
        return "groups(names) must have every parameter in exactly one group"
    return ""


def _bound_is_public(spec: Any) -> str:
    rule = _bounded(spec)
    for clip, groups in itertools.product((1e-3, CLIP, 7.0), (1, 3)):
        if rule.bound(clip, groups) != rule.bound(clip, groups):
            return "l2_bound(clip, groups) gives another number when it is asked again"
    return ""


def _scales_are_of_one_example(spec: Any) -> str:
    """Also that they can be mapped: no random numbers, no branch on a value; the engine says which."""
    rule, norms = _bounded(spec), torch.tensor([[0.2, 0.1], [4.0, 3.0], [0.5, 9.0], [1e-6, 0.0]])
    together = rule.unbounded_scales(norms, CLIP)
    alone = torch.cat([rule.unbounded_scales(row[None], CLIP) for row in norms])
    if not together.isfinite().all():
        return "scales() of finite norms must be finite"
    is_alike = torch.allclose(together, alone, rtol=1e-6)
    return "" if is_alike else "the scales of an example depend on the other examples"


def _examples_stay_within_the_bound(spec: Any) -> str:
    """By the rule alone: the engine cuts back what is above, which costs accuracy and no privacy."""
    rule, norms = _bounded(spec), torch.tensor([[0.01], [0.3], [2.0], [500.0]])
    bound = rule.bound(CLIP, 1)
    reach = (rule.unbounded_scales(norms, CLIP).double() * norms).abs().amax()
    if float(reach) > bound * (1 + 1e-5):
        return f"an example adds {float(reach):.3g}, more than l2_bound={bound:.3g}; the engine would cut it back"
    held = rule.scales(norms, CLIP, bound=bound, dtype=norms.dtype) * norms
    return "" if float(held.abs().amax()) <= bound * (1 + 1e-6) else "the engine does not hold it to its bound"


def _a_neighbour_is_within_the_bound(spec: Any) -> str:
    """Removing one example moves the sum by at most l2_bound, a large gradient too."""
    model, rule = network(), clipping_rule(spec, uncertified=True)
    with torch.no_grad():
        model.last.weight.mul_(50)  # type: ignore[union-attr,operator]
    x, y = batch()
    whole = clipped_sum(model, LOSS, (x, y), rule=rule, clipping_norm=CLIP, uncertified=True)
    for out in range(SIZE):
        keep = torch.arange(SIZE) != out
        without = clipped_sum(model, LOSS, (x[keep], y[keep]), rule=rule, clipping_norm=CLIP, uncertified=True)
        moved = torch.cat([(whole.grads[name] - g).flatten() for name, g in without.grads.items()]).norm()
        if without.l2_bound != whole.l2_bound or float(moved) > whole.l2_bound * (1 + 1e-5):
            return f"removing an example moves the sum by {float(moved):.4g}; the bound is {whole.l2_bound:.4g}"
    return ""


def _state_is_restored(spec: Any) -> str:
    rule, other = clipping_rule(spec, uncertified=True), clipping_rule(spec, uncertified=True)
    if not (is_adaptive(rule) and is_adaptive(other)):
        return ""
    other.load_state_dict(copy.deepcopy(rule.state_dict()))
    if other.current_clip(CLIP) != rule.current_clip(CLIP):
        return "load_state_dict(state_dict()) makes a rule with another clipping norm"
    return ""


CLIPPING_RULE = Contract(kind="clipping rule", needs=rules.needs, checks={
    "every parameter is in one group": _parameters_are_grouped,
    "its bound is a public number, finite and > 0": _bound_is_public,
    "the scales of an example depend on that example alone": _scales_are_of_one_example,
    "no example adds more than its bound": _examples_stay_within_the_bound,
    "a neighbouring batch moves the sum by at most the bound": _a_neighbour_is_within_the_bound,
    "its state is saved and restored": _state_is_restored,
})  # fmt: skip


# --- layer rules ------------------------------------------------------------------------------------

LAYER_RULE = Contract(kind="layer rule", needs=("accepts", "run", "gradients"), checks={})


def _check_layer_rule(kind: type, make: Any) -> tuple[Outcome, ...]:
    functions = layers.functions_of(kind)
    named = isinstance(getattr(kind, "name", None), str)
    found = [
        Outcome(check="it has a name", why="" if named else "the class needs `name`, a word that explain() shows"),
        Outcome(check="it is registered for a torch function", why="" if functions else "write @register(function) "
                "from privet.per_example.layers.base above the class"),
    ]  # fmt: skip
    agreement = "its gradients agree with autograd, example by example"
    if make is None:
        why = "not checked: give a function that makes (model, loss_fn, batch) as well: privet doctor my.module:make"
        return (*found, Outcome(check=agreement, why=why))
    return (*found, outcome_of(agreement, lambda made: _agrees(kind, made), make))


def _agrees(kind: Any, make: tuple[nn.Module, Any, Any]) -> str:
    explanation = explain(*make)
    if explanation.whole:
        return f"the model is run example by example: {explanation.whole}"
    used = {line.rule for line in explanation.uses}
    return "" if kind.name in used else f"the model does not use it; it uses {', '.join(sorted(used)) or 'no rule'}"


# --- datasets: functions that return a Task ---------------------------------------------------------


def _returns_a_task(spelling: str) -> str:
    first, again = task_of(spelling), task_of(spelling)
    if not isinstance(first, Task) or first.size < 1:
        return "it must return a Task with at least one training example"
    return "" if first.size == again.size else "it returns another number of examples when it is called again"


def _has_a_held_out_set(spelling: str) -> str:
    held = task_of(spelling).held_out
    count = len(held[0]) if isinstance(held, tuple) else len(held)
    return "" if count else "held_out has no example: nothing could be evaluated"


def _trains_privately(spelling: str) -> str:
    """On random inputs of its shapes: no example is read."""
    made = task_of(spelling)
    model = made.network()
    found = examine_model(model, made.losses, random_rows(made.train, made.facts, model)(8)).findings
    return "; ".join(f"{one.where}: {one.why} {one.way_out}" for one in found if one.severity == "stop")


def _has_one_score_for_each_example(spelling: str) -> str:
    made = task_of(spelling)
    model = made.network().eval()
    x, y = random_rows(made.train, made.facts, model)(8)
    with torch.no_grad():
        outputs = model(x)
        shapes = {"losses": made.losses(outputs, y).shape, "measure": made.measure.each(outputs, y).shape}
    wrong = [f"{name} gave shape {tuple(shape)}" for name, shape in shapes.items() if len(shape) < 1 or shape[0] != 8]
    return f"for 8 examples, {' and '.join(wrong)}; one value for each example is needed" if wrong else ""


DATASET = Contract(kind="dataset", needs=(), checks={
    "it returns the same Task every time": _returns_a_task,
    "it has held-out examples": _has_a_held_out_set,
    "its network can be trained privately": _trains_privately,
    "its loss and measure have one value for each example": _has_one_score_for_each_example,
})  # fmt: skip

# A noise mechanism and a sampler from outside get a contract here once they can be plugged in.
CONTRACTS = (SCHEDULE, ACCOUNTANT, CLIPPING_RULE, LAYER_RULE, DATASET)
