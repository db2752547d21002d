"""Ledgers to and from files, dp_accounting events and Opacus histories."""

import json
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from privet.accounting import exchange
from privet.accounting.ledger import Ledger, Step
from privet.errors import InvalidValue, MissingExtra, PrivetError, Unsupported

dp_event = pytest.importorskip("dp_accounting.dp_event")
Gaussian = dp_event.GaussianDpEvent
Poisson = dp_event.PoissonSampledDpEvent


def ledger_of(*rows: tuple[float, float, int], sampling: str = "poisson") -> Ledger:
    ledger = Ledger()
    for noise, rate, count in rows:
        ledger.add(Step(noise_multiplier=noise, sample_rate=rate, sampling=sampling), count)  # type: ignore[arg-type]
    return ledger


MIXED = ((1.1, 256 / 60000, 14063), (0.7, 0.01, 1), (2.5, 1.0, 3))

rows = st.lists(
    st.tuples(st.floats(1e-3, 1e3), st.floats(1e-6, 1.0), st.integers(1, 10**6)), min_size=1, max_size=8
)  # fmt: skip


# --- Opacus ------------------------------------------------------------------------------------------


def opacus_accountant(name: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountants = pytest.importorskip("opacus.accountants")
        return getattr(accountants, name)()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RDPAccountant", "PRVAccountant", "GaussianAccountant"])
def test_a_real_opacus_accountant_is_read_and_written(name: str, tmp_path: Path) -> None:
    accountant = opacus_accountant(name)
    noises = [1.1] * 5 if name == "GaussianAccountant" else [1.1, 1.1, 0.9, 0.9, 0.9]
    for noise in noises:
        accountant.step(noise_multiplier=noise, sample_rate=0.01)  # type: ignore[attr-defined]
    state = accountant.state_dict()  # type: ignore[attr-defined]
    expected = ledger_of(*((noise, 0.01, 1) for noise in noises))
    assert exchange.from_opacus(state) == expected
    assert exchange.from_opacus(state["history"]) == expected
    assert exchange.to_opacus(expected, mechanism=state["mechanism"]) == state

    fresh = opacus_accountant(name)
    fresh.load_state_dict(exchange.to_opacus(expected, mechanism=state["mechanism"]))  # type: ignore[attr-defined]
    assert fresh.history == accountant.history  # type: ignore[attr-defined]

    file = tmp_path / "opacus.json"
    file.write_text(json.dumps(state))
    assert exchange.read(file) == expected
    file.write_text(json.dumps({"privacy_accountant_state_dict": state}))
    assert exchange.read(file) == expected


def test_an_opacus_history_holds_only_poisson_steps() -> None:
    with pytest.raises(Unsupported, match="Poisson sampling only"):
        exchange.to_opacus(ledger_of((1.0, 0.5, 2), sampling="shuffled"))
    with pytest.raises(Unsupported, match="one noise"):
        exchange.to_opacus(ledger_of(*MIXED), mechanism="gdp")
    with pytest.raises(InvalidValue, match="must be one of"):
        exchange.to_opacus(ledger_of(*MIXED), mechanism="pld")


def test_clips_are_dropped_for_opacus_and_equal_steps_join() -> None:
    ledger = Ledger()
    for clip in (1.0, 0.5):
        ledger.add(Step(noise_multiplier=1.0, sample_rate=0.1, clipping_norm=clip), 2)
    assert exchange.to_opacus(ledger)["history"] == [(1.0, 0.1, 4)]


# --- dp_accounting -----------------------------------------------------------------------------------


def test_events_become_ledgers() -> None:
    event = dp_event.ComposedDpEvent(
        [
            dp_event.NoOpDpEvent(),
            dp_event.SelfComposedDpEvent(Poisson(256 / 60000, Gaussian(1.1)), 14063),
            Poisson(0.01, Gaussian(0.7)),
            dp_event.SelfComposedDpEvent(Gaussian(2.5), 3),
        ]
    )
    assert exchange.from_dp_event(event) == ledger_of(*MIXED)


def test_a_ledger_becomes_an_event_and_comes_back() -> None:
    event = exchange.to_dp_event(ledger_of(*MIXED))
    assert isinstance(event, dp_event.ComposedDpEvent)
    assert exchange.from_dp_event(event) == ledger_of(*MIXED)
    assert exchange.to_dp_event(Ledger()) == dp_event.NoOpDpEvent()
    assert exchange.from_dp_event(dp_event.NoOpDpEvent()) == Ledger()
    assert exchange.to_dp_event(ledger_of((1.1, 1.0, 1))) == Gaussian(1.1)


def test_the_json_has_the_names_of_dp_accountings_own_tuples() -> None:
    event = Poisson(0.01, Gaussian(1.1))
    named = event.to_named_tuple()
    plain = exchange.event_to_json(event)
    assert plain["class_name"] == named.class_name
    assert set(plain) == set(named._fields) - {"module_name"}
    assert exchange.event_from_json(plain) == event


def test_repetition_multiplies() -> None:
    inner = dp_event.ComposedDpEvent([Gaussian(1.0), dp_event.SelfComposedDpEvent(Gaussian(2.0), 3)])
    assert exchange.from_dp_event(dp_event.SelfComposedDpEvent(inner, 5)) == ledger_of((1.0, 1.0, 5), (2.0, 1.0, 15))
    assert exchange.from_dp_event(dp_event.SelfComposedDpEvent(inner, 0)) == Ledger()


def test_two_gaussians_on_one_sample_are_one_release() -> None:
    """Counting them as two steps would under-report: they share the draw of the batch."""
    event = Poisson(0.01, dp_event.ComposedDpEvent([Gaussian(1.0), dp_event.SelfComposedDpEvent(Gaussian(2.0), 4)]))
    ((step, count),) = exchange.from_dp_event(event)
    assert count == 1
    assert step.noise_multiplier == pytest.approx((1 + 4 / 4) ** -0.5)
    assert exchange.from_dp_event(Poisson(0.01, dp_event.NoOpDpEvent())) == Ledger()


def test_the_noise_of_one_sample_survives_extremes() -> None:
    two = dp_event.SelfComposedDpEvent(Gaussian(1e200), 4)
    ((step, _),) = exchange.from_dp_event(Poisson(0.01, two))
    assert step.noise_multiplier == pytest.approx(5e199)


def test_sampling_without_replacement_is_fixed_size_over_twice_the_clip() -> None:
    event = dp_event.SampledWithoutReplacementDpEvent(1000, 10, Gaussian(4.0))
    ledger = exchange.from_dp_event(dp_event.SelfComposedDpEvent(event, 7))
    assert ledger == ledger_of((2.0, 0.01, 7), sampling="fixed-size")
    assert exchange.to_dp_event(ledger, dataset_size=1000) == dp_event.SelfComposedDpEvent(event, 7)
    with pytest.raises(InvalidValue, match="dataset_size=None"):
        exchange.to_dp_event(ledger)
    with pytest.raises(InvalidValue, match="whole number of examples"):
        exchange.to_dp_event(ledger, dataset_size=1050)


def test_truncated_poisson_goes_both_ways() -> None:
    event = dp_event.TruncatedSubsampledGaussianDpEvent(60000, 0.004, 400, 1.1)
    ledger = exchange.from_dp_event(event)
    assert ledger == ledger_of((1.1, 0.004, 1), sampling="truncated-poisson:cap=400,size=60000")
    assert exchange.to_dp_event(ledger) == event


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (dp_event.LaplaceDpEvent(1.0), "LaplaceDpEvent"),
        (dp_event.NonPrivateDpEvent(), "no guarantee at all"),
        (dp_event.UnsupportedDpEvent(), "UnsupportedDpEvent"),
        (dp_event.SampledWithReplacementDpEvent(10, 2, Gaussian(1.0)), "with replacement"),
        (dp_event.RepeatAndSelectDpEvent(Gaussian(1.0), 3, 1), "not a composition"),
        (dp_event.SingleEpochTreeAggregationDpEvent(1.0, [3]), "SingleEpochTreeAggregationDpEvent"),
        (dp_event.MixtureOfGaussiansDpEvent(1.0, [1.0], [0.5]), "MixtureOfGaussiansDpEvent"),
        (dp_event.ZCDpEvent(0.1), "ZCDpEvent"),
        (Poisson(0.1, dp_event.LaplaceDpEvent(1.0)), "event.event: LaplaceDpEvent"),
        (Poisson(0.1, Poisson(0.1, Gaussian(1.0))), "within sampling"),
        (dp_event.ComposedDpEvent([Gaussian(1.0), dp_event.LaplaceDpEvent(1.0)]), "events[1]"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_has_no_theorem_is_refused_by_name(event: object, words: str) -> None:
    with pytest.raises(Unsupported) as caught:
        exchange.from_dp_event(event)
    assert words in str(caught.value)


def test_a_shuffled_ledger_has_no_event() -> None:
    with pytest.raises(Unsupported, match="shuffled"):
        exchange.to_dp_event(ledger_of((1.0, 0.5, 2), sampling="shuffled"))


def test_not_an_event() -> None:
    with pytest.raises(InvalidValue, match="must be a dp_accounting DpEvent"):
        exchange.from_dp_event(3)


def test_dp_accounting_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    ledger = ledger_of(*MIXED)
    with pytest.raises(MissingExtra, match="pip install dp-accounting"):
        exchange.to_dp_event(ledger)
    assert exchange.from_event_json(exchange.to_event_json(ledger)) == ledger  # the JSON needs no import


# --- files -------------------------------------------------------------------------------------------


@given(rows)
def test_every_form_comes_back_equal(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:  # type: ignore[type-arg]
    ledger = ledger_of(*rows)
    file = tmp_path_factory.mktemp("ledger") / "a.json"
    exchange.write(ledger, file)
    assert exchange.read(file) == ledger
    assert exchange.from_json(exchange.to_json(ledger)) == ledger
    for form in (exchange.to_opacus(ledger), exchange.to_opacus(ledger)["history"], exchange.to_event_json(ledger)):
        file.write_text(json.dumps(form))
        assert exchange.read(file) == ledger


def test_clips_and_samplings_survive_our_own_file(tmp_path: Path) -> None:
    ledger = Ledger()
    for sampling in ("poisson", "truncated-poisson:cap=400,size=60000", "fixed-size", "shuffled"):
        ledger.add(Step(noise_multiplier=1.0, sample_rate=0.25, clipping_norm=0.3, sampling=sampling), 4)  # type: ignore[arg-type]
    exchange.write(ledger, tmp_path / "a.json")
    assert exchange.read(tmp_path / "a.json") == ledger
    exchange.write(Ledger(), tmp_path / "b.json")
    assert exchange.read(tmp_path / "b.json") == Ledger()


@pytest.mark.parametrize(
    "text",
    [
        "noise,rate,count\n1.5,0.01,3\n0.5,0.02,1\n",
        "\ufeffrate, noise, count\r\n0.01,1.5,3\r\n\r\n0.02,0.5,1\r\n",
        "noise,rate,clip\n" + "1.5,0.01,1\n" * 3 + "0.5,0.02,1",
        "noise,rate,sampling\n" + "1.5,0.01,poisson\n" * 3 + "0.5,0.02,poisson\n",
    ],
)
def test_csv(tmp_path: Path, text: str) -> None:
    file = tmp_path / "steps.csv"
    file.write_bytes(text.encode())
    assert exchange.read(file) == ledger_of((1.5, 0.01, 3), (0.5, 0.02, 1))


OURS = '{"format": "privet-ledger", "version": 1, "steps": '
EVENT = '{"class_name": "PoissonSampledDpEvent", "sampling_probability": '
BAD = {
    "empty": ("", "is empty"),
    "blank": (" \n\n ", "is empty"),
    "not JSON": ('{"format": ', "line 1, column"),
    "cut short": (OURS + "[\n", "line 2, column"),
    "NaN": (OURS + '[{"noise_multiplier": NaN, "sample_rate": 0.1}]}', "NaN"),
    "infinite": (OURS + '[{"noise_multiplier": 1e999, "sample_rate": 0.1}]}', "steps[0]: noise_multiplier=inf"),
    "zero noise": (OURS + '[{"noise_multiplier": 0, "sample_rate": 0.1}]}', "steps[0]: noise_multiplier=0"),
    "rate above 1": (
        OURS + '[{"noise_multiplier": 1, "sample_rate": 0.1}, {"noise_multiplier": 1, "sample_rate": 1.5}]}',
        "steps[1]: sample_rate=1.5",
    ),
    "negative count": (OURS + '[{"noise_multiplier": 1, "sample_rate": 0.1, "count": -2}]}', "steps[0]: count=-2"),
    "half a count": (OURS + '[{"noise_multiplier": 1, "sample_rate": 0.1, "count": 1.5}]}', "steps[0]: count=1.5"),
    "true count": (OURS + '[{"noise_multiplier": 1, "sample_rate": 0.1, "count": true}]}', "count=True"),
    "vast count": (OURS + '[{"noise_multiplier": 1, "sample_rate": 0.1, "count": 1' + "0" * 40 + "}]}", "count="),
    "too many in all": (
        OURS + "[" + ",".join(['{"noise_multiplier": 1, "sample_rate": 1, "count": 600000000000}'] * 2) + "]}",
        "in all",
    ),
    "5000 digits": (OURS + '[{"noise_multiplier": 1, "sample_rate": 0.1, "count": ' + "9" * 5000 + "}]}", "digits"),
    "500 digits": (OURS + '[{"noise_multiplier": ' + "9" * 500 + ', "sample_rate": 0.1}]}', "too many digits"),
    "text noise": (OURS + '[{"noise_multiplier": "1", "sample_rate": 0.1}]}', "noise_multiplier='1'"),
    "null noise": (OURS + '[{"noise_multiplier": null, "sample_rate": 0.1}]}', "noise_multiplier=None"),
    "no rate": (OURS + '[{"noise_multiplier": 1}]}', "steps[0]: sample_rate is missing"),
    "misspelt key": (OURS + '[{"noize": 1, "sample_rate": 0.1}]}', "Did you mean 'noise'"),
    "unknown sampling": (OURS + '[{"noise_multiplier": 1, "sample_rate": 0.1, "sampling": "poison"}]}', "poisson"),
    "sampling a number": (OURS + '[{"noise_multiplier": 1, "sample_rate": 0.1, "sampling": 3}]}', "sampling=3"),
    "step a number": (OURS + "[3]}", "steps[0]"),
    "steps an object": (OURS + "{}}", "steps must be a list"),
    "no steps": ('{"format": "privet-ledger", "version": 1}', "steps must be a list"),
    "version 3": ('{"format": "privet-ledger", "version": 3, "steps": []}', "version=3"),
    "no version": ('{"format": "privet-ledger", "steps": []}', "version=None"),
    "another format": ('{"format": "spreadsheet"}', "format='spreadsheet'"),
    "nothing known": ('{"epsilon": 3}', "none of the forms"),
    "empty object": ("{}", "none of the forms"),
    "nested deep": ("[" * 100_000, "nested too deeply"),
    "nested events": ('{"class_name": "SelfComposedDpEvent", "count": 1, "event": ' * 100_000, "nested too deeply"),
    "history of numbers": ('{"history": [1, 2, 3], "mechanism": "rdp"}', "history[0]"),
    "history of pairs": ("[[1.0, 0.1]]", "history[0]"),
    "history of text": ('{"history": "abc", "mechanism": "rdp"}', "history must be a list"),
    "history without noise": ("[[1.0, 0.1, 3], [0.0, 0.1, 3]]", "history[1]: noise_multiplier=0"),
    "history with no steps": ("[[1.0, 0.1, 0]]", "history[0]: count=0"),
    "unknown mechanism": ('{"history": [], "mechanism": "magic"}', "mechanism='magic'"),
    "checkpoint without": ('{"privacy_accountant_state_dict": 3}', "history is missing"),
    "event without a field": ('{"class_name": "GaussianDpEvent"}', "needs noise_multiplier"),
    "event in event missing": (EVENT + "0.1}", "needs event"),
    "event a number": (EVENT + '0.1, "event": 3}', "event.event: must be an event"),
    "event rate text": (EVENT + '"a", "event": {"class_name": "NoOpDpEvent"}}', "sampling_probability='a'"),
    "event noise negative": (
        EVENT + '0.1, "event": {"class_name": "GaussianDpEvent", "noise_multiplier": -1}}',
        "event.event: noise_multiplier=-1",
    ),
    "event count negative": (
        '{"class_name": "SelfComposedDpEvent", "count": -1, "event": {"class_name": "NoOpDpEvent"}}',
        "count=-1",
    ),
    "event unknown": ('{"class_name": "os.system"}', "os.system is not covered"),
    "no header": ("1.0,0.1\n", "line 1: column 1 is not known"),
    "no rate column": ("noise,count\n1,2\n", "no column 'sample_rate'"),
    "column twice": ("noise,rate,rate\n1,0.1,0.1\n", "twice"),
    "missing cell": ("noise,rate\n1\n", "line 2: 1 values under 2 columns"),
    "bad cell": ("noise,rate\n1,0.1\n1,x\n", "line 3: sample_rate='x'"),
    "nan cell": ("noise,rate\nnan,0.1\n", "line 2: noise_multiplier=nan"),
    "bad count cell": ("noise,rate,count\n1,0.1,2.5\n", "line 2: count='2.5'"),
    "open quote": ('noise,rate\n1,"0.1\n', "not CSV"),
    "prose": ("Dear reader,\nnothing here", "line 1: column 1 is not known"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_line(tmp_path: Path, name: str) -> None:
    text, words = BAD[name]
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(PrivetError) as caught:
        exchange.read(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert words in message
    assert "\n" not in message
    assert len(message) < 500 + len(str(file))


def test_bad_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValue, match="no such file"):
        exchange.read(tmp_path / "none.json")
    with pytest.raises(InvalidValue, match="is a directory"):
        exchange.read(tmp_path)
    with pytest.raises(InvalidValue, match="cannot be"):
        exchange.read("a\0b")
    with pytest.raises(InvalidValue, match="cannot be written"):
        exchange.write(Ledger(), tmp_path / "none" / "a.json")
    for data in (b"\x80\x04\x95pickle", b"PK\x03\x04\x00\x00", b'{"a":\x00 1}', bytes(range(256))):
        (tmp_path / "binary.json").write_bytes(data)
        with pytest.raises(InvalidValue, match="is not text"):
            exchange.read(tmp_path / "binary.json")
    monkeypatch.setattr(exchange, "MOST_BYTES", 10)
    (tmp_path / "big.csv").write_text("noise,rate\n1,1\n")
    with pytest.raises(InvalidValue, match="with a count"):
        exchange.read(tmp_path / "big.csv")


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=9),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["format", "version", "steps", "history", "mechanism", "class_name", "event",
                                         "events", "count", "noise", "sample_rate"]), inner, max_size=4)))  # fmt: skip
def test_any_json_is_a_ledger_or_one_clear_error(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    file = tmp_path_factory.mktemp("any") / "a.json"
    file.write_text(json.dumps(value))
    with suppress(PrivetError):
        exchange.read(file)
