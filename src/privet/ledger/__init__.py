"""The ledger of a run: each step is charged before its noise is drawn."""
