"""Training that cannot overspend: private steps, the ledger on disk, checkpoints."""
