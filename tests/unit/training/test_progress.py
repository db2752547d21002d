"""What is shown: every epsilon with its label, everything that is not private marked, on a terminal and in a log."""

import io

import pytest

from privet import Guarantee
from privet.training.progress import LiveProgress, LogProgress, format_duration, format_epsilon, format_scores

LINE = {
    "step": 40, "epoch": 1.0, "held_out_loss": 0.5, "held_out_accuracy": 0.875, "best": True, "epsilon": 1.2,
    "lr": 0.1, "seconds": 2.0, "examples_per_second": 1234.5,
}  # fmt: skip


def spent(label="certified", method="pld") -> Guarantee:
    return Guarantee(epsilon=1.23401, epsilon_lower=None, delta=1e-5, label=label, method=method)


@pytest.mark.parametrize(
    ("guarantee", "words"),
    [
        (spent(), "epsilon <= 1.235 certified"),  # rounded up: still a bound
        (spent("approximate"), "epsilon 1.235 approximate"),
        (spent("claimed"), "epsilon 1.235 claimed"),
        (spent("claimed", "pld; guarantee: none, seed 7"), "guarantee: none, not private"),
    ],
)
def test_epsilon_has_its_label(guarantee, words):
    assert format_epsilon(guarantee) == words


def test_a_log_has_a_line_for_each_evaluation():
    stream = io.StringIO()
    log = LogProgress(stream)
    log.begin(number=0, steps=100)
    log.step(1, spent, 10.0)
    log.show_evaluation(LINE, spent())
    log.end()
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("step 40/100  epsilon <= 1.235 certified  loss 0.5000  accuracy 0.8750  lr 0.1")
    assert "1,234 examples/s" in line


def test_what_is_not_private_says_so():
    found = format_scores(LINE | {"raw_train_loss": 0.25})
    assert found[-1] == "raw_train_loss 0.2500 (not private)"
    assert format_scores({"held_out_loss": None}) == ["loss not finite"]


def test_the_live_line_moves_and_shows_the_same():
    from rich.console import Console

    stream = io.StringIO()
    live = LiveProgress(Console(file=stream, force_terminal=True, width=120, color_system=None))
    asked = []

    def ask():
        asked.append(1)
        return spent()

    live.begin(number=0, steps=100)
    live.note("resumed at step 0")
    for number in range(1, 40):
        live.step(number, ask, 999.0)
    live.show_evaluation(LINE, spent())
    live.end()
    text = stream.getvalue()
    assert "resumed at step 0" in text
    assert "40/100" in text
    assert "epsilon <= 1.235 certified" in text
    assert "loss 0.5000  accuracy 0.8750" in text
    assert "999 ex/s" in text
    assert len(asked) < 39  # not in every step


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "0 s"), (59, "59 s"), (61, "1:01"), (36000, "10:00:00")])
def test_times_as_people_read_them(seconds, words):
    assert format_duration(seconds) == words
