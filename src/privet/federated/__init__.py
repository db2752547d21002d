"""Federated training with a budget that adds up: the same plan, over clients in this process or through Flower."""

from privet.federated.clients import ClientPool as ClientPool
from privet.federated.clients import ClientReply as ClientReply
from privet.federated.clients import local_update as local_update
from privet.federated.clipped_updates import clipped_updates as clipped_updates
from privet.federated.example_level import ExampleLevelClient as ExampleLevelClient
from privet.federated.federate import Federated as Federated
from privet.federated.federate import federate as federate
from privet.federated.federate import resume_federation as resume_federation
from privet.federated.partition import partition as partition
from privet.federated.server import Server as Server
from privet.federated.settings import LocalTraining as LocalTraining
