import math
import re
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from privet.errors import InvalidValue
from privet.schedules import (
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    InverseTime,
    Join,
    Linear,
    Piecewise,
    Product,
    Schedule,
    StepDecay,
    Table,
    schedule,
    schedule_values,
    to_spec,
)

DOCS = Path(__file__).parents[3] / "docs"


@dataclass(frozen=True)
class Own:
    """A user's class, by its address. `answer` picks what it gives back."""

    answer: str = "good"
    at: int = 0

    def values(self, steps):
        made = {
            "good": np.ones(steps),
            "list": [1] * steps,
            "short": np.ones(steps - 1),
            "column": np.ones((steps, 1)),
            "scalar": 1.0,
            "words": ["a"] * steps,
            "complex": np.ones(steps, complex),
            "bool": np.ones(steps, bool),
        }
        if self.answer in made:
            return made[self.answer]
        bad = np.ones(steps)
        bad[self.at :] = float(self.answer)
        return bad


class Plain(Schedule):
    def values(self, steps):
        return np.full(steps, 2.0)


OWN = f"{__name__}:Own"


# Values, worked out by hand.


@pytest.mark.parametrize(
    ("text", "steps", "wanted"),
    [
        ("constant", 2, [1, 1]),
        ("2.5", 2, [2.5, 2.5]),
        ("linear:end=0.5", 3, [1, 0.75, 0.5]),
        ("linear:end=0.5,grid=before", 2, [1, 0.75]),
        ("linear:end=0.5,grid=after", 2, [0.75, 0.5]),
        ("linear:start=4,end=2", 3, [4, 3, 2]),
        ("linear:start=4,end=2,power=2", 3, [4, math.sqrt(10), 2]),
        ("linear:decay=0.25", 3, [1, 0.75, 0.5]),
        ("linear:decay=0.25,grid=after", 3, [0.75, 0.5, 0.25]),
        ("exponential:start=4,end=1", 3, [4, 2, 1]),
        ("exponential:start=4,end=1,every=2", 6, [4, 4, 2, 2, 1, 1]),
        ("exponential:start=4,end=1,every=2.5", 6, [4, 4, 4, 2, 2, 1]),
        ("exponential:decay=1,power=2", 2, [1, math.exp(-0.5)]),
        ("time:decay=1", 3, [1, 1 / 2, 1 / 3]),
        ("time:decay=3,power=2,start=6", 2, [6, 3]),
        ("step:factor=0.5,every=2", 5, [1, 1, 0.5, 0.5, 0.25]),
        ("cosine:end=0.5", 3, [1, 0.75, 0.5]),
        ("cosine", 1, [1]),
        ("cyclic:half=2,decay=0.25", 6, [1, 0.75, 0.5, 0.75, 1, 0.75]),
        ("cyclic:half=1,decay=0.5,fade=0.25", 4, [1, 0.5, 0.5, 0.25]),
        ("piecewise:0=1,0.5=0.5,1=0.25", 5, [1, 0.75, 0.5, 0.375, 0.25]),
        ("piecewise:0.5=2", 3, [2, 2, 2]),
        ("table:1,1/2,0.25", 3, [1, 0.5, 0.25]),
        ("0.5 * linear:end=0.5 * 4", 3, [2, 1.5, 1]),
        ("constant until 0.5 then step:factor=0.5,every=1", 4, [1, 1, 1, 0.5]),
        ("1 until 0.25 then 2 * 2 until 3/4 then 3", 4, [1, 4, 4, 3]),
        ("(1 until 0.5 then 2) * (2 until 0.5 then 8)", 2, [2, 16]),
        (OWN, 2, [1, 1]),
        (f"{OWN}:answer=list", 3, [1, 1, 1]),
    ],
)
def test_values(text, steps, wanted):
    values = schedule_values(text, steps)
    assert values.dtype == np.float64
    assert values == pytest.approx(wanted, rel=1e-14)


def test_start_and_end_are_met_exactly_whatever_the_power():
    for shape in (Linear, Exponential, Cosine):
        for power in (1, 2, 0.5):
            values = schedule_values(shape(start=3.0, end=0.7, power=power), 101)
            assert values[[0, -1]] == pytest.approx([3.0, 0.7], rel=1e-14)


def test_a_steep_rise_does_not_lose_its_start():
    for shape in (Linear, Exponential, Cosine):
        values = schedule_values(shape(start=1e-6, end=1e6, power=3), 11)
        assert values[[0, -1]] == pytest.approx([1e-6, 1e6])


def test_a_part_of_a_join_without_steps_is_left_out():
    join = schedule("1 until 0.1 then 2 until 0.2 then 3")
    assert schedule_values(join, 1).tolist() == [1]
    assert schedule_values(join, 5).tolist() == [1, 3, 3, 3, 3]  # 0/5 < 0.1; 1/5 is not < 0.2


def test_the_cut_of_a_join_is_not_moved_by_rounding():
    assert 0.07 * 100 > 7
    for steps in (10, 100, 300):
        for percent in range(1, 100):
            values = schedule_values(Join(parts=(1, 2), at=percent / 100), steps)
            assert (values == 1).sum() == -(-percent * steps // 100)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("steps_to_zero", range(2, 60))
def test_a_line_that_reaches_zero_reaches_it_exactly(steps_to_zero, power):
    """1 - (1/49) 49 is 1e-16 in floating point: a noise of 1e-16 must not pass for noise."""
    shape = Linear(decay=1 / steps_to_zero, power=power)
    assert schedule_values(shape, steps_to_zero)[-1] > 1e-3
    with pytest.raises(InvalidValue, match=f"is 0 at step {steps_to_zero} "):
        schedule_values(shape, steps_to_zero + 1)


# Spelling.


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("exponential:end=1/4", Exponential(end=0.25)),
        (" exponential : end = 0.3 , grid = after ", Exponential(end=0.3, grid="after")),
        ({"kind": "exponential", "end": 0.3}, Exponential(end=0.3)),
        ({"kind": "exponential", "end": "1/4", "grid": "after"}, Exponential(end=0.25, grid="after")),
        (2, Constant(value=2.0)),
        (np.float32(0.5), Constant(value=0.5)),
        ("1e-3", Constant(value=0.001)),
        ([1, 0.5], Table(rows=(1.0, 0.5))),
        (np.array([1, 2]), Table(rows=(1.0, 2.0))),
        ({"kind": "table", "rows": [1, 0.5]}, Table(rows=(1.0, 0.5))),
        (["cosine", {"kind": "time", "decay": 1}], Product(parts=(Cosine(), InverseTime(decay=1)))),
        ([2, "cosine"], Product(parts=(Constant(value=2), Cosine()))),
        (["cosine"], Cosine()),
        ("cosine*time:decay=1", Product(parts=(Cosine(), InverseTime(decay=1)))),
        ("((cosine))", Cosine()),
        ({"kind": "piecewise", "points": [[0, 1], [1, 0.5]]}, Piecewise(points=((0, 1), (1, 0.5)))),
        ({"kind": "piecewise", "points": {"0": 1, "1": 0.5}}, Piecewise(points=((0, 1), (1, 0.5)))),
        ({"kind": "join", "parts": [1, "cosine"], "at": "1/4"}, Join(parts=(1, Cosine()), at=(0.25,))),
        ("1 until 1/4 then\n cosine", Join(parts=(1, Cosine()), at=(0.25,))),
        (f"{OWN}:at=4", Own(at=4)),
        ({"kind": OWN, "answer": "4"}, Own(answer="4")),
        (Own(), Own()),
        ("step:factor=0.5,every=60000/64", StepDecay(factor=0.5, every=937.5)),
        ("cyclic:half=4,decay=0.1,fade=0.01", Cyclic(half=4, decay=0.1, fade=0.01)),
    ],
)
def test_every_way_to_write_it(spec, wanted):
    assert schedule(spec) == wanted
    assert schedule(to_spec(spec)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "constant",
        "constant:value=2",
        "exponential:end=0.3,grid=after",
        "step:factor=0.5,every=9375,power=2",
        "piecewise:0=1,0.5=0.4,1=0.2",
        "table:1,0.9,0.8",
        "cosine * time:decay=0.01",
        "constant until 0.25 then linear:end=0.1",
        "(cosine * time:decay=1) * linear:end=0.1",
        "(constant until 0.5 then (cosine * cosine)) until 0.1 then cosine",
        f'{OWN}:answer="a b"',
    ],
)
def test_the_spelling_of_a_plain_text_is_that_text(text):
    assert to_spec(text) == text


def test_a_class_without_options_is_spelt_by_its_address():
    assert isinstance(schedule(to_spec(Plain())), Plain)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("expnential:end=0.3", "Did you mean 'exponential'"),
        ("exponential:edn=0.3", "no option 'edn'. Did you mean 'end'"),
        ({"kind": "linear", "end": 0.1, "gird": "after"}, "Did you mean 'grid'"),
        ("linear:end=0.1,grid=aftr", "Did you mean 'after'"),
        ("linear", "end=None, decay=None: give exactly one"),
        ("exponential:end=1,decay=1", "end=1, decay=1: give exactly one"),
        ("linear:end=0", "end=0 must be finite and > 0"),
        ("linear:end=nan", "end=nan must"),
        ("linear:end=abc", "end='abc' must"),
        ("exponential:decay=-1", "decay=-1 must be finite and >= 0"),
        ("time:decay=-1", "decay=-1 must"),
        ("time", "needs the option 'decay'"),
        ("step:factor=0.5", "needs the option 'every'"),
        ("step:factor=0,every=2", "factor=0 must"),
        ("cosine:every=0.5", "every=0.5 must be >= 1"),
        ("cosine:every=inf", "every=inf must"),
        ("cosine:power=0", "power=0 must"),
        ("cosine:start=-1", "start=-1 must"),
        ("cosine:end=0", "end=0 must"),
        ("cyclic:half=2.5,decay=0.1", "half=2.5 must be a whole number"),
        ("cyclic:half=2,decay=0.1,fade=-1", "fade=-1 must"),
        ("constant:value=0", "value=0 must"),
        (0, "value=0.0 must"),
        (math.nan, "value=nan must"),
        ("piecewise:0=1,0=2", "rising shares"),
        ("piecewise:0=1,nan=2,1=3", "rising shares"),
        ("piecewise:0=1,1.5=2", "rising shares"),
        ("piecewise:0=1,1=-2", "points[1]=-2.0 must"),
        ("piecewise:0=1,x", "must read share=value"),
        ("piecewise", "must read share=value"),
        ({"kind": "piecewise", "points": [1, 2]}, "(share, value) pairs"),
        ([1, math.nan], "rows[1]=nan must"),
        ([1, -2], "rows[1]=-2 must"),
        ({"kind": "table", "rows": [1, "a"]}, "rows[1]='a' must"),
        ({"kind": "table"}, "give one of them"),
        ({"kind": "table", "rows": [1], "file": "x.csv"}, "give one of them"),
        ({"kind": "table", "rows": [1], "column": "x"}, "give one of them"),
        ("cosine *", "empty part"),
        ("", "empty part"),
        ("cosine then cosine", "must say where a part ends"),
        ("cosine until x then cosine", "must say where a part ends"),
        ("cosine until 1.5 then cosine", "at[0]=1.5 must lie strictly between 0 and 1"),
        ("1 until 0.5 then 2 until 0.5 then 3", "at=[0.5, 0.5] must be 2 rising"),
        ({"kind": "join", "parts": [1, 2], "at": [0.1, 0.2]}, "must be 1 rising"),
        ({"kind": "product", "parts": [1]}, "two or more shapes"),
        ({"kind": "product", "parts": "cosine"}, "two or more shapes"),
        ("(cosine", "unmatched"),
        ("os:system:command=false", "must be a class with values()"),
        ("no_such_module:Shape", "cannot be imported"),
        ({}, "needs a kind"),
        ([], "must be a shape"),
        (None, "must be a shape"),
        (True, "must be a shape"),
        (Cosine, "must be a shape"),
    ],
)
def test_a_mistake_is_named_on_one_line(spec, message):
    with pytest.raises(InvalidValue) as caught:
        schedule(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# values_of: the one place that checks.


@pytest.mark.parametrize(
    ("spec", "step", "shown"),
    [
        ("linear:decay=0.01", 100, "0"),
        ("linear:decay=0.3,power=2", 4, "-0.447214"),
        ("cyclic:half=5,decay=0.25", 4, "0"),
        ("cyclic:half=5,decay=0.125,fade=0.1", 10, "0"),
        ("exponential:decay=10", 75, "0"),
        ("step:factor=1e10,every=1", 31, "inf"),
        (f"{OWN}:answer=nan,at=7", 7, "nan"),
        (f'{OWN}:answer="-1",at=3', 3, "-1"),
        (f'{OWN}:answer="inf"', 0, "inf"),
        ("1e200 * 1e200", 0, "inf"),
    ],
)
def test_the_first_bad_step_is_named(spec, step, shown):
    with pytest.raises(InvalidValue) as caught:
        schedule_values(spec, 1000)
    text = str(caught.value)
    assert f" is {shown} at step {step} (of 0 to 999)" in text
    assert to_spec(spec) in text
    assert "Use a slower decay" in text


def test_two_wrongs_do_not_make_a_right():
    """Both factors of a late triangle are negative, and so are two parts of a product: their product is not."""
    late = Cyclic(half=2, decay=0.75, fade=0.3)
    assert late.values(7)[6] < 0
    with pytest.raises(InvalidValue, match="is -"):
        schedule_values(Product(parts=(Own(answer="-1"), Own(answer="-1"))), 3)


@pytest.mark.parametrize("answer", ["short", "column", "scalar", "words", "complex", "bool"])
def test_an_own_class_that_gives_something_else(answer):
    with pytest.raises(InvalidValue, match=rf"answer={answer}' gave .* for steps=4.*shape \(4,\)"):
        schedule_values(Own(answer=answer), 4)


def test_an_own_class_without_an_address_still_gets_its_error():
    class Local:
        def values(self, steps):
            return np.zeros(steps)

    with pytest.raises(InvalidValue, match="Local' is 0 at step 0"):
        schedule_values(Local(), 3)


@pytest.mark.parametrize("steps", [0, -1, 2.0, "3", True, None])
def test_steps_are_a_whole_number(steps):
    with pytest.raises(InvalidValue, match="steps="):
        schedule_values("constant", steps)


def test_the_result_is_the_callers_own():
    kept = np.ones(3)

    class Keeps:
        def values(self, steps):
            return kept

    schedule_values(Keeps(), 3)[:] = 9
    assert kept.tolist() == [1, 1, 1]


def test_shapes_are_frozen_and_checked_again_when_replaced():
    with pytest.raises(FrozenInstanceError):
        Cosine().end = 2
    with pytest.raises(InvalidValue, match="end=-1"):
        replace(Cosine(), end=-1)


# Table from a file.


@pytest.mark.parametrize(
    ("content", "options", "wanted"),
    [
        ("1\n0.5\n", "", [1, 0.5]),
        ("sigma\n1\n0.5\n", "", [1, 0.5]),
        ("\ufeffsigma\r\n1\r\n\r\n1/2\r\n", "", [1, 0.5]),
        ("\ufeff1\n0.5\n", "", [1, 0.5]),
        ("step,sigma\n0,1\n1,0.5\n", ",column=sigma", [1, 0.5]),
        ("step, my sigma\n0,1\n1,0.5\n", ',column="my sigma"', [1, 0.5]),
    ],
)
def test_a_table_is_read_from_a_file(tmp_path, content, options, wanted):
    file = tmp_path / "noise (1).csv"
    file.write_text(content, encoding="utf-8")
    table = schedule(f"table:{file}{options}")
    file.unlink()  # the values are the table's own from here on
    assert schedule_values(table, 2).tolist() == wanted
    assert schedule(to_spec(table)) == table


def test_a_table_from_a_mapping_and_from_a_quoted_name(tmp_path):
    file = tmp_path / "a * b then c.csv"
    file.write_text("x,y\n1,2\n")
    assert schedule({"kind": "table", "file": str(file), "column": "y"}) == Table(rows=(2,))
    assert schedule(f'table:"{file}",column=y * 3') == Product(parts=(Table(rows=(2,)), 3))


def test_the_name_of_a_file_in_a_mapping_is_never_a_fraction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("1").mkdir()
    Path("1/2").write_text("3\n")
    assert schedule({"kind": "table", "file": "1/2"}) == Table(rows=(3,))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", "", "has no rows"),
        (b"\n \n", "", "has no rows"),
        (b"sigma\n", "", "has no rows"),
        (b"1\nnan\n", "", "rows[1] in"),
        (b"1\n0\n", "", "rows[1] in"),
        (b"1\nabc\n", "", "rows[1] in"),
        (b"1\n0,5\n", "", "rows[1]"),
        (b"a,b\n1,2\n", "", "has 2 columns. Name one"),
        (b"a,b\n1,2\n3\n", ",column=b", "rows[1] in"),
        (b"alpha,b\n1,2\n", ",column=alhpa", "Did you mean 'alpha'"),
        (b"\xff\xfe1\x00\n\x00", "", "cannot be read as UTF-8 CSV"),
        (b"1\n" + b"9" * 200_000, "", "cannot be read as UTF-8 CSV"),
        (b"\x00\x01", "", "cannot be read as UTF-8 CSV"),
    ],
)
def test_a_broken_file_gives_one_clear_line(tmp_path, content, options, message):
    file = tmp_path / "noise.csv"
    file.write_bytes(content)
    with pytest.raises(InvalidValue) as caught:
        schedule(f"table:{file}{options}")
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for file in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InvalidValue, match=re.escape(str(file))):
            schedule(f"table:{file}")


def test_a_table_of_the_wrong_length_names_both_numbers():
    with pytest.raises(InvalidValue, match="3 rows, but there are 5 steps"):
        schedule_values([1, 2, 3], 5)


# The how-to.


def test_the_how_to_runs(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "howto-schedule.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "my_shapes.py").write_text(blocks[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(blocks[1], "howto-schedule.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "[1.     0.8125 0.625  0.4375 1.     0.8125 0.625  0.4375]"
