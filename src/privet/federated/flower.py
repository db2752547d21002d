"""The same federation through Flower: a ServerApp and a ClientApp that send models and updates as messages.

app = server_app()      # in the app's server module
app = client_app()      # in its client module; SuperNodes say which client they are: --node-config "partition-id=0"

The server's rounds, ledgers and checkpoints are those of `federate`: only the pool is another. Flower's own strategies
are not used: they average over who has answered, and they know no budget.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from privet import _check
from privet._text import shorten
from privet.accounting import Guarantee
from privet.data.task import Task, task as task_of
from privet.errors import InvalidValue, MissingExtra
from privet.federated.clients import ClientReply, Worker, client_folder
from privet.federated.clipped_updates import log_dropout
from privet.federated.federate import Federated, federate, resume_federation
from privet.federated.partition import partition
from privet.federated.settings import NAME, Settings, unused_settings
from privet.planning import Plan
from privet.sampling.loading import gather
from privet.training.checks import check_preprocessing
from privet.training.run import PLAN

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp


Records = Callable[["Context", Task], Any]  # the records of the client that a context is of
MOST_STEPS = 2**62  # more would not fit in a checkpoint
POLL = 0.2  # seconds between two looks at who is connected


def import_flower() -> Any:
    """Flower itself."""
    try:
        import flwr.app
        import flwr.clientapp
        import flwr.serverapp
    except ImportError:
        raise MissingExtra("flwr is not installed. Messages go through Flower. Install privet[federated].") from None
    return flwr


# --- the server --------------------------------------------------------------------------------------


class FlowerPool:
    """Clients behind a Flower grid. A node is told apart by the client number that it says it is, one node for each.

    Args:
        clients: numbers from 0 that may take part; a node that says another is not asked.
        timeout: seconds after which a client that was asked has dropped out.
        wait: how many clients must be connected before the first round.
        sizes: the records that each client registered with, public: the weights of a record-level average.
    """

    def __init__(
        self, grid: "Grid", *, clients: int, timeout: float = 60.0, wait: int = 1, sizes: Sequence[int] | None = None
    ) -> None:
        self._grid, self._clients, self._timeout, self._wait = grid, clients, timeout, wait
        self._client_of: dict[int, int] = {}  # by node
        self.sizes = sizes

    def ask(self, number: int, chosen: Sequence[int], model: nn.Module) -> Iterator[ClientReply]:
        flwr = import_flower()
        nodes = self._wait_for_nodes()
        content = {
            "weights": flwr.app.ArrayRecord(model.state_dict()), "round": flwr.app.ConfigRecord({"number": number})
        }  # fmt: skip
        asked = {nodes[client]: client for client in chosen if client in nodes}
        messages = [
            flwr.app.Message(
                flwr.app.RecordDict(content), dst_node_id=node, message_type="train", group_id=str(number),
                ttl=self._timeout,
            )
            for node in asked
        ]  # fmt: skip
        for node, reply in self._replies(messages):
            client = asked.pop(node)  # who it is, we know; what it says, we do not ask
            has_failed = reply is not None and reply.has_error()
            found = None if reply is None or has_failed else _read_reply(client, reply)
            if found is None:
                log_dropout(number, client, "its app has failed" if has_failed else "its message cannot be read")
            else:
                yield found
        for client in asked.values():
            log_dropout(number, client, "it has not answered in time")

    def _wait_for_nodes(self) -> dict[int, int]:
        """The node of each client that is there; the first time, once enough are, or the time is over."""
        end = time.monotonic() + self._timeout
        while True:
            found = self._find_client_nodes()
            if len(found) >= self._wait or time.monotonic() > end:
                self._wait = 0
                return found
            time.sleep(POLL)

    def _find_client_nodes(self) -> dict[int, int]:
        flwr = import_flower()
        here = set(self._grid.get_node_ids())
        self._client_of = {node: client for node, client in self._client_of.items() if node in here}
        messages = [
            flwr.app.Message(flwr.app.RecordDict(), dst_node_id=node, message_type="query", ttl=self._timeout)
            for node in sorted(here - set(self._client_of))
        ]
        for node, reply in self._replies(messages):
            client = None if reply is None or reply.has_error() else _reply_client(reply)
            if client is not None and client < self._clients and client not in self._client_of.values():
                self._client_of[node] = client
        return {client: node for node, client in self._client_of.items()}

    def _replies(self, messages: "list[Message]") -> "Iterator[tuple[int, Message | None]]":
        """Each node that answers in time, and its reply: None if Flower cannot make a message of it.

        They are pulled one by one: pulled together, one that cannot be read takes those of all others with it.
        """
        if not messages:
            return
        nodes = [message.metadata.dst_node_id for message in messages]
        waiting = {key: node for key, node in zip(self._grid.push_messages(messages), nodes, strict=False) if key}
        end = time.monotonic() + self._timeout
        while True:
            for key in list(waiting):
                found = self._pull_reply(key)
                if found:
                    yield waiting.pop(key), found[0]
            if not waiting or time.monotonic() > end:
                return
            time.sleep(POLL)

    def _pull_reply(self, key: str) -> "list[Message | None]":
        try:
            return list(self._grid.pull_messages([key]))
        except Exception as error:
            if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("httpx", "grpc"):
                raise  # the network: rounds that nobody can answer would spend the plan on nothing
            return [None]


def _reply_client(reply: "Message") -> int | None:
    try:
        found = reply.content.config_records["client"]["number"]
    except Exception:  # whatever a node may send, the others are asked
        return None
    return found if type(found) is int and found >= 0 else None


def _read_reply(client: int, reply: "Message") -> ClientReply | None:
    """What a client sent, as far as it can be read; None if it cannot: then it has dropped out."""
    try:
        content = reply.content
        told = json.loads(str(content.config_records["standing"]["json"]))
        spent = None if told["spent"] is None else Guarantee(**told["spent"])
        arrays = content.array_records.get("update")
        update = None if arrays is None else arrays.to_torch_state_dict()
        left, planned = told["left"], told["planned"]
        if left is not None and (type(left) is not int or not 0 <= left <= MOST_STEPS):
            return None
        if planned is not None:
            _check.non_negative(planned=planned)
        if spent is not None:
            _check.whole(least=0, steps=spent.steps)
            if spent.steps > MOST_STEPS:
                return None
        why = str(told["why"])[:200]
        return ClientReply(client=client, update=update, why=why, spent=spent, planned=planned, left=left)
    except Exception:  # whatever a client may send, the round goes on without it
        return None


def server_app() -> "ServerApp":
    """A ServerApp whose run config has `plan`, `out`, `wait`, `timeout`, and the settings, with dashes for underscores.

    A run that finds a federation in `out` goes on with it.
    """
    made: ServerApp = import_flower().serverapp.ServerApp()

    @made.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: "Grid", context: "Context") -> None:
        serve(grid, context.run_config)

    return made


def serve(grid: "Grid", config: Mapping[str, Any]) -> Federated:
    settings, folder = settings_from_config(config), Path(str(config["out"]))
    pool = FlowerPool(
        grid, clients=settings.clients, timeout=float(config.get("timeout", 60.0)), wait=int(config.get("wait", 1)),
        sizes=sizes_from_config(config),
    )  # fmt: skip
    if (folder / NAME).exists():
        _check_plan(str(config["plan"]), folder)
        return resume_federation(folder, pool=pool, tell=_print_line)
    plan = Plan.load(str(config["plan"]))
    idle = unused_settings(plan.recipe.budget.unit, settings.algorithm)  # one config has the keys of both units
    given = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in idle}
    return federate(plan, out=folder, pool=pool, tell=_print_line, **given)


def _check_plan(given: str, folder: Path) -> None:
    """Raise unless a federation goes on by its own plan: clients read the run config's, and both must protect alike."""
    if Plan.load(given).hash != Plan.load(folder / PLAN).hash:
        raise InvalidValue(
            f"plan={given!r} is not the one in out={str(folder)!r}. Clients would work by another plan than the server "
            "that goes on. Give the plan that it began with, or another out."
        )


def settings_from_config(config: Mapping[str, Any]) -> Settings:
    """The settings in a run config; an empty word counts as not given."""
    known = {field.name for field in fields(Settings)}
    table = {key.replace("-", "_"): value for key, value in config.items() if value != ""}
    return Settings.of({key: value for key, value in table.items() if key in known})


def sizes_from_config(config: Mapping[str, Any]) -> list[int] | None:
    """The records of each client, `sizes = "600,580"`, client 0 first; None if the config has none."""
    text = str(config.get("sizes", ""))
    if not text:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InvalidValue(
            f"sizes={shorten(text)!r} must be whole numbers with commas between them, one for each client. They are "
            "the weights of the average. Give sizes='600,580', say, or leave it out."
        ) from None


def _print_line(line: Mapping[str, Any]) -> None:
    print(json.dumps(line), flush=True)


# --- a client ----------------------------------------------------------------------------------------


def client_app(records: Records | None = None) -> "ClientApp":
    """A ClientApp that answers with an update on its own records. Its node config has `partition-id`, its number.

    In record-level privacy it keeps its plan and ledger in the node config's `folder`; without one, in a folder of its
    own under the run config's `out`.

    Args:
        records: gives the client's own records; without it, a part of the task's, for trials.
    """
    flwr = import_flower()
    made: ClientApp = flwr.clientapp.ClientApp()

    @made.query()  # type: ignore[untyped-decorator, unused-ignore]
    def query(message: "Message", context: "Context") -> "Message":
        said = flwr.app.ConfigRecord({"number": client_number(context)})
        return flwr.app.Message(flwr.app.RecordDict({"client": said}), reply_to=message)  # type: ignore[no-any-return]

    @made.train()  # type: ignore[untyped-decorator, unused-ignore]
    def train(message: "Message", context: "Context") -> "Message":
        found = run_client(message.content, context, records or client_part)
        return flwr.app.Message(_reply_content(found), reply_to=message)  # type: ignore[no-any-return]

    return made


def run_client(content: "RecordDict", context: "Context", records: Records) -> ClientReply:
    config, client = context.run_config, client_number(context)
    settings = settings_from_config(config)
    task = _load_task(settings.task)
    worker = Worker(plan=_load_plan(str(context.node_config.get("plan", config["plan"]))), settings=settings,
                    losses=task.losses)  # fmt: skip
    model = task.network(settings.model)
    model.load_state_dict(content.array_records["weights"].to_torch_state_dict())
    folder = Path(str(context.node_config.get("folder", client_folder(Path(str(config["out"])), client))))
    number = int(content.config_records["round"]["number"])  # type: ignore[arg-type]
    return worker.answer(client, records(context, task), model, folder=folder, number=number)


def client_number(context: "Context") -> int:
    found = context.node_config.get("partition-id")
    if type(found) is not int or found < 0:
        raise InvalidValue(
            f"partition-id={found!r} must be the client's number, from 0. The server samples clients by it. "
            "Give the SuperNode --node-config 'partition-id=0'."
        )
    return found


def client_part(context: "Context", task: Task) -> Any:
    settings = settings_from_config(context.run_config)
    return gather(task.train, partition(task, settings.clients, way=settings.split, seed=settings.split_seed)[
        client_number(context)
    ])  # fmt: skip


def _reply_content(answer: ClientReply) -> "RecordDict":
    flwr = import_flower()
    spent = None if answer.spent is None else answer.spent.as_dict()
    told = {
        "spent": spent, "planned": answer.planned, "left": answer.left, "why": answer.why
    }  # fmt: skip
    found = {"standing": flwr.app.ConfigRecord({"json": json.dumps(told)})}
    if answer.update is not None:
        found["update"] = flwr.app.ArrayRecord({name: value.cpu() for name, value in answer.update.items()})
    return flwr.app.RecordDict(found)  # type: ignore[no-any-return]


@lru_cache(maxsize=4)
def _load_task(spelling: str) -> Task:
    found = task_of(spelling)
    check_preprocessing(found.non_private_preprocessing)
    return found


_load_plan = lru_cache(maxsize=64)(Plan.load)
