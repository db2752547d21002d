"""Federated training with a budget that adds up: the same plan, over clients in this process or through Flower."""

from privet.federated.clients import ClientPool as ClientPool, ClientReply as ClientReply, local_update as local_update
from privet.federated.clipped_updates import clipped_updates as clipped_updates
from privet.federated.example_level import ExampleLevelClient as ExampleLevelClient
from privet.federated.federate import (
    Federated as Federated,
    federate as federate,
    resume_federation as resume_federation,
)
from privet.federated.partition import partition as partition
from privet.federated.server import Server as Server
from privet.federated.settings import LocalTraining as LocalTraining
