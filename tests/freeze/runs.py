"""Seeded runs, bit for bit: weights after a few steps, sums, ledgers and checkpoints."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from freeze import files, toy
from freeze.renames import call, get, kw, name

RULES = ("flat", "per_layer", "normalised", "quantile", "adaclip")
SIZE = 24
LOSS = nn.CrossEntropyLoss(reduction="none")
QUICK = (("mlp", "quantile"), ("cnn", "per_layer"), ("lstm", "flat"), ("tied", "normalised"), ("attention", "adaclip"))


# --- models ------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.body, self.head = kind(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.body(x, x, x, need_weights=False)[0]).mean(1)


class Words(nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.table, self.body, self.tied = nn.Embedding(7, 4), nn.Linear(4, 4), tied
        self.head = None if tied else nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        middle = self.body(self.table(x).mean(1)).tanh()
        return (middle @ self.table.weight.T)[:, :3] if self.head is None else self.head(middle)


class Scaled(nn.Module):
    """Parameters of its own, used without a module, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.weight = nn.Parameter(torch.ones(4)), nn.Parameter(torch.randn(3, 4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).tanh() @ self.weight.T + (x.square() * self.scale) @ self.weight.T


def convolutions(*norms: nn.Module) -> nn.Module:
    norm = norms[0] if norms else nn.Identity()
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=2),
                         nn.Flatten(), nn.LazyLinear(3))  # fmt: skip


def frozen() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    made[0].requires_grad_(False)
    return made


MODELS = {  # how the network is made, and the shape of one input; () is a line of words
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3)), (4,)),
    "cnn": (convolutions, (1, 6, 6)),
    "group norm": (lambda: convolutions(nn.GroupNorm(2, 4)), (1, 6, 6)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(4, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(9, 3)), (4, 5)),
    "embedding": (Words, ()),
    "tied": (lambda: Words(tied=True), ()),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 4)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 4)),
    "rnn": (lambda: Recurrent(nn.RNN), (5, 4)),
    "attention": (Attention, (5, 4)),
    "own parameters": (Scaled, (4,)),
    "frozen": (frozen, (4,)),
    "double": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double(), (4,)),
}


def network(kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    make, shape = MODELS[kind]
    torch.manual_seed(1)
    x = torch.randn(SIZE, *shape) if shape else torch.randint(7, (SIZE, 5))
    y = torch.randint(3, (SIZE,))
    x = x.double() if kind == "double" else x
    model = make()
    model(x[:1])  # lazy layers
    return model, x, y


# --- what is compared --------------------------------------------------------------------------------


def digest(tensor: Tensor) -> str:
    return files.sha(tensor.detach().contiguous().numpy().tobytes())


def digests(model: nn.Module) -> dict[str, str]:
    return {key: digest(value) for key, value in model.state_dict().items()}


def planned(**given: Any) -> Any:
    usual = {"delta": 1e-3, "size": SIZE, "batch": 8, "steps": 4, "noise": 0.9, "clip": 0.5, "solve": "epsilon"}
    given = usual | given
    if "rate" in given:
        del given["batch"]
    return call("privet:plan", **given)


def source(*seed: int) -> Any:
    return name("privet.engine.randomness:seeded")(*seed)


def trained(training: Any, until: int | None = None) -> dict[str, Any]:
    """The loop to step `until`, and all that is known after it."""
    rounds = 0
    for x, y in training if until is None else get("Training", training, "upto")(until):
        rounds += 1
        training.step(LOSS(training.model(x), y))
    guarantee = get("Training", training, "spent")()
    found = {
        "rounds": rounds, "number": get("Training", training, "number"), "weights": digests(training.model),
        "grads": {key: None if p.grad is None else digest(p.grad) for key, p in training.model.named_parameters()},
        "spent": guarantee.as_dict(),
    }  # fmt: skip
    if training.average is not None:
        with get("Training", training, "averaged")() as model:
            found["average"] = digests(model)
    return found


def begun(kind: str, plan: Any, *, seed: int = 5, optimizer: str = "SGD", **given: Any) -> Any:
    model, x, y = network(kind)
    made = getattr(torch.optim, optimizer)([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return call("privet:Training", model, made, (x, y), plan, generator=source(seed), **given)


def summed(kind: str, rule: str, **given: Any) -> dict[str, Any]:
    model, x, y = network(kind)
    found = call("privet.engine:clipped_sum", model, LOSS, (x[:7], y[:7]), rule, 0.6, **given)
    return {
        "grads": {key: digest(value) for key, value in get("ClippedSum", found, "grads").items()},
        "bound": get("ClippedSum", found, "norm_bound"),
    }


# --- cases -------------------------------------------------------------------------------------------


USERS = [f"user {i % 12}" for i in range(SIZE)]
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # keywords of the plan, and of the training
    "physical batches": ({}, {"max_physical_batch": 3}),
    "views": ({"rule": "per_layer"}, {"views": 2, "max_physical_batch": 4}),
    "average": ({}, {"average": 0.9}),
    "secure": ({}, {"secure": True}),
    "secure in pieces": ({"rule": "quantile"}, {"secure": True, "max_physical_batch": 3}),
    "users": ({"unit": "user", "size": 12, "batch": 4}, {"users": USERS}),
    "full batch": ({"rate": 1.0}, {}),
    "small batch": ({"batch": 1, "steps": 12}, {}),
    "truncated": ({"sampling": "truncated-poisson:cap=21,size=24"}, {}),
    "fixed size": ({"sampling": "fixed-size", "relation": "replace", "accountant": "rdp"}, {}),
    "shuffled": ({"sampling": "shuffled"}, {}),
    "dynamic": ({"method": "dynamic", "rho_noise": 2.0, "rho_clip": 1.5, "clip": 1.0}, {}),
    "growing batch": ({"batch": "linear:start=4,end=12"}, {}),
    "auto-linear": ({"method": "auto-linear"}, {}),
    "dyn-s-sigma": ({"method": "dyn-s-sigma"}, {}),
    "as published": ({"method": "auto-linear", "as_published": True}, {"as_published": True}),
    "adam": ({}, {"optimizer": "Adam"}),
    "read off": ({}, {"not_private": "vocabulary=counted", "as_published": True}),
}
QUICK_VARIANTS = ("physical batches", "views", "average", "secure", "users", "dynamic")


def probe(*, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    plans = {rule: planned(rule=rule) for rule in RULES}
    for kind in MODELS:
        for rule in RULES:
            if not quick or (kind, rule) in QUICK:
                found[f"sum {kind} {rule}"] = summed(kind, rule)
                found[f"run {kind} {rule}"] = trained(begun(kind, plans[rule]))
    for way in () if quick else ("vmap", "loop"):
        found |= {f"sum {kind} by {way}": summed(kind, "flat", force=way) for kind in ("mlp", "cnn", "embedding")}
    for case, (plan, given) in VARIANTS.items():
        if not quick or case in QUICK_VARIANTS:
            found[case] = trained(begun("mlp", planned(**plan), **given))
    for rule in ("quantile",) if quick else ("flat", "quantile", "adaclip"):
        found[f"resumed {rule}"] = resumed(rule, plans[rule])
    if not quick:
        for case, given in {
            "ranks": {},
            "ranks secure": {"secure": True},
            "ranks quantile": {"rule": "quantile"},
        }.items():
            found[case] = on_ranks(case, given)
        found["train"] = by_train()
    return found


def resumed(rule: str, plan: Any) -> dict[str, Any]:
    """Stopped after two steps, taken up by a new model; and the files of that run."""
    place = f"resumed-{rule}"
    given = kw("Training", max_physical_batch=5, average=0.9)
    training = begun("mlp", plan, out=place, optimizer="Adam", max_physical_batch=5, average=0.9)
    first = trained(training, 2)
    name("privet.training.resume:save")(training)
    training.close()
    middle = files.folder(Path(place))
    model, x, y = network("mlp")
    made = torch.optim.Adam(model.parameters(), lr=0.1)
    randomness = kw("Training", generator=source(5, 2))
    training = name("privet.training.resume:resume")(model, made, (x, y), plan, out=place, **given, **randomness)
    last = trained(training)
    name("privet.training.resume:save")(training)
    training.close()
    plan.save(f"{place}.json")
    return {"first": first, "files at first": middle, "last": last, "files": files.folder(Path(place)),
            "plan file": files.content(Path(f"{place}.json"))}  # fmt: skip


def by_train() -> dict[str, Any]:
    plan = planned(size=toy.SIZE, batch=20, steps=6)
    given = kw("Settings", lr=0.2, reserve=1, average=0.9, task="freeze.toy:task")
    call("privet:train", plan, out="trained", seed=3, **given)
    return {"files": files.folder(Path("trained"))}


def on_ranks(case: str, given: dict[str, Any]) -> dict[str, Any]:
    """The same loop on two processes that speak over gloo."""
    place = Path(case.replace(" ", "-"))
    place.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [f"{key}={value}" for key, value in given.items()]
    command = [sys.executable, "-m", "freeze.ranks", str(place), *words]
    spoken = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(command, env=os.environ | spoken | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0], "a rank failed"
    return files.folder(place)
