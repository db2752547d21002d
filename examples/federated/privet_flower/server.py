"""The server: samples clients by the plan, clips what they send, adds noise, keeps the ledger."""

from privet.federated.flower import server_app

app = server_app()
