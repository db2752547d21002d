"""A client that protects its own records: its ledger goes on across rounds and restarts, and its budget ends it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bad_updates import UNREADABLE
from privet import plan
from privet.accounting import Guarantee, spent
from privet.errors import BudgetExceeded, InvalidValue, NoSolution
from privet.federated.clients import ClientReply, InProcess, Worker
from privet.federated.example_level import (
    ExampleLevelClient,
    client_plan,
    epsilon_distribution,
    overall_guarantee,
    read_standings,
    standing_row,
    worst_guarantee,
)
from privet.federated.federate import server_optimizer
from privet.federated.loop import Records
from privet.federated.partition import partition
from privet.federated.settings import Settings
from privet.ledger.reading import read_ledger
from privet.planning import Plan
from tiny_task import task

pytestmark = pytest.mark.usefixtures("few_checks")

TASK = task()
P = plan(delta=1e-2, dataset_size=50, batch_size=10, steps=7, noise_multiplier=2.0, solve="epsilon")
DATA = tuple(part[:50] for part in TASK.train)


def went(client: ExampleLevelClient, steps: int) -> dict[str, Tensor]:
    model = TASK.network()
    return client.train_round(model, torch.optim.SGD(model.parameters(), lr=0.1), TASK.losses, steps=steps)


def test_the_ledger_goes_on_over_rounds_and_restarts_until_the_plan_is_spent(tmp_path: Path) -> None:
    seen = []
    for steps in (3, 3, 3):
        client = ExampleLevelClient(tmp_path / "c", P, DATA)  # a new process, as far as it knows
        before = client.spent().epsilon
        assert all(bool(value.isfinite().all()) for value in went(client, steps).values())
        assert client.spent().epsilon > before
        assert client.made == read_ledger(tmp_path / "c").ledger.steps
        seen.append(client.made)
    assert seen == [3, 6, 7]
    assert client.spent() == P.guarantee
    with pytest.raises(BudgetExceeded, match="plan is used up"):
        went(client, 1)
    assert read_ledger(tmp_path / "c").ledger == P.ledger()


def test_what_it_has_spent_is_what_its_ledger_says(tmp_path: Path) -> None:
    client = ExampleLevelClient(tmp_path / "c", P, DATA)
    assert client.spent().epsilon == 0.0
    went(client, 2)
    assert client.spent().epsilon == spent(read_ledger(tmp_path / "c").ledger, 1e-2).epsilon


def test_empty_batches_are_steps_like_others(tmp_path: Path) -> None:
    """At one record in the mean a third of the batches is empty: they are charged, and the plan ends when it should."""
    p = plan(delta=1e-2, dataset_size=50, batch_size=1, steps=40, noise_multiplier=2.0, solve="epsilon")
    client = ExampleLevelClient(tmp_path / "c", p, DATA)
    while client.left:
        before = client.made
        went(client, 5)
        assert client.made == before + 5  # not one more for an empty batch: the server is told, and coins are secret
        assert client.made == read_ledger(tmp_path / "c").ledger.steps
    assert read_ledger(tmp_path / "c").ledger == p.ledger()


def test_a_torn_line_is_charged(tmp_path: Path) -> None:
    went(ExampleLevelClient(tmp_path / "c", P, DATA), 2)
    file = tmp_path / "c" / "ledger.jsonl"
    file.write_bytes(file.read_bytes() + b'{"step":2,"cou')
    client = ExampleLevelClient(tmp_path / "c", P, DATA)
    assert client.made == 3
    went(client, 1)
    assert (client.made, read_ledger(tmp_path / "c").ledger.steps) == (4, 4)


def test_before_it_agrees_it_sees_what_more_rounds_cost(tmp_path: Path) -> None:
    client = ExampleLevelClient(tmp_path / "c", P, DATA)
    found = client.outlook([5, 10], within=P.guarantee.epsilon * 1.5)
    first, second = (row.guarantee for row in found.rows)
    assert P.guarantee.epsilon < first.epsilon < second.epsilon
    assert first.label == "certified"


def test_a_client_of_another_size_plans_for_itself() -> None:
    p = plan(epsilon=2.0, delta=1e-2, dataset_size=50, batch_size=10, steps=7)
    assert client_plan(p, 50) is p
    small = client_plan(p, 25)
    assert (small.recipe.dataset_size, len(small.steps)) == (25, 7)
    assert small.guarantee.epsilon <= 2.0
    assert small.steps[0].noise_multiplier > p.steps[0].noise_multiplier


def test_clients_are_not_a_clients_records(tmp_path: Path) -> None:
    p = plan(delta=1e-2, dataset_size=50, batch_size=10, steps=7, noise_multiplier=2.0, solve="epsilon", unit="client")
    with pytest.raises(InvalidValue, match="unit='client'"):
        ExampleLevelClient(tmp_path / "c", p, DATA)


def test_a_client_without_records_makes_as_many_steps_as_one_with_some(tmp_path: Path) -> None:
    """Under add-remove nobody may know it: the round's steps, its update and what is left are told to the server."""
    p = plan(
        delta=1e-2,
        dataset_size=50,
        batch_size=5,
        steps=9,
        noise_multiplier=2.0,
        solve="epsilon",
        adjacency="add-remove",
    )
    empty = ExampleLevelClient(tmp_path / "c", p, tuple(part[:0] for part in DATA))
    for made in (4, 8, 9):
        went(empty, 4)
        assert (empty.made, empty.left) == (made, 9 - made)


def test_spending_by_another_plan_is_not_priced_by_this_one(tmp_path: Path) -> None:
    went(ExampleLevelClient(tmp_path / "c", P, DATA), 7)
    cheaper = plan(delta=1e-2, dataset_size=50, batch_size=10, steps=7, noise_multiplier=20.0, solve="epsilon")
    with pytest.raises(InvalidValue, match="another plan"):
        ExampleLevelClient(tmp_path / "c", cheaper, DATA)


# --- over many -----------------------------------------------------------------------------------------


def worker(p: Plan = P, **given: object) -> Worker:
    return Worker(plan=p, settings=Settings(local_steps=4, **given), losses=TASK.losses)


def test_an_answer_says_where_the_budget_stands_and_a_spent_client_refuses(tmp_path: Path) -> None:
    model = TASK.network()
    first, second, third = (
        worker().answer(3, DATA, model, folder=tmp_path / "c", number=number) for number in range(3)
    )
    assert (first.left, second.left, third.left) == (3, 0, 0)
    assert third.update is None
    assert "plan is used up" in third.why
    assert second.spent == third.spent == P.guarantee


def test_a_client_with_too_few_records_does_not_take_part(tmp_path: Path) -> None:
    p = plan(epsilon=1.0, delta=1e-2, dataset_size=50, batch_size=10, steps=7)
    with pytest.raises((NoSolution, InvalidValue)):
        client_plan(p, 5)
    found = worker(p).answer(0, tuple(part[:5] for part in DATA), TASK.network(), folder=tmp_path / "c", number=0)
    assert found.update is None
    assert found.left == 0
    assert "cannot plan" in found.why
    assert not (tmp_path / "c").exists()


def test_where_the_number_of_records_is_private_nobody_is_told_it(tmp_path: Path) -> None:
    p = plan(
        delta=1e-2,
        dataset_size=50,
        batch_size=10,
        steps=7,
        noise_multiplier=2.0,
        solve="epsilon",
        adjacency="add-remove",
    )
    found = worker(p).answer(0, tuple(part[:37] for part in DATA), TASK.network(), folder=tmp_path / "c", number=0)
    assert found.planned == p.guarantee.epsilon
    pool = InProcess(worker(p), TASK, partition(TASK, 3), tmp_path)
    assert pool.sizes is None
    assert Plan.load(tmp_path / "c" / "plan.json") == p


def records(clients: int = 5, **given: Any) -> Records:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Records(model=model, optimizer=optimizer, sample=1.0, clients=clients, standing={}, **given)


def said(client: int, value: Any, left: int = 2) -> ClientReply:
    sent = {"weight": torch.full((1, 1), value) if isinstance(value, float) else value}
    return ClientReply(client=client, update=sent, left=left, spent=P.guarantee)


def moved(server: Records) -> float:
    return server.model.weight.item()


def test_the_server_averages_by_registered_size_and_asks_no_client_that_is_done() -> None:
    server = records(sizes=[30, 10, 9, 0, 5])
    server.step([said(0, 1.0), said(1, 2.0, left=0), said(2, float("nan")),
                 ClientReply(client=3, update=None, why="no", left=0)])  # fmt: skip
    assert moved(server) == pytest.approx(-(30 * 1.0 + 10 * 2.0) / 40)
    assert server.choose_clients() == [0, 2, 4]
    server.step([])  # nobody answers: nothing moves
    assert moved(server) == pytest.approx(-1.25)
    assert server.steps_done == 2


def test_without_registered_sizes_all_weigh_alike() -> None:
    server = records()
    server.step([said(0, 1.0), said(1, 2.0), said(2, 3.0)])
    assert moved(server) == pytest.approx(-2.0)


@pytest.mark.parametrize("sizes", [[30, 10], [1, 1, 1, 1, -1], [1, 1, 1, 1, 0.5]])
def test_sizes_that_are_no_weights_are_refused(sizes: list[Any]) -> None:
    with pytest.raises(InvalidValue, match="sizes"):
        records(sizes=sizes)


BAD: dict[str, Callable[[], Any]] = {
    name: lambda make=make: make(torch.ones(1, 1)) for name, make in UNREADABLE.items()
} | {f"times {factor:g}": lambda factor=factor: torch.full((1, 1), factor) for factor in (-1e30, -100.0, 0.0, 1e38)}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", [0, 2, 4])
def test_one_bad_client_does_not_decide_the_average(bad: str, place: int) -> None:
    """The four others send about 1: with it the average may move by its share of three of them, and no further."""
    values: list[Any] = [0.9, 1.0, 1.1, 1.0]
    values.insert(place, BAD[bad]())
    server = records()
    server.step(said(k, value) for k, value in enumerate(values))
    assert (4.0 - 3 * 1.1) / 5 <= -moved(server) <= (4.0 + 3 * 1.1) / 5


def test_who_answers_twice_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    server = records()
    server.step([said(0, 1.0), said(1, 2.0), said(1, 2.0), said(7, 2.0), said(-1, 2.0)])
    assert moved(server) == pytest.approx(-1.5)
    assert caplog.text.count("has dropped out: it has answered twice, or was not asked") == 3
    assert sorted(server.standing) == [0, 1]


@pytest.mark.parametrize(
    ("given", "kind", "rate"),
    [
        ({}, "SGD", 1.0),
        ({"algorithm": "fedsgd", "momentum": 0.9}, "SGD", 0.1),
        ({"optimizer": "adam", "momentum": 0.0}, "Adam", 0.01),
        ({"optimizer": "adam", "lr": 0.5}, "Adam", 0.5),
    ],
)
def test_the_servers_optimizer(given: dict[str, object], kind: str, rate: float) -> None:
    made = server_optimizer(Settings(**given), P, TASK.network())
    assert (type(made).__name__, made.param_groups[0]["lr"]) == (kind, rate)
    assert made.param_groups[0].get("momentum", 0.0) == given.get("momentum", 0.0)


def test_the_worst_and_the_distribution_are_told(tmp_path: Path) -> None:
    went(ExampleLevelClient(tmp_path / "clients" / "00004", P, DATA), 7)
    went(ExampleLevelClient(tmp_path / "clients" / "00002", P, DATA), 1)
    told = {
        "0": standing_row(None, planned=None, left=0, why="cannot plan"),
        "2": standing_row(None, planned=None, left=None),
    }
    found, notes = read_standings(tmp_path, P, told, seeded=False)
    worst = worst_guarantee(P, found)
    assert worst is not None
    assert (worst.epsilon, worst.label, worst.unit) == (P.guarantee.epsilon, "certified", "example")
    spread = epsilon_distribution(found)
    assert (spread["clients"], spread["stopped"], spread["refused"]) == (2, 2, 1)
    assert spread["least"] < spread["most"] == P.guarantee.epsilon
    assert notes == ()
    larger = {**found, 9: standing_row(worst, planned=99.0, left=1)}
    assert (overall_guarantee(P, found), overall_guarantee(P, larger).epsilon) == (P.guarantee, 99.0)


def answering(*answers: ClientReply) -> tuple[Records, float]:
    server = records()
    for answer in answers:
        server.step([answer])
    return server, moved(server)


def test_an_update_without_noise_does_not_reach_the_model() -> None:
    """A client whose plan is for unit="client" leaves the noise to the server; the server of records adds none."""
    one = {"weight": torch.ones(1, 1)}
    assert answering(ClientReply(client=0, update=one))[1] == 0.0
    assert answering(ClientReply(client=0, update=one, spent=P.guarantee))[1] == -1.0


@pytest.mark.parametrize("later", [None, spent(P.ledger().first(1), 1e-2)])
def test_what_a_client_has_spent_is_not_forgotten(tmp_path: Path, later: Guarantee | None) -> None:
    first = ClientReply(client=2, update=None, spent=P.guarantee, planned=P.guarantee.epsilon, left=1)
    server, _ = answering(first, ClientReply(client=2, update=None, spent=later, why="another disk", left=0))
    assert (server.standing[2]["epsilon"], server.standing[2]["steps"]) == (P.guarantee.epsilon, 7)
    assert (server.standing[2]["left"], server.standing[2]["why"]) == (0, "another disk")
    went(ExampleLevelClient(tmp_path / "clients" / "00002", P, DATA), 1)  # a ledger with less than was told
    found, _ = read_standings(tmp_path, P, {"2": server.standing[2]}, seeded=False)
    assert found[2]["epsilon"] == P.guarantee.epsilon


def test_what_is_said_of_all_clients_is_certified_only_if_that_of_each_is() -> None:
    sure, guess = P.guarantee, replace(P.guarantee, epsilon=0.1, epsilon_lower=None, label="approximate")
    standing = {0: standing_row(sure, planned=None, left=1), 1: standing_row(guess, planned=None, left=1)}
    found = worst_guarantee(P, standing)
    assert found is not None
    assert (found.epsilon, found.label) == (sure.epsilon, "approximate")
