"""The ledger of a run on disk, written before each release, and what all runs on one dataset have spent."""
