"""What every attack promises: the contract that tests run over all that are registered, and `doctor` over a user's."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from privet.attacks.base import Observation, Reconstruction, example_gradients, resolve_attack
from privet.diagnosis.plugin_contract import Contract

SHAPE, CLASSES, VICTIMS = (1, 6, 6), 3, 6


def network(kind: str = "sigmoid", seed: int = 0) -> nn.Module:
    bend = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU}[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 40), bend(), nn.Linear(40, CLASSES)).eval()


def records(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.rand(count, *SHAPE, generator=source), torch.randint(CLASSES, (count,), generator=source)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def observation(model: nn.Module, x: Tensor, y: Tensor, *, batch: int = 1, **more: Any) -> Observation:
    """Updates without clipping and noise, `batch` examples each."""
    state = state_of(model)
    grads = example_gradients(model, state, x, nn.functional.one_hot(y, CLASSES).float(), names=state)
    update = {name: g.detach().view(-1, batch, *g.shape[1:]).sum(1) for name, g in grads.items()}
    given: dict[str, Any] = {"update": update, "candidates": (x, y), **more}
    return Observation(model=model, state=state, shape=SHAPE, classes=CLASSES, batch=batch, **given)


def sample_observation() -> Observation:
    return observation(network(), *records(VICTIMS))


def _run(spelling: Any, what: Observation) -> Reconstruction:
    return resolve_attack(spelling).run(what)


def _has_the_shape_of_the_inputs(spelling: Any) -> str:
    made: Any = _run(spelling, sample_observation())
    if not isinstance(made, Reconstruction):
        return f"run() must return a Reconstruction, not a {type(made).__name__}"
    wanted = {"inputs": (VICTIMS, 1, *SHAPE), "labels": (VICTIMS, 1)} | dict.fromkeys(
        ("loss", "iterations", "evaluations"), (VICTIMS,)
    )
    for name, shape in wanted.items():
        if tuple(getattr(made, name).shape) != shape:
            return f"{name} has shape {tuple(getattr(made, name).shape)} and must have {shape}, for {VICTIMS} targets"
    if not bool(made.inputs.isfinite().all()):
        return "inputs must be finite"
    return "" if bool((made.evaluations >= made.iterations).all()) else "evaluations must be at least iterations"


def _gives_the_same_again(spelling: Any) -> str:
    first, second = (_run(spelling, sample_observation()).inputs for _ in range(2))
    return "" if torch.equal(first, second) else "two runs on one observation differ: seed what is random"


def _finds_nothing_in_noise(spelling: Any) -> str:
    """5 or more of 6 targets among 6 candidates by chance: once in 1,500."""
    plain, source = sample_observation(), torch.Generator().manual_seed(3)
    noise = {name: u + 1e4 * torch.randn(u.shape, generator=source) for name, u in plain.update.items()}
    made = _run(spelling, replace(plain, update=noise))
    x, _ = records(VICTIMS)
    distance = (made.inputs.flatten(1)[:, None] - x.flatten(1)[None]).square().sum(2)  # (N, K)
    if made.scores is not None:
        distance = -made.scores
    hits = int((distance.argmin(1) == torch.arange(VICTIMS)).sum())
    return "" if hits <= 4 else f"it finds {hits} of {VICTIMS} targets in noise: it sees more than the observation"


def _leaves_the_model_alone(spelling: Any) -> str:
    right, other = sample_observation(), network(seed=5)
    before = {name: p.clone() for name, p in other.named_parameters()}
    made = _run(spelling, replace(right, model=other))
    if not torch.equal(made.inputs, _run(spelling, right).inputs):
        return "it reads the weights of `model`; those before the update are in `state`"
    if any(not torch.equal(p, before[name]) or p.grad is not None for name, p in other.named_parameters()):
        return "it changes the weights of `model`, or leaves gradients there"
    return ""


ATTACK = Contract(kind="attack", needs=("run",), checks={
    "its answer has the shapes of the inputs": _has_the_shape_of_the_inputs,
    "the same observation gives the same answer": _gives_the_same_again,
    "noise far above the gradient leaves nothing to find": _finds_nothing_in_noise,
    "it reads weights from the state, and changes none": _leaves_the_model_alone,
})  # fmt: skip
