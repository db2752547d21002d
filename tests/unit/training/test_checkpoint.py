"""Checkpoints: restored bit for bit, complete or not at all; whatever does not fit, or is hostile, is refused."""

import json
import os
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from privet.errors import InvalidValue
from privet.training.checkpoint import load, peek, save
from privet.training.checkpoint_format import MOST_DEEP, NAME, decode_state, encode_state, parse_json


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def bits(value: Any) -> Any:
    """A nest in which tensors are their type, shape and bytes: equal exactly if the values are, bit for bit."""
    if isinstance(value, Tensor):
        if value.is_meta:
            return value.dtype, tuple(value.shape)
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return value.dtype, tuple(value.shape), bytes(flat.numpy())
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(bits(item) for item in value)
    return (float, repr(float(value))) if isinstance(value, float) else (type(value), repr(value))


def everything(*parts: Any) -> Any:
    return [bits(part.state_dict()) for part in parts if part is not None]


def advance(model: nn.Module, optimizer: optim.Optimizer, scheduler: Any, *, first: int, steps: int) -> None:
    """Steps whose gradients depend on the weights and on the number of the step."""
    for number in range(first, first + steps):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(number))

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        if scheduler is not None:
            scheduler.step(*([loss.detach()] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.05),
    "momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: optim.Adam(p, lr=0.05),
    "amsgrad": lambda p: optim.Adam(p, lr=torch.tensor(0.05), amsgrad=True, foreach=False),
    "fused": lambda p: optim.Adam(p, lr=0.05, fused=True),
    "adamw": lambda p: optim.AdamW(p, lr=np.float64(0.05)),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adadelta": lambda p: optim.Adadelta(p),
    "nadam": lambda p: optim.NAdam(p, lr=0.05),
    "radam": lambda p: optim.RAdam(p, lr=0.05),
    "adamax": lambda p: optim.Adamax(p, lr=0.05),
    "asgd": lambda p: optim.ASGD(p, lr=0.05),
    "rprop": lambda p: optim.Rprop(p, lr=0.05),
    "lbfgs": lambda p: optim.LBFGS(p, lr=0.1, max_iter=3),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.05),
}


class Warm:
    """A callable with a memory, which torch keeps; a plain function it does not."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 0.9**self.calls


SCHEDULERS: dict[str, Callable[[optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.3),
    "multi": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4, 6], gamma=0.5),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 7),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "function": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "callable": lambda o: lr_scheduler.LambdaLR(o, Warm()),
    "ema_decay": lambda o: SWALR(o, swa_lr=0.01, anneal_epochs=4),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=4), lr_scheduler.ExponentialLR(o, 0.8)], milestones=[4]
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, total_iters=3), lr_scheduler.PolynomialLR(o, total_iters=9)]
    ),
}


def check_goes_on_as_before(folder: Path, optimizer: str, scheduler: str | None) -> None:
    """Train, save, train on; a new process's objects, restored, do the same: all states equal, bit for bit."""

    def made(seed: int) -> tuple[Any, Any, Any]:
        model = network(seed)
        opt = OPTIMIZERS[optimizer](model.parameters())
        return model, opt, None if scheduler is None else SCHEDULERS[scheduler](opt)

    first, second = made(0), made(1)
    advance(*first, first=0, steps=3)
    save(folder, model=first[0], optimizer=first[1], scheduler=first[2], extra={"step": 3})
    assert everything(*second) != everything(*first)
    assert load(folder, model=second[0], optimizer=second[1], scheduler=second[2]).extra == {"step": 3}
    assert everything(*second) == everything(*first)
    for parts in (first, second):
        advance(*parts, first=3, steps=3)
    assert everything(*second) == everything(*first)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_next_steps_are_those_of_the_original_for_each_optimizer(tmp_path: Path, name: str) -> None:
    check_goes_on_as_before(tmp_path, name, None)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_the_next_steps_are_those_of_the_original_for_each_scheduler(tmp_path: Path, name: str) -> None:
    check_goes_on_as_before(tmp_path, "momentum", name)


def test_a_new_optimizer_without_a_state_and_several_groups(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[nn.Module, optim.Optimizer]:
        model = network(seed)
        groups = [{"params": model[0].parameters()}, {"params": model[3].parameters(), "lr": 0.5, "note": None}]
        return model, optim.Adam(groups, lr=0.1)

    first, second = made(0), made(1)
    save(tmp_path, model=first[0], optimizer=first[1], extra={})
    load(tmp_path, model=second[0], optimizer=second[1])
    assert everything(*second) == everything(*first)


class Odd(nn.Module):
    """Every kind of tensor a state may have."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.short = nn.Parameter(torch.randn(3, 2).half())
        self.brain = nn.Parameter(torch.randn(2, 3).bfloat16())
        self.long = nn.Parameter(torch.randn(4, 6, dtype=torch.float64).t()[::2])
        self.image = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
        for name, dtype in {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64}.items():
            self.register_buffer(name, torch.randint(-100, 100, (3,), dtype=dtype))
        self.register_buffer("u8", torch.randint(0, 255, (7,), dtype=torch.uint8))
        self.register_buffer("flags", torch.rand(5) > 0.5)
        self.register_buffer("number", torch.tensor(float(seed)))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("spread", torch.randn(1, 4).expand(3, 4).clone())
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.seen: Any = ("x", seed, {3: torch.randn(2)})

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        if state[1] == 13:
            raise ValueError("thirteen")
        self.seen = state


def test_every_kind_of_number_and_shape(tmp_path: Path) -> None:
    first, second = Odd(0), Odd(1)
    same = dict(first.state_dict())
    save(tmp_path, model=first, optimizer=optim.SGD(first.parameters(), lr=1), extra={})
    load(tmp_path, model=second, optimizer=optim.SGD(second.parameters(), lr=1))
    assert everything(second) == everything(first)
    assert bits(second.seen) == bits(first.seen)
    assert second.long.stride() == first.long.stride() != (6, 1)
    assert all(value.data_ptr() == first.state_dict()[k].data_ptr() for k, value in same.items() if k[0] != "_")


def test_a_state_of_another_type_than_its_parameter_is_not_cast(tmp_path: Path) -> None:
    """torch casts it while loading; the next step would then not be the same."""
    first, second = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2).bfloat16()
    one, other = (optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (first, second))
    for parameter in first.parameters():
        one.state[parameter] = {"momentum_buffer": torch.randn(parameter.shape)}
    save(tmp_path, model=first, optimizer=one, extra={})
    load(tmp_path, model=second, optimizer=other)
    assert everything(other) == everything(one)


class Tied(nn.Module):
    def __init__(self, seed: int, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        if tied:
            self.out.weight = self.words.weight


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    first, second = Tied(0), Tied(1)
    save(tmp_path, model=first, optimizer=optim.SGD(first.parameters(), lr=1), extra={})
    names = set(safetensors.torch.load_file(tmp_path / NAME))
    assert names == {"model.words.weight", "json", "sha256"}
    load(tmp_path, model=second, optimizer=optim.SGD(second.parameters(), lr=1))
    assert second.out.weight is second.words.weight
    assert everything(second) == everything(first)
    for one, other in ((True, False), (False, True)):
        saved, given = Tied(0, one), Tied(1, other)
        save(tmp_path, model=saved, optimizer=optim.SGD([saved.words.weight], lr=1), extra={})
        before = everything(given)
        with pytest.raises(InvalidValue, match="other parameters are tied"):
            load(tmp_path, model=given, optimizer=optim.SGD([given.words.weight], lr=1))
        assert everything(given) == before


EXTRA = {
    "step": 12, "mark": (3, "ab" * 32), "metrics": [{"loss": 0.1 + 0.2, "best": float("inf"), "none": None}],
    "nan": float("nan"), "zero": -0.0, "big": 2**62, "yes": True, "$odd": 1, "deep": {"$tensor": "x"},
    "keys": {1: "a", "1": "b", 2.5: "c", None: "d", -1: ()}, "empty": [{}, [], ()], "text": "é\ud800\n",
}  # fmt: skip


def test_extra_rule_state_and_average_come_back_as_they_were(tmp_path: Path) -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=1)
    rule = {"moved": 0.25, "mean.0.weight": torch.randn(4, 3), "unit": None}
    average = {name: value + 1 for name, value in model.named_parameters()}
    given = {"rule_state": rule, "average": average, "extra": EXTRA}
    digest = save(tmp_path, model=model, optimizer=optimizer, **given)
    for found in (load(tmp_path, model=model, optimizer=optimizer), peek(tmp_path)):
        assert bits(found.extra) == bits(EXTRA)
        assert bits(found.rule_state) == bits(rule)
        assert found.average is not None
        assert bits(dict(found.average)) == bits(average)
        assert found.digest == digest
    assert save(tmp_path, model=model, optimizer=optimizer, **given) == digest  # one content, one file


def test_the_file_is_what_its_page_says(tmp_path: Path) -> None:
    """The oracle: the checksum by hand, the tensors by the safetensors library, the JSON by Python's."""
    model = network()
    digest = save(tmp_path, model=model, optimizer=optim.SGD(model.parameters(), lr=0.5), extra={"step": 3})
    data = (tmp_path / NAME).read_bytes()
    assert sha256(data[:-32]).digest() == data[-32:] == bytes.fromhex(digest)
    tensors = safetensors.torch.load_file(tmp_path / NAME)
    document = json.loads(bytes(tensors["json"].numpy()))
    assert document["extra"] == {"step": 3}
    assert document["optimizer"]["param_groups"][0]["lr"] == 0.5
    assert {k: v.tolist() for k, v in tensors.items() if k.startswith("model.")} == {
        f"model.{k}": v.tolist() for k, v in model.state_dict().items()
    }
    assert os.listdir(tmp_path) == [NAME]


def test_nests_as_deep_as_can_be_saved_can_be_loaded() -> None:
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: {"a": v}, lambda v: Counter({"a": v})):
        value: Any = 1
        for _ in range(MOST_DEEP):
            value = wrap(value)
        text = json.dumps(encode_state(value, "x")).encode()
        assert bits(decode_state(parse_json(text), "x", {}, set())) == bits(value)
        with pytest.raises(InvalidValue, match="40 levels"):
            encode_state(wrap(value), "x")


# --- what cannot be saved ---------------------------------------------------------------------------

SELF: list[Any] = []
SELF.append(SELF)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda: 0, "rule.a.0 is of the type function"),
        ({1, 2}, "type set"),
        (b"x", "type bytes"),
        (np.int64(3), "type int64"),
        (2**63, "more than 64 bits"),
        (SELF, "levels deep"),
        ({(1, 2): 3}, "a key is of the type tuple"),
        (torch.Generator(), "type Generator"),
        (torch.zeros(2, dtype=torch.complex64), "Tensor of torch.complex64"),
        (torch.zeros(2).to(torch.float8_e5m2), "Tensor of torch.float8_e5m2"),
        (torch.zeros(2, device="meta"), "on meta"),
        (torch.zeros(2, 2).to_sparse(), "torch.sparse_coo"),
        (torch.zeros(2).as_subclass(type("Own", (Tensor,), {})), "is a Own of"),
    ],
)
def test_what_cannot_be_kept_is_named_and_the_old_one_stays(tmp_path: Path, value: object, reason: str) -> None:
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=1)
    save(tmp_path, model=model, optimizer=optimizer, extra={"step": 1})
    with pytest.raises(InvalidValue, match=reason):
        save(tmp_path, model=model, optimizer=optimizer, rule_state={"a": [value]}, extra={"step": 2})
    with pytest.raises(InvalidValue, match=r"extra\.a is "):
        save(tmp_path, model=model, optimizer=optimizer, extra={"a": torch.zeros(1)})
    assert peek(tmp_path).extra == {"step": 1}
    assert os.listdir(tmp_path) == [NAME]


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("spread", torch.zeros(1, 3).expand(2, 3))
    with pytest.raises(InvalidValue, match=r"model\.spread is an expanded tensor"):
        save(tmp_path, model=model, optimizer=optim.SGD(model.parameters(), lr=1), extra={})
    lazy = nn.LazyLinear(2)
    with pytest.raises(InvalidValue, match=r"model\.weight is a UninitializedParameter"):
        save(tmp_path, model=lazy, optimizer=optim.SGD(lazy.parameters(), lr=1), extra={})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(
    tmp_path: Path, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = network(), network(1)
    optimizer = optim.SGD(model.parameters(), lr=1)
    good = {name: value.clone() for name, value in model.named_parameters()}
    save(tmp_path, model=model, optimizer=optimizer, extra={"step": 1})
    with torch.no_grad():
        model[3].bias[1] = bad
    with pytest.raises(InvalidValue, match=r"model\.3\.bias has values that are not finite"):
        save(tmp_path, model=model, optimizer=optimizer, extra={"step": 2})
    assert peek(tmp_path).extra == {"step": 1}
    with monkeypatch.context() as patch:
        patch.setattr("privet.training.checkpoint._check_finite", lambda *_: None)
        save(tmp_path, model=model, optimizer=optimizer, extra={"step": 2})
    before = everything(other)
    with pytest.raises(InvalidValue, match=r"model\.3\.bias has values that are not finite"):
        load(tmp_path, model=other, optimizer=optim.SGD(other.parameters(), lr=1))
    assert everything(other) == before
    average = good | {"3.bias": model[3].bias.detach().clone()}
    model.load_state_dict(good, strict=False)
    with pytest.raises(InvalidValue, match=r"average\.3\.bias has values"):
        save(tmp_path, model=model, optimizer=optimizer, average=average, extra={})


# --- what does not fit ------------------------------------------------------------------------------


def other_kinds() -> dict[str, tuple[Callable[[], nn.Module], str, str | None, str]]:
    plain = "momentum"
    return {
        "a layer more": (lambda: network(1).append(nn.Linear(2, 2)), plain, "step", "model lacks '4.bias' and 1 more"),
        "a layer less": (lambda: network(1)[:3], plain, "step", "model has '3.bias' and 1 more"),
        "a shape": (
            lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)), plain, "step",
            r"model.3.weight is torch.float32 \(2, 4\), the model's is torch.float32 \(3, 4\)",
        ),
        "no memory": (lambda: network(1).to("meta"), plain, "step", "the model's is .* without memory"),
        "a type": (lambda: network(1).double(), plain, "step", "model.0.weight is torch.float32"),
        "an optimizer": (lambda: network(1), "adam", "step", "its optimizer is SGD, not Adam"),
        "a scheduler": (lambda: network(1), plain, "cosine", "its scheduler is StepLR, not CosineAnnealingLR"),
        "no scheduler": (lambda: network(1), plain, None, "its scheduler is StepLR, not none"),
    }  # fmt: skip


@pytest.mark.parametrize("name", other_kinds())
def test_what_does_not_fit_is_refused_and_nothing_is_changed(tmp_path: Path, name: str) -> None:
    model = network()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    scheduler = SCHEDULERS["step"](optimizer)
    advance(model, optimizer, scheduler, first=0, steps=2)
    save(tmp_path, model=model, optimizer=optimizer, scheduler=scheduler, extra={})
    make, kind, plan, reason = other_kinds()[name]
    other = make()
    opt = OPTIMIZERS[kind](other.parameters())
    lr = None if plan is None else SCHEDULERS[plan](opt)
    before = everything(other, opt, lr)
    with pytest.raises(InvalidValue, match=reason) as caught:
        load(tmp_path, model=other, optimizer=opt, scheduler=lr)
    assert everything(other, opt, lr) == before
    assert str(caught.value).startswith(f"{tmp_path / NAME}: ")


def test_parameters_in_another_order_are_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    save(tmp_path, model=model, optimizer=optim.SGD(model.parameters(), lr=1), extra={})
    parameters = list(model.parameters())
    load(tmp_path, model=model, optimizer=optim.SGD(parameters, lr=1))
    for given in (parameters[::-1], parameters[:2], [{"params": parameters[:2]}, {"params": parameters[2:]}]):
        with pytest.raises(InvalidValue, match="other groups of parameters"):
            load(tmp_path, model=model, optimizer=optim.SGD(given, lr=1))


class Stubborn(optim.SGD):
    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        raise KeyError("no")


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_class_that_refuses_after_all_leaves_everything_as_it_was(tmp_path: Path, stubborn: bool) -> None:
    kind = Stubborn if stubborn else optim.SGD
    first, second = Odd(2 if stubborn else 13), Odd(1)
    optimizer, other = (kind([m.short], lr=0.1 + i, momentum=0.9) for i, m in enumerate((first, second)))
    scheduler, lr = (SCHEDULERS["sequence"](o) for o in (optimizer, other))
    for model, o, steps in ((first, optimizer, 3), (second, other, 1)):
        for _ in range(steps):
            model.short.grad = torch.ones_like(model.short)
            o.step()
    save(tmp_path, model=first, optimizer=optimizer, scheduler=scheduler, extra={})
    before = everything(second, other, lr)
    with pytest.raises(InvalidValue, match="cannot be restored: 'no'" if stubborn else "cannot be restored: thirteen"):
        load(tmp_path, model=second, optimizer=other, scheduler=lr)
    assert everything(second, other, lr) == before


def test_a_copy_of_a_loaded_state_shares_nothing_with_the_file(tmp_path: Path) -> None:
    """Two loads give two states: a step of one must not move the other."""
    model = network()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    advance(model, optimizer, None, first=0, steps=2)
    save(tmp_path, model=model, optimizer=optimizer, extra={})
    pairs = []
    for _ in range(2):
        model = network(5)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        load(tmp_path, model=model, optimizer=optimizer)
        pairs.append((model, optimizer, None))
    kept = everything(*pairs[1])
    advance(*pairs[0], first=7, steps=1)
    assert everything(*pairs[1]) == kept
