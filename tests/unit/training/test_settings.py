"""The [training] table: every key is known or refused with help, every value is what it must be."""

import pytest
from hypothesis import given, strategies as st

from privet.errors import InvalidValue
from privet.training.settings import Settings, changed_keys, parse_target


def test_nothing_given_is_the_default():
    assert Settings.of({}) == Settings()
    assert Settings().task == "digits"


def test_a_table_comes_back():
    table = {
        "task": "mnist", "model": "cnn", "weights": "body.safetensors", "train": ["fc*"], "fresh": ["fc3.*"],
        "optimizer": "adam:betas=(0.9,0.99)", "lr": 0.01, "weight_decay": 0,
        "scheduler": "cosine", "ema_decay": 0.99, "augmentations": 4, "max_physical_batch_size": 64, "workers": 2,
        "device": "cpu",
        "evaluate_every": 10, "save_every": 20, "stop_at": "accuracy=0.9", "patience": 3, "keep": "best",
        "steps_per_line": 5,
    }  # fmt: skip
    made = Settings.of(table)
    assert {key: made.as_dict()[key] for key in table} == table
    assert Settings.of(made.as_dict()) == made


@given(st.dictionaries(st.text(max_size=12), st.none() | st.integers() | st.text(max_size=5) | st.lists(st.none())))
def test_any_table_is_settings_or_one_line(table):
    try:
        made = Settings.of(table)
    except InvalidValue:
        return
    assert Settings.of(made.as_dict()) == made


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"optimiser": "adam"}, "Did you mean 'optimizer'"),
        ({"learning-rate": 1}, "Known: task, model"),
        ({"seed": 3}, "--seed"),
        ({"scale_factor": 0.5}, "own_norm:scale=0.5"),
        ({"clipping_norm": 1.0}, "above the table"),
        ({"show_private": True}, "--show-private"),
        ({"uncertified": True}, "--uncertified"),
        ({"task": 3}, "task=3 must be a word"),
        ({"task": " "}, "must be a word"),
        ({"optimizer": ["adam"]}, "optimizer=['adam'] must be a word"),
        ({"lr": "fast"}, "lr='fast' must be finite and > 0"),
        ({"lr": 0}, "lr=0 must be"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": True}, "lr=True"),
        ({"momentum": -0.1}, "momentum=-0.1"),
        ({"momentum": 1}, "momentum=1 must be >= 0 and < 1"),
        ({"weight_decay": "0"}, "weight_decay='0'"),
        ({"ema_decay": 1.0}, "ema_decay=1.0 must lie strictly between"),
        ({"augmentations": 0}, "augmentations=0 must be a whole number >= 1"),
        ({"augmentations": 1.5}, "augmentations=1.5"),
        ({"workers": -1}, "workers=-1"),
        ({"evaluate_every": 0}, "evaluate_every=0"),
        ({"patience": "3"}, "patience='3'"),
        ({"keep": "first"}, "keep='first' must be one of best, last"),
        ({"keep": 3}, "keep=3 must be one of"),
        ({"stop_at": "0.97"}, "Write accuracy=0.97"),
        ({"stop_at": "accuracy=high"}, "must be a measure and a number"),
        ({"stop_at": "accuracy=inf"}, "must be a measure and a number"),
        ({"steps_per_line": 0}, "steps_per_line=0"),
        ({"weights": 3}, "weights=3 must be a word"),
        ({"weights": "w", "train": "fc*"}, "train='fc*' must be a list of patterns"),
        ({"weights": "w", "train": []}, "train=[] must be a list of patterns"),
        ({"weights": "w", "fresh": ["fc*", 3]}, "fresh=['fc*', 3] must be a list of patterns"),
        ({"train": ["fc*"]}, "train=['fc*'] is given without weights"),
    ],
)
def test_what_cannot_be_right_is_refused(table, words):
    with pytest.raises(InvalidValue, match=r"^training\.") as caught:
        Settings.of(table)
    assert words in str(caught.value)


def test_a_target_is_a_name_and_a_number():
    assert parse_target(" loss = 1/10 ") == ("loss", 0.1)


def test_what_a_flag_says_otherwise_is_listed():
    assert changed_keys({"task": "mnist", "lr": 0.1}, {"task": "digits", "lr": 0.1, "keep": "best"}) == {
        "task": ["mnist", "digits"]
    }
