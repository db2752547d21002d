"""Federated training with a budget that adds up: the same plan, over clients in this process or through Flower."""

from privet.federated.aggregate import clipped_updates as clipped_updates
from privet.federated.federate import Federated as Federated
from privet.federated.federate import federate as federate
from privet.federated.federate import go_on as go_on
from privet.federated.fleet import Answer as Answer
from privet.federated.fleet import Fleet as Fleet
from privet.federated.local import Local as Local
from privet.federated.local import update_of as update_of
from privet.federated.records import RecordClient as RecordClient
from privet.federated.server import Server as Server
from privet.federated.split import split as split
