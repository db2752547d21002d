"""A grid for Flower's server apps in this process: every node is called as soon as its reply is asked for."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from privet.federated import flower

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.clientapp import ClientApp

RUN, SERVER = 1, 1  # ids that Flower's messages carry
FAILED = 1  # the code of an error


class LocalGrid:
    """What Flower's server apps ask of a grid, from nodes that call a ClientApp at once.

    Node 100 + k has the node config partition-id=k: it is client k.

    Args:
        app: what every node runs.
        clients: how many nodes there are.
        config: the run config, which every app is given.
    """

    def __init__(self, app: "ClientApp", *, clients: int, config: Mapping[str, Any]) -> None:
        self._flwr: Any = flower.import_flower()
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER, 1
        self._app = app
        self.config = dict(config)
        made, empty = self._flwr.app.Context, self._flwr.app.RecordDict
        self.contexts = {100 + k: made(RUN, 100 + k, {"partition-id": k}, empty(), self.config) for k in range(clients)}
        self.gone: set[int] = set()  # nodes that do not answer
        self._sent: dict[str, Message] = {}  # pushed, and not pulled

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.gone]

    def push_messages(self, messages: "Iterable[Message]") -> Iterable[str]:
        """An id for each message; an empty one where nobody will answer."""
        found = []
        for message in messages:
            key = "" if message.metadata.dst_node_id in self.gone else uuid4().hex
            if key:
                self._sent[key] = message
            found.append(key)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> "Iterable[Message]":
        """The replies to these messages; a node works when its reply is asked for."""
        for key in message_ids:
            yield self._run_node(self._sent.pop(key))

    def send_and_receive(self, messages: "Iterable[Message]", *, timeout: float | None = None) -> "Iterable[Message]":
        for message in messages:
            if message.metadata.dst_node_id not in self.gone:
                yield self._run_node(message)

    def _run_node(self, message: "Message") -> "Message":
        """The node's reply; as over the network, an app that fails gives an error, and the others go on."""
        try:
            return self._app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            said = self._flwr.app.Error(FAILED, f"{type(error).__name__}: {error}")
            return self._flwr.app.Message(said, reply_to=message)  # type: ignore[no-any-return]
