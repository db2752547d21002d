"""What every schedule promises, run over everything registered. A new shape adds its smallest options here."""

import dataclasses

import numpy as np
import pytest

from privet import schedules
from privet.diagnosis import plugin_contract
from privet.diagnosis.plugin_contract import SCHEDULE
from privet.schedules import schedule, schedule_values, to_spec

MINIMAL = {
    "constant": {},
    "linear": {"end": 0.3},
    "exponential": {"decay": 0.01},
    "time": {"decay": 0.5},
    "step": {"factor": 0.5, "every": 100},
    "cosine": {},
    "cyclic": {"half": 3, "decay": 0.1, "fade": 0.0005},
    "piecewise": {"points": [[0, 1], [0.3, 0.5], [1, 0.2]]},
    "table": lambda steps: {"rows": np.linspace(1, 0.5, steps)},
    "product": {"parts": ["cosine", "time:decay=0.1"]},
    "join": {"parts": ["constant", "linear:end=0.1"], "at": [0.25]},
}
STEPS = (1, 2, 3, 10, 1000)


def mapping(name, steps):
    assert name in MINIMAL, f"add the smallest options of {name!r} to MINIMAL"
    options = MINIMAL[name]
    return {"kind": name, **(options(steps) if callable(options) else options)}


every_name = pytest.mark.parametrize("name", schedules.registry.names())
every_length = pytest.mark.parametrize("steps", STEPS)


def test_the_table_of_options_names_only_what_exists():
    assert sorted(MINIMAL) == sorted(schedules.registry.names())


@every_name
@pytest.mark.parametrize("check", SCHEDULE.checks)
def test_it_keeps_the_contract(name, check, monkeypatch):
    if callable(MINIMAL[name]):  # a table has a length of its own
        monkeypatch.setattr(plugin_contract, "LENGTHS", (10,))
    assert SCHEDULE.checks[check](mapping(name, 10)) == ""


@every_name
@every_length
def test_the_height_is_one(name, steps):
    """Planning multiplies by a height, so a shape left at its defaults begins at 1."""
    assert schedule_values(mapping(name, steps), steps)[0] == 1.0


@every_name
@every_length
def test_the_spelling_is_read_back(name, steps):
    made = schedule(mapping(name, steps))
    text = to_spec(made)
    assert schedule(text) == made
    assert to_spec(schedule(text)) == text
    assert np.array_equal(schedule_values(text, steps), schedule_values(made, steps))


@every_name
def test_it_is_a_frozen_value(name):
    made = schedule(mapping(name, 3))
    first = dataclasses.fields(made)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, first, getattr(made, first))
    assert hash(made) == hash(schedule(mapping(name, 3)))


@every_name
def test_it_is_part_of_a_product_and_a_join(name):
    part = mapping(name, 10)
    alone = schedule_values(part, 10)
    assert schedule_values([2, part], 10) == pytest.approx(2 * alone)
    assert np.array_equal(schedule_values({"kind": "join", "parts": [3, part], "at": 0.5}, 20)[10:], alone)
