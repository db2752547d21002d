"""A round of client-level privacy: what is charged, what one client can do to it; without noise it is FedSGD."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bad_updates import READABLE, SECRET, UNREADABLE
from privet import plan
from privet.clipping.rule import clipping_rule
from privet.errors import InvalidValue, Unsupported
from privet.federated.clients import InProcess, Worker, local_update
from privet.federated.clipped_updates import Update, clipped_updates
from privet.federated.partition import partition
from privet.federated.server import Server, resume, save
from privet.federated.settings import LocalTraining, Settings
from privet.ledger.reading import read_ledger
from privet.noise.randomness import Randomness, seeded
from privet.planning import Plan
from tiny_task import task

CLIENTS = 20


def planned(**given: object) -> Plan:
    usual = {
        "delta": 1e-2,
        "dataset_size": CLIENTS,
        "batch_size": 5,
        "steps": 4,
        "noise_multiplier": 2.0,
        "solve": "epsilon",
        "unit": "client",
    }
    return plan(**(usual | given))


def server(p: Plan, *, lr: float = 1.0, **given: object) -> Server:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return Server(model, torch.optim.SGD(model.parameters(), lr=lr), p, clients=CLIENTS, **given)


def update(value: float = 1.0) -> dict[str, Tensor]:
    return {"weight": torch.full((2, 3), value), "bias": torch.full((2,), value)}


def weights(of: Server) -> Tensor:
    return torch.cat([p.detach().flatten() for p in of.model.parameters()]).clone()


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_divided(grads: Update, *, divisor: float, **_: object) -> Update:
        return {name: grad / divisor for name, grad in grads.items()}

    monkeypatch.setattr("privet.noise.release.add_noise", only_divided)


# --- what is charged ---------------------------------------------------------------------------------


def test_a_round_is_on_the_disk_before_anybody_is_asked(tmp_path: Path) -> None:
    with server(planned(), out=tmp_path / "f") as s:
        for number, _ in enumerate(s, start=1):
            assert read_ledger(tmp_path / "f").ledger.steps == s.steps_done == number
            s.step([])
    assert read_ledger(tmp_path / "f").ledger == planned().ledger()


def test_who_drops_out_is_charged_like_everybody() -> None:
    full, empty = server(planned()), server(planned())
    for chosen in full:
        full.step((k, update()) for k in chosen)
    for _ in empty:
        empty.step([])
    assert full.spent() == empty.spent() == planned().guarantee
    assert not torch.equal(weights(empty), weights(server(planned())))  # noise is added for nobody, too


def test_a_schedule_is_read_round_by_round() -> None:
    p = plan(
        epsilon=3.0, delta=1e-2, dataset_size=CLIENTS, batch_size=5, steps=5, unit="client", method="dynamic",
        rho_noise=3.0,
        rho_clip=2.0,
    )  # fmt: skip
    with server(p) as s:
        for number, _ in enumerate(s, start=1):
            s.step([])
            assert s._account.ledger() == p.ledger().first(number)
        assert s.spent() == p.guarantee


def test_a_round_left_by_a_break_is_charged_and_not_done_again(tmp_path: Path) -> None:
    with server(planned(), out=tmp_path / "f") as s:
        for _ in s:
            break
        assert s.steps_done == 1
        assert sum(1 for _ in _stepped(s)) == 3


def _stepped(s: Server) -> Iterable[list[int]]:
    for chosen in s:
        s.step([])
        yield chosen


def test_a_round_that_is_passed_over_is_refused() -> None:
    s = server(planned())
    rounds = iter(s)
    next(rounds)
    with pytest.raises(InvalidValue, match="round=0 was not ended"):
        next(rounds)


def test_two_loops_do_not_share_the_rounds() -> None:
    """The outer one would draw clients at the rate of a round that the inner one has made."""
    s = server(planned())
    for _ in s:
        s.step([])
        with pytest.raises(InvalidValue, match="iterated over already"):
            next(iter(s))
        break
    assert s.steps_done == 1
    for _ in s:  # the first is over
        s.step([])
    assert s.steps_done == 4


class Remembers(nn.Module):
    """Keeps what it saw last where no state dict has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("last", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x + self.last)
        self.last.copy_(x.mean(0))
        return out


def test_a_client_leaves_no_trace_in_what_the_next_one_sends(tmp_path: Path) -> None:
    tiny, model = task(), Remembers()
    work = Worker(plan=planned(), settings=Settings(algorithm="fedsgd"), losses=tiny.losses)
    pool = InProcess(work, tiny, partition(tiny, 4), tmp_path)
    (_, after), (alone,) = list(pool.ask(0, [1, 2], model)), list(pool.ask(0, [2], model))
    assert after.update is not None
    assert alone.update is not None
    for name, value in alone.update.items():
        assert torch.equal(value, after.update[name])


def test_only_chosen_clients_count_and_each_once() -> None:
    s = server(planned(batch_size=CLIENTS // 2))
    for chosen in s:
        others = sorted(set(range(CLIENTS)) - set(chosen))
        for wrong, says in ((others[:1], "was not asked"), (chosen[:1] * 2, "answered twice")):
            if wrong:
                with pytest.raises(InvalidValue, match=says):
                    s.step((k, update()) for k in wrong)
        s.step([])
    with pytest.raises(InvalidValue, match="without a round"):
        s.step([])


def test_a_round_whose_noise_was_drawn_is_over_even_if_the_optimizer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    s = server(planned())

    def broken() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(s.optimizer, "step", broken)
    rounds = iter(s)
    next(rounds)
    with pytest.raises(RuntimeError, match="broken"):
        s.step([])
    with pytest.raises(InvalidValue, match="without a round"):
        s.step([])


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"unit": "example"}, InvalidValue, "unit='example'"),
        ({"dataset_size": 30}, InvalidValue, "clients=20 must be the plan's dataset_size=30"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        server(planned(**given))


def test_a_rule_without_a_guarantee_is_refused() -> None:
    p = plan(
        epsilon=3.0,
        delta=1e-2,
        dataset_size=CLIENTS,
        batch_size=5,
        steps=5,
        unit="client",
        method="auto-step",
        uncertified=True,
    )
    with pytest.raises(Unsupported, match="has no guarantee"):
        server(p)


# --- what one client can do --------------------------------------------------------------------------


class Changing(dict[str, Tensor]):
    """Shows one thing the first time it is read, another thing later; or raises."""

    def __init__(self, *seen: object) -> None:
        super().__init__(update())
        self._seen = list(seen)

    def items(self) -> Any:
        found = self._seen.pop(0)
        if isinstance(found, Exception):
            raise found
        return found.items()


def with_weight(value: object) -> dict[str, Any]:
    return {"weight": value, "bias": torch.ones(2)}


BAD: dict[str, Callable[[], Any]] = {
    **{name: lambda make=make: with_weight(make(torch.ones(2, 3))) for name, make in UNREADABLE.items()},
    "one more": lambda: update() | {"more": torch.ones(1)},
    "one less": lambda: {"weight": torch.ones(2, 3)},
    "no mapping": lambda: [1, 2],
    "raises": lambda: Changing(RuntimeError(SECRET)),
    "nothing": lambda: None,
}
GOOD: dict[str, Callable[[], Any]] = {
    **{name: lambda make=make: with_weight(make(torch.ones(2, 3))) for name, make in READABLE.items()},
    "bad when read again": lambda: Changing(update(), update(float("nan"))),
    "huge": lambda: update(1e30),
    "small": lambda: update(1e-3),
}


@pytest.mark.parametrize("rule", ["flat", "per_layer", "normalised", "quantile", "adaclip"])
@pytest.mark.parametrize("name", BAD | GOOD)
def test_one_client_moves_the_sum_by_at_most_the_clip(name: str, rule: str) -> None:
    named = dict(nn.Linear(3, 2).named_parameters())
    others = [update(0.1 * k) for k in range(7)]
    made = clipping_rule(rule)
    for clip in (1e-3, 1.0, 50.0):
        without, with_ = (clipped_updates(u, named, made, clip) for u in (others, [*others, (BAD | GOOD)[name]()]))
        moved = torch.cat([(with_.grads[n] - without.grads[n]).flatten() for n in named]).double().norm()
        assert float(moved) <= clip * (1 + 1e-5)
        assert all(bool(g.isfinite().all()) for g in with_.grads.values())


def caught(s: Server, sent: object, caplog: pytest.LogCaptureFixture) -> tuple[Tensor, str]:
    """The weights after one round in which one client of all sends this, and what the log says."""
    caplog.clear()
    for chosen in s:
        s.step((k, sent if k == chosen[-1] else update(0.5)) for k in chosen)
        break
    return weights(s), caplog.text


@pytest.mark.parametrize("name", BAD)
def test_a_bad_update_costs_its_client_alone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The round is that in which the client did not answer, noise and divisor included, and the log names it."""
    p = planned(batch_size=CLIENTS)
    bad, log = caught(server(p, randomness=seeded(3)), BAD[name](), caplog)
    s = server(p, randomness=seeded(3))
    for chosen in s:
        s.step((k, update(0.5)) for k in chosen[:-1])
        break
    assert torch.equal(bad, weights(s))
    assert f"round 0: client {CLIENTS - 1} has dropped out: its " in log
    assert SECRET not in log


@pytest.mark.parametrize("name", GOOD)
def test_an_update_of_another_layout_counts_as_its_values(name: str, caplog: pytest.LogCaptureFixture) -> None:
    p = planned(batch_size=CLIENTS)
    found, log = caught(server(p, randomness=seeded(3)), GOOD[name](), caplog)
    same = {key: value.detach().float().clone() for key, value in GOOD[name]().items()}
    assert log == ""
    assert torch.equal(found, caught(server(p, randomness=seeded(3)), same, caplog)[0])
    assert not torch.equal(found, caught(server(p, randomness=seeded(3)), None, caplog)[0])


def test_many_updates_are_one_sum_however_they_are_read() -> None:
    named = dict(nn.Linear(3, 2).named_parameters())
    drawn = [{n: torch.randn(p.shape) for n, p in named.items()} for _ in range(150)]
    rule = clipping_rule("flat")
    found = clipped_updates(iter(drawn), named, rule, 1.0)
    for name in named:
        slow = sum(
            u[name].double() * min(1.0, 1.0 / float(torch.cat([v.flatten() for v in u.values()]).double().norm()))
            for u in drawn
        )
        assert torch.allclose(found.grads[name].double(), slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("there", [True, False])
def test_replayed_with_a_client_more_only_the_clip_differs(there: bool) -> None:
    """Frozen coins and noise: two neighbours' first rounds differ by at most clip / expected count, or not at all."""
    p = planned(clipping_norm=0.5, steps=1)

    def after(extra: Update | None) -> tuple[Tensor, bool]:
        s = server(p, randomness=seeded(3))
        for chosen in s:
            client = chosen[0] if there else next(k for k in range(CLIENTS) if k not in chosen)
            rest = [(k, update(0.3 * k)) for k in chosen if k != client]
            s.step([*rest, *([(client, extra)] if extra is not None and client in chosen else [])])
        return weights(s), client in chosen

    without, _ = after(None)
    with_, took_part = after(update(1e6))
    assert took_part == there
    moved = float((with_ - without).double().norm())
    bound = 0.5 / 5
    assert moved <= bound * (1 + 1e-4)
    assert (moved > 0.99 * bound) == there  # and the test would see more


# --- FedSGD and FedAvg ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_noise")
def test_without_noise_a_round_of_fedsgd_is_a_central_step() -> None:
    own = task()
    p = planned(batch_size=CLIENTS, clipping_norm=1e6, steps=1)  # everybody is asked, nothing is clipped
    torch.manual_seed(1)
    federated, central = own.network(), own.network()
    central.load_state_dict(federated.state_dict())
    s = Server(federated, torch.optim.SGD(federated.parameters(), lr=0.5), p, clients=CLIENTS)
    parts = partition(own, CLIENTS)
    work = LocalTraining(algorithm="fedsgd")
    for chosen in s:
        assert chosen == list(range(CLIENTS))
        s.step(
            (k, local_update(federated, tuple(t[parts[k]] for t in own.train), own.losses, work, Randomness()))
            for k in chosen
        )
    optimizer = torch.optim.SGD(central.parameters(), lr=0.5)
    own.losses(central(own.train[0]), own.train[1]).mean().backward()
    optimizer.step()
    for one, other in zip(federated.parameters(), central.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_fedavg_of_one_batch_is_lr_times_the_gradient() -> None:
    own = task()
    model = own.network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradient = local_update(model, own.train, own.losses, LocalTraining(algorithm="fedsgd"), Randomness())
    moved = local_update(model, own.train, own.losses, LocalTraining(epochs=1, batch=200, lr=0.3), Randomness())
    further = local_update(model, own.train, own.losses, LocalTraining(epochs=3, batch=200, lr=0.3), Randomness())
    for name in gradient:
        assert torch.allclose(moved[name], 0.3 * gradient[name], atol=1e-6)
        assert torch.equal(model.state_dict()[name], before[name])  # the model is left as it was
    assert any(not torch.allclose(further[name], moved[name], atol=1e-3) for name in gradient)


def test_a_client_without_records_says_nothing() -> None:
    own = task()
    found = local_update(own.network(), tuple(t[:0] for t in own.train), own.losses, LocalTraining(), Randomness())
    assert all(not bool(value.any()) for value in found.values())


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize(("make", "after"), [
    (lambda ps: torch.optim.SGD(ps, lr=1.0, momentum=0.5), [-1.0, -2.5]),
    (lambda ps: torch.optim.Adam(ps, lr=0.1), [-0.1, -0.2]),
])  # fmt: skip
def test_the_server_may_have_momentum_or_adam(make: object, after: list[float]) -> None:
    """With updates of 1 from everybody: SGD goes 1, then 1 + 0.5; Adam goes its rate each time."""
    p = planned(batch_size=CLIENTS, clipping_norm=1e6, steps=2)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    s = Server(model, make(model.parameters()), p, clients=CLIENTS)  # type: ignore[operator]
    seen = []
    for chosen in s:
        s.step((k, {"weight": torch.ones(1, 1)}) for k in chosen)
        seen.append(model.weight.item())
    assert seen == pytest.approx(after, abs=1e-5)


# --- going on ------------------------------------------------------------------------------------------


def test_a_server_that_goes_on_has_its_weights_and_never_the_same_round(tmp_path: Path) -> None:
    p = planned(rule="quantile", steps=6)
    first = server(p, out=tmp_path / "f")
    for _ in first:
        first.step([])
        if first.steps_done == 2:
            save(first, extra={"note": 7})
        if first.steps_done == 3:
            break
    kept = read_ledger(tmp_path / "f").ledger.steps
    first.close()
    model = nn.Linear(3, 2)
    again, extra = resume(
        model, torch.optim.SGD(model.parameters(), lr=1.0), p, clients=CLIENTS, out=tmp_path / "f"
    )  # fmt: skip
    with again:
        assert (kept, again.steps_done, extra) == (3, 3, {"note": 7})
        assert again.rule.state_dict() != clipping_rule("quantile").state_dict()
        assert again.spent().epsilon >= p.guarantee.epsilon * 0.5
        for _ in again:
            again.step([])
    assert (
        read_ledger(tmp_path / "f").ledger.steps == 6
    )  # the clip follows the releases, so the lines are not the plan's


def test_a_seeded_federation_says_that_it_is_not_private() -> None:
    one, other = (server(planned(), randomness=seeded(5)) for _ in range(2))
    for s in (one, other):
        for chosen in s:
            s.step((k, update()) for k in chosen)
    assert torch.equal(weights(one), weights(other))
    assert one.spent().label == one.guarantee.label == "claimed"
    assert "not private" in one.spent().method
