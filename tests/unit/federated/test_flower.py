"""The Flower apps over a grid in this process: the same rounds and ledgers; what nodes say or send is not trusted."""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flower_grid import LocalGrid
from privet import plan
from privet.errors import InvalidValue, MissingExtra
from privet.federated import flower
from privet.federated.federate import Federated
from privet.ledger.reading import read_ledger
from privet.planning import Plan
from privet.training.setup import seed_torch
from tiny_task import Net

pytest.importorskip("flwr", reason="needs privet[federated]")
# importing Flower 1.41 makes typer ask click for names that click 9 will not have
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.slow,
    pytest.mark.usefixtures("few_checks"),
]

CLIENTS = 4


def placed(folder: Path, *, unit: str = "client", **config: Any) -> dict[str, Any]:
    size, batch = (CLIENTS, 2) if unit == "client" else (50, 10)
    p = plan(delta=1e-2, dataset_size=size, batch_size=batch, steps=4, noise_multiplier=2.0, solve="epsilon", unit=unit)
    p.save(folder / "plan.json")
    return {
        "plan": str(folder / "plan.json"), "out": str(folder / "out"), "clients": CLIENTS, "task": "tiny_task:task",
        "wait": 1, "timeout": 20.0, "model": "", "evaluate-every": 2,
    } | config  # fmt: skip


def grid_of(config: dict[str, Any]) -> LocalGrid:
    return LocalGrid(flower.client_app(), clients=CLIENTS, config=config)


def test_all_rounds_are_made_and_charged(tmp_path: Path) -> None:
    config = placed(tmp_path)
    found = flower.serve(grid_of(config), config)
    p = Plan.load(tmp_path / "plan.json")
    assert (found.rounds, found.is_over, found.spent) == (4, True, p.guarantee)
    assert read_ledger(tmp_path / "out").ledger == p.ledger()
    assert [line["step"] for line in found.metrics] == [2, 4]
    assert found.spent is not None
    assert (found.spent.label, found.spent.unit) == ("certified", "client")


def test_clients_keep_their_own_ledgers(tmp_path: Path) -> None:
    config = placed(tmp_path, unit="example", **{"local-steps": 3})
    found = flower.serve(grid_of(config), config)
    assert found.rounds == 2  # 3 steps, then the 1 that is left
    assert {row["left"] for row in found.standing.values()} == {0}
    for client in range(CLIENTS):
        assert read_ledger(tmp_path / "out" / "clients" / f"{client:05d}").ledger.steps == 4


def test_a_client_may_keep_its_ledger_where_it_likes(tmp_path: Path) -> None:
    config = placed(tmp_path, unit="example", **{"local-steps": 4})
    grid = grid_of(config)
    grid.contexts[102].node_config["folder"] = str(tmp_path / "mine")
    found = flower.serve(grid, config)
    assert read_ledger(tmp_path / "mine").ledger.steps == 4
    assert found.standing[2]["left"] == 0  # by what it told
    assert found.spent is not None
    assert found.spent.label == "certified"


class Bad(LocalGrid):
    """Some nodes do not answer, fail, lie about who they are, or send nonsense."""

    def _run_node(self, message: Any) -> Any:
        node = message.metadata.dst_node_id
        if message.metadata.message_type == "query":
            if node == 103:
                self.contexts[node].node_config["partition-id"] = 0  # says it is client 0, too
            return super()._run_node(message)
        self.asked.append(node)
        reply = super()._run_node(message)
        if node == 101:
            reply.content["update"] = self._flwr.app.ArrayRecord({"x": torch.full((3,), float("nan"))})
        if node == 102:
            reply.content["standing"]["json"] = '{"spent": 7}'
        return reply


def test_nodes_that_lie_or_send_nonsense_have_dropped_out(tmp_path: Path) -> None:
    config = placed(tmp_path)
    grid = Bad(flower.client_app(), clients=CLIENTS, config=config)
    grid.asked = []
    found = flower.serve(grid, config)
    assert found.is_over
    assert 103 not in grid.asked
    assert found.spent == Plan.load(tmp_path / "plan.json").guarantee


def test_who_leaves_between_rounds_is_not_waited_for(tmp_path: Path) -> None:
    config = placed(tmp_path)
    grid = grid_of(config)
    grid.gone = {100, 101, 102, 103}
    config["wait"] = 0
    found = flower.serve(grid, config)  # nobody is there: noise alone
    assert (found.rounds, found.is_over) == (4, True)


def array_of(**fields: Any) -> Any:
    """An array as a node may write it that does not use Flower's own ways to make one."""
    from flwr.app import Array

    return Array(**{"dtype": "float32", "shape": (6, 4), "stype": "numpy.ndarray", "data": b"x"} | fields)


def saved(values: Any, *, allow_pickle: bool = False) -> bytes:
    out = io.BytesIO()
    np.save(out, values, allow_pickle=allow_pickle)
    return out.getvalue()


def declared(shape: str) -> bytes:
    """A header that promises more than there is."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


ARRAYS = {
    "no array": {"data": b"x"},
    "objects": {"data": saved(np.full((6, 4), None), allow_pickle=True)},
    "too few": {"data": declared("(6, 4)")},
    "a terabyte": {"data": declared("(1000000, 1000000)")},
    "another way": {"stype": "pickle"},
    "complex": {"data": saved(np.ones((6, 4), dtype=np.complex64))},
    "whole numbers": {"data": saved(np.ones((6, 4), dtype=np.int32))},
    "words": {"data": saved(np.full((6, 4), "x"))},
    "nan": {"data": saved(np.full((6, 4), np.nan, dtype=np.float32))},
    "other shape": {"data": saved(np.ones((4, 6), dtype=np.float32))},
}


def sent(reply: Any, how: str) -> Any:
    """What node 101 sends in place of its own reply."""
    if how in ARRAYS:
        reply.content["update"]["body.0.weight"] = array_of(**ARRAYS[how])
    elif how == "no update's names":
        reply.content["update"]["more"] = array_of(data=saved(np.ones(3, dtype=np.float32)))
    elif how == "no standing":
        del reply.content["standing"]
    elif how == "deep":
        reply.content["standing"]["json"] = "[" * 100_000
    elif how == "numbers as words":
        reply.content["standing"]["json"] = '{"spent": {"epsilon": "1"}, "planned": null, "left": null, "why": ""}'
    elif how == "below Flower":
        raise KeyError("2.718281828")
    return reply


class One(LocalGrid):
    """Node 101 sends something else."""

    how = ""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        for reply in super().pull_messages(message_ids):
            is_bad = reply.metadata.src_node_id == 101 and "standing" in reply.content
            yield sent(reply, self.how) if is_bad else reply


OTHERS = ("no update's names", "no standing", "deep", "numbers as words", "below Flower")
BOTH = ("objects", "nan", "below Flower")


@pytest.mark.parametrize(
    ("how", "unit"), [*((how, "client") for how in (*ARRAYS, *OTHERS)), *((how, "example") for how in BOTH)]
)
def test_a_hostile_message_costs_its_client_alone(
    tmp_path: Path, how: str, unit: str, caplog: pytest.LogCaptureFixture
) -> None:
    p = plan(
        delta=1e-2, dataset_size=CLIENTS, batch_size=CLIENTS, steps=2, noise_multiplier=2.0, solve="epsilon", unit=unit
    )
    config = placed(tmp_path, unit=unit, rounds=2)
    if unit == "client":
        p.save(config["plan"])
    grid = One(flower.client_app(), clients=CLIENTS, config=config)
    grid.how = how
    found = flower.serve(grid, config)
    assert found.is_over
    dropped = [line for line in caplog.text.splitlines() if "has dropped out" in line]
    assert len(dropped) == 2
    assert all("client 1 has dropped out: its " in line for line in dropped)
    assert "2.718" not in caplog.text
    if unit == "client":
        assert found.spent == p.guarantee
    else:
        assert {0, 2, 3} <= found.standing.keys()


def test_the_network_is_no_bad_client(tmp_path: Path) -> None:
    """Were it one, the rounds to come would be spent, and nobody could answer them."""

    class Down(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
            raise ConnectionError("down")

    config = placed(tmp_path)
    with pytest.raises(ConnectionError):
        flower.serve(Down(flower.client_app(), clients=CLIENTS, config=config), config)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sizes", "moves"), [("0,0,0,0", False), ("0,0,0,7", True), ("", True)])
def test_registered_sizes_are_the_weights(tmp_path: Path, sizes: str, moves: bool) -> None:
    """Where nobody has registered a record nobody has a say: the model is the one it began with."""
    config = placed(tmp_path, unit="example", rounds=1, sizes=sizes)
    flower.serve(grid_of(config), config)
    end = load_file(tmp_path / "out" / "checkpoint.safetensors")
    with seed_torch(json.loads((tmp_path / "out" / "federation.json").read_text())["weights_seed"]):
        start = Net().state_dict()
    assert [torch.equal(end[f"model.{name}"], value) for name, value in start.items()] == [not moves] * 4


@pytest.mark.parametrize("sizes", ["1,2", "a,b,c,d", "1,1,1,-1", "1.5,1,1,1"])
def test_sizes_that_are_no_weights_are_refused(tmp_path: Path, sizes: str) -> None:
    config = placed(tmp_path, unit="example", sizes=sizes)
    with pytest.raises(InvalidValue, match="sizes"):
        flower.serve(grid_of(config), config)


class Killed(Exception):
    pass


class Dying(LocalGrid):
    """The server dies in its third round, after clients were asked."""

    rounds = 0

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        messages = list(messages)
        if messages and messages[0].metadata.message_type == "train":
            self.rounds += 1
            if self.rounds == 3:
                raise Killed
        return super().push_messages(messages)


def test_a_server_that_died_goes_on_after_the_round_it_had_begun(tmp_path: Path) -> None:
    config = placed(tmp_path) | {"evaluate-every": 1}
    p = plan(
        delta=1e-2,
        dataset_size=CLIENTS,
        batch_size=CLIENTS,
        steps=6,
        noise_multiplier=2.0,
        solve="epsilon",
        unit="client",
    )
    p.save(config["plan"])
    with pytest.raises(Killed):
        flower.serve(Dying(flower.client_app(), clients=CLIENTS, config=config), config)  # type: ignore[arg-type]
    died = Federated.load(tmp_path / "out")
    assert (died.rounds, died.is_over) == (3, False)
    found = flower.serve(grid_of(config), config)
    assert (found.rounds, found.is_over) == (6, True)
    assert died.spent is not None
    assert found.spent is not None
    assert died.spent.epsilon < found.spent.epsilon == p.guarantee.epsilon


def test_a_federation_goes_on_by_its_own_plan_alone(tmp_path: Path) -> None:
    """Clients read the run config's: by one for clients they would send raw updates to a server that adds no noise."""
    config = placed(tmp_path, unit="example", rounds=1)
    flower.serve(grid_of(config), config)
    (tmp_path / "other").mkdir()
    config["plan"] = placed(tmp_path / "other")["plan"]
    with pytest.raises(InvalidValue, match="is not the one in out"):
        flower.serve(grid_of(config), config)


def reply_of(said: dict[str, Any]) -> Any:
    from flwr.app import ConfigRecord, Message, RecordDict

    content = RecordDict({"standing": ConfigRecord({"json": json.dumps(said)})})
    return Message(content, dst_node_id=1, message_type="train")


@pytest.mark.parametrize("told", [{"left": 10**30}, {"left": -1}, {"steps": 10**30}])
def test_counts_that_no_checkpoint_can_hold_are_not_read(told: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setattr(TaskIdentity, "_run_id", 1)  # whose a message is, also where no server ran before
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    spent = plan(
        delta=1e-2, dataset_size=50, batch_size=10, steps=4, noise_multiplier=2.0, solve="epsilon"
    ).guarantee.as_dict()
    said: dict[str, Any] = {"spent": spent, "planned": 1.0, "left": 3, "why": ""}
    good = flower._read_reply(0, reply_of(said))
    said |= {"left": told["left"]} if "left" in told else {"spent": spent | told}
    assert good is not None
    assert flower._read_reply(0, reply_of(said)) is None


def test_a_node_says_which_client_it_is() -> None:
    from flwr.app import Context, RecordDict

    for wrong in ({}, {"partition-id": -1}, {"partition-id": "0"}, {"partition-id": True}):
        with pytest.raises(InvalidValue, match="partition-id"):
            flower.client_number(Context(1, 1, wrong, RecordDict(), {}))


def test_without_flower_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(MissingExtra, match=r"privet\[federated\]"):
        flower.client_app()
