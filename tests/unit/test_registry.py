from dataclasses import dataclass, field

import pytest

from privet._registry import Registry, format_number, parse_number, parse_value, split_top_level
from privet._text import shorten
from privet.errors import InvalidValue

fruit: Registry = Registry("fruit", needs=("eat",))


@fruit.register("apple")
@dataclass(frozen=True, kw_only=True)
class Apple:
    weight: float
    name: str = "plain"
    ripe: bool = True
    days: list[int] = field(default_factory=list)

    def eat(self):
        return self.weight


@fruit.register("fig")
class Fig:
    def eat(self):
        return 1


class Pear:
    """Not registered, so known by its address."""

    def eat(self):
        return 2


@dataclass(frozen=True)
class Plum:
    size: float = 1.0
    word: str = ""

    def eat(self):
        return 3


class Odd:
    def __init__(self, size=1):
        self.size = size

    def eat(self):
        return 4


def stone():
    raise AssertionError("must not be called")


HERE = __name__


def read(text):
    name, rest = fruit.split(text)
    return fruit.make(name, **fruit.options(name, rest))


def test_the_three_spellings_agree():
    made = Apple(weight=0.5, name="x", ripe=False)
    assert fruit.make("apple", weight=0.5, name="x", ripe=False) == made
    assert fruit.from_mapping({"kind": "apple", "weight": 0.5, "name": "x", "ripe": False}) == made
    assert read("apple: weight = 1/2 , name=x,ripe=false") == made


def test_names_are_kept_in_order_and_are_unique():
    assert fruit.names() == ["apple", "fig"]
    with pytest.raises(InvalidValue, match="fruit='fig' is registered already"):
        fruit.register("fig")(Fig)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("aple:weight=1", "fruit='aple' is not known. Did you mean 'apple'"),
        ("apple:wieght=1", "no option 'wieght'. Did you mean 'weight'"),
        ("fig:size=1", "no option 'size'. It takes: none"),
        ("apple:name=x", "needs the option 'weight'. Write apple:weight="),
        ("apple:weight", "has 'weight', which must read key=value. Write apple:weight="),
        ("apple:=3", "must read key=value"),
        ("apple:weight=", "must read key=value"),
        ("apple:weight=1,weight=2", "gives 'weight' twice"),
        ('apple:name="x', "unmatched quote"),
        ("no_such_module_here:Pear", "cannot be imported: No module named 'no_such_module_here'"),
        ("math:Pear", "math has no 'Pear'"),
        ("math:sqrt", "must be a class with eat()"),
        (f"{HERE}:stone", "must be a class with eat()"),
        ("dataclasses:Field", "must be a class with eat()"),
    ],
)
def test_a_mistake_is_named_on_one_line(text, message):
    with pytest.raises(InvalidValue) as caught:
        read(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mapping_needs_a_kind():
    with pytest.raises(InvalidValue, match="needs a kind"):
        fruit.from_mapping({"weight": 1})


def test_an_own_module_that_fails_is_reported_with_its_cause(tmp_path, monkeypatch):
    (tmp_path / "broken_fruit.py").write_text("raise RuntimeError('two\\nlines.')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidValue, match=r"cannot be imported: two lines\. Check") as caught:
        fruit.maker("broken_fruit:Pear")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_error_inside_a_constructor_is_not_hidden():
    def broken():
        return None + 1

    other: Registry = Registry("thing")
    other.register("broken")(broken)
    with pytest.raises(TypeError, match="unsupported operand"):
        other.make("broken")


@pytest.mark.parametrize(
    "thing",
    [
        Apple(weight=0.1),
        Apple(weight=1e-12, ripe=False, name="4"),
        Apple(weight=3.0, name="a, (b * c then "),
        Plum(),
        Plum(size=1 / 3, word="true"),
        Plum(word="a=b"),
    ],
)
def test_spelling_is_read_back(thing):
    back = read(fruit.to_spec(thing))
    assert back == thing
    assert {key: type(v) for key, v in vars(back).items() if isinstance(v, str)} == {
        key: str for key, v in vars(thing).items() if isinstance(v, str)
    }


def test_spelling_leaves_out_what_is_default():
    assert fruit.to_spec(Apple(weight=2.0)) == "apple:weight=2"
    assert fruit.to_spec(Fig()) == "fig"
    assert fruit.to_spec(Pear()) == f"{HERE}:Pear"


def test_what_cannot_be_spelt_is_refused():
    class Local:
        def eat(self):
            return 5

    for thing, message in [
        (Local(), "Move it to the top of a module"),
        (Odd(), "Make it a dataclass"),
        (Apple(weight=1, days=[1]), "days=.* cannot be written"),
        (Apple(weight=1, name='"'), "name=.* cannot be written"),
    ]:
        with pytest.raises(InvalidValue, match=message):
            fruit.to_spec(thing)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("3", 3), ("-2", -2), ("0.3", 0.3), ("1e-3", 0.001), ("1/3.3", 1 / 3.3), ("256/60000", 256 / 60000), (" 7 ", 7)],
)
def test_numbers(text, wanted):
    assert parse_number(text) == wanted
    assert type(parse_number(text)) is type(wanted)


@pytest.mark.parametrize("text", ["", "x", "1/0", "1/2/3", "1,5", "/"])
def test_not_numbers(text):
    with pytest.raises(ValueError, match=r"could not convert|divides by zero"):
        parse_number(text)


def test_a_number_beyond_floats_is_infinite_and_so_refused_by_the_checks():
    assert parse_number("1" + "0" * 400) == float("inf")


@pytest.mark.parametrize("given", [0.3, 3, -1e-30, 2.0**80, True, False, "word", "4", "true", "", "a,b", "x y", "1/2"])
def test_value_undoes_written(given):
    assert parse_value(format_number(given)) == given
    assert isinstance(parse_value(format_number(given)), str) == isinstance(given, str)


def test_equal_numbers_are_written_alike():
    assert format_number(4.0) == format_number(4) == "4"


def test_splitting_respects_quotes_and_parentheses():
    assert split_top_level('a, (b, c) ,"d, )",', ",", "x") == ["a", "(b, c)", '"d, )"', ""]
    for text in ("(a", "a)", ")a(", 'a"'):
        with pytest.raises(InvalidValue, match="unmatched"):
            split_top_level(text, ",", "x")


def test_shortened():
    assert shorten("abc", 3) == "abc"
    assert shorten("abcdefgh", 6) == "abc..."
