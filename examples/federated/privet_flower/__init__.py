"""A Flower app: the plan's rounds over SuperNodes."""
