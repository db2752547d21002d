"""A client: works on its own records and answers with an update.

For records of your own, write `def records(context, task)` that returns tensors (inputs, targets), and
`client_app(records)`.
"""

from privet.federated.flower import client_app

app = client_app()
