"""`privet federate` as a user calls it: both kinds of privacy, going on, mistakes; and killed at any moment."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import crashes
from privet import plan
from privet.federated.federate import Federated, federate
from privet.ledger.reading import read_ledger
from privet.planning import Plan
from privet.training import metrics
from typed import answer, refused, run

pytestmark = pytest.mark.usefixtures("few_checks")

CLIENTS = 10
TINY = "--task tiny_task:task"


def client_plan(place: Path, *, steps: int = 4, **given: object) -> Plan:
    usual = {
        "delta": 1e-2,
        "dataset_size": CLIENTS,
        "batch_size": 4,
        "noise_multiplier": 2.0,
        "solve": "epsilon",
        "unit": "client",
    }
    p = plan(steps=steps, **(usual | given))
    p.save(place / "plan.json")
    return p


def record_plan(place: Path, *, size: int = 20, steps: int = 4) -> Plan:
    p = plan(delta=1e-2, dataset_size=size, batch_size=5, steps=steps, noise_multiplier=2.0, solve="epsilon")
    p.save(place / "plan.json")
    return p


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_clients_are_protected(tmp_path: Path) -> None:
    p = client_plan(tmp_path)
    found = answer(f"federate --plan plan.json {TINY} --clients 10 --algorithm fedsgd --momentum 0.9 --dropout 0.3")
    assert (found["rounds"], found["planned"], found["over"], found["unit"]) == (4, 4, True, "client")
    assert found["guarantee"] == found["spent"] == p.guarantee.as_dict()
    assert found["held_out"]["step"] == 4
    assert "server sees" in found["trust"]
    told = answer("epsilon --from runs/federated")
    assert (told["label"], told["unit"], told["epsilon"]) == ("certified", "client", p.guarantee.epsilon)


@pytest.mark.slow
def test_fewer_rounds_cost_less_and_more_can_be_added_up_to_the_plan(tmp_path: Path) -> None:
    p = client_plan(tmp_path)
    half = answer(f"federate --plan plan.json {TINY} --rounds 2 --optimizer adam --out f")
    assert half["spent"]["epsilon"] < p.guarantee.epsilon == half["guarantee"]["epsilon"]
    more = answer("federate --resume f --rounds 4")
    assert (more["rounds"], more["spent"]) == (4, p.guarantee.as_dict())
    assert answer("federate --resume f")["rounds"] == 4  # it is over: nothing is done
    refused(run("federate --resume f --rounds 5"), "rounds=5 must be at most 4")


@pytest.mark.slow
def test_records_are_protected_by_each_client(tmp_path: Path) -> None:
    p = record_plan(tmp_path)
    text = run(f"federate --plan plan.json {TINY} --clients 10 --local-steps 3 --more 2").stdout
    for word in ("per example", "certified", "10 took part", "2 more rounds", "no client need trust"):
        assert word in text
    found = Federated.load("runs/federated")
    assert (found.rounds, found.planned) == (2, 2)
    assert found.spent is not None
    assert found.spent.epsilon == p.guarantee.epsilon
    assert all(row["left"] == 0 for row in found.standing.values())


@pytest.mark.slow
def test_a_thousand_clients_a_hundred_asked(tmp_path: Path) -> None:
    p = client_plan(tmp_path, steps=3, dataset_size=1000, batch_size=100, delta=1e-4)
    found = answer("federate --plan plan.json --task tiny_task:task:size=2000 --clients 1000")
    assert (found["rounds"], found["clients"], found["spent"]) == (3, 1000, p.guarantee.as_dict())


@pytest.mark.slow
def test_a_seed_makes_it_reproducible_and_not_private(tmp_path: Path) -> None:
    client_plan(tmp_path)
    one, other = (
        answer(f"federate --plan plan.json {TINY} --seed 3 --split dirichlet:alpha=0.3 --out {k}") for k in "ab"
    )
    assert one["held_out"]["held_out_loss"] == other["held_out"]["held_out_loss"]
    assert one["private"] is False
    assert one["guarantee"]["label"] == "claimed"


@pytest.mark.slow
def test_a_signal_ends_it_after_the_round_and_it_goes_on(tmp_path: Path) -> None:
    p = client_plan(tmp_path)
    stopped = federate(
        p, "tiny_task:task", out=tmp_path / "f", clients=CLIENTS, evaluate_every=1,
        tell=lambda line: os.kill(os.getpid(), signal.SIGINT),
    )  # fmt: skip
    assert (stopped.rounds, stopped.is_over) == (1, False)
    assert answer("federate --resume f")["rounds"] == 4
    assert Federated.load("f").spent == p.guarantee


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("federate", "--plan is missing"),
        (f"federate --plan plan.json {TINY} --clients 11", "clients=11 must be the plan's dataset_size=10"),
        (f"federate --plan plan.json {TINY} --rounds 9", "rounds=9 must be at most 4"),
        (f"federate --plan plan.json {TINY} --split user", "split='user' needs the owner"),
        (f"federate --plan plan.json {TINY} --algorithm fedprox", "algorithm='fedprox' must be one of"),
        (f"federate --plan plan.json {TINY} --dropout 2", "dropout=2.0 must be from 0 to 1"),
        (f"federate --plan plan.json {TINY} --sample 0.5", "sample=0.5 is not for a plan with unit='client'"),
        (f"federate --plan plan.json {TINY} --local-steps 2", "local_steps=2 is not for a plan with unit='client'"),
        (f"federate --plan plan.json {TINY} --algorithm fedsgd --local-lr 1", "local_lr=1.0 does not apply to"),
        (f"federate --plan plan.json {TINY} --momentum 1", "momentum=1.0 must be >= 0 and < 1"),
        ("federate --plan plan.json --task nowhere", "nowhere"),
        ("federate --resume nowhere", "there is no such file"),
        ("federate --resume nowhere --clients 3", "--clients is given beside --resume"),
        (f"federate --plan plan.json {TINY} --out full", "is not an empty folder"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, line: str, says: str) -> None:
    client_plan(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused(run(line), says)
    assert not (tmp_path / "runs").exists()


def test_a_federation_is_not_taken_for_a_run(tmp_path: Path) -> None:
    client_plan(tmp_path, steps=2)
    assert run(f"federate --plan plan.json {TINY} --rounds 1 --out f").exit_code == 0
    way_on = "`privet federate --resume f`"
    refused(run("report f"), way_on)
    refused(run("train --resume f"), way_on)
    refused(run(f"train {TINY} --epsilon 3 --delta 1e-3 --batch 20 --steps 2 --out f"), way_on)
    with contextlib.closing(metrics.Metrics(Path("f"))) as file:
        assert way_on in file._advice


@pytest.mark.parametrize("option", ["local-epochs 2", "local-batch 8", "algorithm fedavg"])
def test_what_belongs_to_the_protection_of_clients_is_not_passed_over(tmp_path: Path, option: str) -> None:
    record_plan(tmp_path)
    refused(run(f"federate --plan plan.json {TINY} --{option}"), "is not for a plan with unit='example'")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"weights": "a.safetensors"}, "training.weights='a.safetensors' of the plan does not apply to a federation"),
        ({"task": "digits"}, "task='tiny_task:task' is not training.task='digits' of the plan"),
    ],
)
def test_what_a_plan_asks_for_is_not_passed_over(tmp_path: Path, table: dict[str, str], says: str) -> None:
    client_plan(tmp_path, training=table)
    refused(run(f"federate --plan plan.json {TINY}"), says)


# --- killed --------------------------------------------------------------------------------------------

FEDERATE = (
    f"federate --plan plan.json --task crash_task:task --clients {CLIENTS} --algorithm fedsgd "
    f"--optimizer crash_task:Witness --lr 0.01 --out {crashes.FOLDER} --evaluate-every 2"
)
RECORDS = (
    f"federate --plan plan.json --task crash_task:task --clients 4 --local-steps 2 --out {crashes.FOLDER} "
    "--evaluate-every 1"
)
RESUME = f"federate --resume {crashes.FOLDER}"


@pytest.fixture(scope="module")
def forks() -> Iterator[crashes.Server]:
    with crashes.server() as found:
        yield found


def crashed_everywhere(forks: crashes.Server, place: Path, line: str) -> int:
    """How many calls that change a file there are in an unbroken run."""
    (place / "whole").mkdir()
    (place / "whole" / "plan.json").write_bytes((place / "plan.json").read_bytes())
    assert forks.run(place / "whole", line) == 0
    return int((place / "whole" / "calls").read_text())


def begun(place: Path, name: str) -> Path:
    found = place / name
    found.mkdir()
    (found / "plan.json").write_bytes((place / "plan.json").read_bytes())
    return found


SOME = [pytest.param(2, marks=pytest.mark.slow), pytest.param(25, marks=pytest.mark.prove)]  # moments of a kill


@pytest.mark.parametrize("moments", SOME)
def test_a_server_killed_at_any_moment_goes_on(tmp_path: Path, forks: crashes.Server, moments: int) -> None:
    """Each release was charged before; none is made twice; the plan is spent at the end, and no more."""
    p = client_plan(tmp_path, steps=5)
    calls = crashed_everywhere(forks, tmp_path, FEDERATE)
    for crash in range(calls // (2 * moments), calls, max(1, calls // moments)):
        place = begun(tmp_path, f"crash-{crash}")
        assert forks.run(place, FEDERATE, crash=crash) < 0
        before = crashes.check_covered(place, p)
        if not (place / crashes.FOLDER / "federation.json").exists():
            assert before == 0  # nothing was released yet
            continue
        charged = read_ledger(place / crashes.FOLDER).ledger.steps
        assert forks.run(place, RESUME) == 0, (place / "stderr").read_text()
        assert crashes.check_covered(place, p) <= 5
        found = Federated.load(place / crashes.FOLDER)
        assert (found.rounds, found.is_over) == (5, True)
        assert charged <= found.rounds
        assert read_ledger(place / crashes.FOLDER).ledger == p.ledger()


@pytest.mark.parametrize("moments", SOME)
def test_a_client_killed_at_any_moment_has_spent_what_it_had_charged(
    tmp_path: Path, forks: crashes.Server, moments: int
) -> None:
    record_plan(tmp_path, size=10)
    calls = crashed_everywhere(forks, tmp_path, RECORDS)
    for crash in range(calls // (2 * moments), calls, max(1, calls // moments)):
        place = begun(tmp_path, f"crash-{crash}")
        assert forks.run(place, RECORDS, crash=crash) < 0
        folder = place / crashes.FOLDER
        before = {
            ledger.parent.name: read_ledger(ledger).ledger.steps for ledger in folder.glob("clients/*/ledger.jsonl")
        }
        if not (folder / "federation.json").exists():
            assert not before
            continue
        assert forks.run(place, RESUME) == 0, (place / "stderr").read_text()
        after = {
            ledger.parent.name: read_ledger(ledger).ledger.steps for ledger in folder.glob("clients/*/ledger.jsonl")
        }
        assert all(after[name] >= steps for name, steps in before.items())
        assert max(after.values()) <= 4
        found = Federated.load(folder)
        assert found.spent is not None
        assert found.spent.label == "certified"
        assert {int(name): steps for name, steps in after.items()} == {
            client: row["steps"] for client, row in found.standing.items()
        }
        assert json.loads((folder / "federation.json").read_text())["format"] == "privet-federation"
