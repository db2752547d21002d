"""The papers behind Privet: their tables, datasets and networks, the best recipes known, and the results that are kept.

It plugs into `privet` by entry points (papers/pyproject.toml): its commands, tasks, networks and recipes are there
where it is installed, and nothing of it is imported before it is asked for.
"""
