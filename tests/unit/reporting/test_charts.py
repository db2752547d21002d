"""Charts are well-formed, hold every value inside their axes, and tell labels apart without colour."""

import math
import xml.etree.ElementTree as ET

import pytest

from privet.reporting.charts import HEIGHT, WIDTH, Axis, Chart, Line, legend_mark, svg, thin
from privet.reporting.render import png


def chart(*lines: Line, **given: object) -> Chart:
    return Chart(title="a < b & c", x_name="x", y_name="<y>", lines=lines, **given)  # type: ignore[arg-type]


def line(x: tuple[float, ...], y: tuple[float, ...], **given: object) -> Line:
    return Line(name="l", x=x, y=y, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((), ()), ((1.0,), (2.0,)), ((1.0, 2.0), (5.0, 5.0)), ((1.0, 2.0), (0.0, 0.0)),
        ((0.0, 0.5, 1.0), (0.0, 0.1, 1.0)), ((1.0, 2.0), (math.nan, math.inf)),
        ((1.0, 2.0, 3.0), (1e-300, 1e300, 1.0)), ((1.0, 1e7), (-3.0, 4.0)),
    ],
)  # fmt: skip
def test_any_values_make_a_drawing(x: tuple[float, ...], y: tuple[float, ...], is_log: bool) -> None:
    drawn = ET.fromstring(svg(chart(line(x, y, is_filled=True), is_log=is_log)))
    for element in drawn.iter():
        for name in ("x", "y"):
            if name in element.attrib:
                assert -1 <= float(element.attrib[name]) <= max(WIDTH, HEIGHT)
        assert "nan" not in element.attrib.get("d", "")
        assert "inf" not in element.attrib.get("d", "")


def test_ticks_are_round_and_values_stand_in_order() -> None:
    axis = Axis(0.0, 2.99, 400.0, 10.0, is_log=False)
    assert axis.ticks == [0.0, 1.0, 2.0, 3.0]
    assert axis.at(0.0) == 400.0
    assert axis.at(3.0) == 10.0
    assert axis.at(99.0) == 10.0
    places = [axis.at(value) for value in (0.1, 0.5, 1.7, 2.9)]
    assert places == sorted(places, reverse=True)
    assert Axis(1e-4, 1.0, 0.0, 100.0, is_log=True).at(1e-2) == pytest.approx(50.0)


def test_labels_differ_without_colour() -> None:
    marks = {
        label: legend_mark(line((0.0, 1.0), (0.0, 1.0), label=label), turns=False).replace(label, "")
        for label in ("certified", "approximate", "claimed")
    }
    assert len(set(marks.values())) == 3
    assert "dasharray" not in marks["certified"]
    runs = {legend_mark(line((0.0,), (0.0,), colour=k), turns=True).replace(f"c{k}", "") for k in range(4)}
    assert len(runs) == 4


def test_stairs_rise_before_they_go_on() -> None:
    drawn = svg(chart(line((0.0, 1.0, 2.0), (0.0, 1.0, 2.0), is_stepped=True)))
    path = next(part for part in drawn.split('d="') if "V" in part and "H" in part.split('"')[0]).split('"')[0]
    assert [letter for letter in path if letter.isalpha()] == ["M", "V", "H", "V", "H"]
    across = Axis(0.0, 2.0, 66.0, 426.0, is_log=False, is_tight=True)
    assert f"H{across.at(1.0):.1f}V" in path  # level until the step whose bound it is


def test_many_points_are_thinned_and_the_last_stays() -> None:
    many = line(tuple(map(float, range(5000))), tuple(map(float, range(5000))))
    kept = thin(many)
    assert len(kept) == 240
    assert kept[-1] == (4999.0, 4999.0)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_picture_is_a_png_with_these_pixels(depth: int) -> None:
    image = pytest.importorskip("PIL.Image")
    from io import BytesIO

    rows = [[[(40 * r + 9 * c + d) % 256 for d in range(depth)] for c in range(5)] for r in range(3)]
    found = image.open(BytesIO(png(rows)))
    assert found.size == (5, 3)
    seen = [found.getpixel((c, r)) for r in range(3) for c in range(5)]
    wanted = [tuple(pixel) if depth == 3 else pixel[0] for row in rows for pixel in row]
    assert seen == wanted
