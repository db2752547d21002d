"""What is known of a user's own loop: as sentences, in a ledger, after a crash, and in the guarantee of the run."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from privet import plan
from privet.errors import InvalidValue
from privet.ledger.account import InMemory, OnDisk, qualify, uncertified_reason
from privet.ledger.assumptions import MOST_CHARACTERS, MOST_ENTRIES, NOT_RECORDED, LoopFacts
from privet.ledger.file import LedgerFile
from privet.ledger.format import chain_line, loop_row
from privet.ledger.reading import NAME, parse, read_ledger

pytestmark = pytest.mark.usefixtures("few_checks")

PLAN = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=40, noise_multiplier=2.0, solve="epsilon")
FULL = LoopFacts(
    steps=100, checked=12, lost=2, taken_out=3, not_followed=("a custom op",), outside=("float32 (50, 2)",),
    post_processing=("lookahead", 'a "quoted" reason: {"loop":{"step":0,'),
)  # fmt: skip
VOID = replace(FULL, void_from=7, void_reason="coupled examples were found")


# --- the value --------------------------------------------------------------------------------------


def test_each_fact_is_a_sentence() -> None:
    said = " | ".join(FULL.assumptions())
    words = (
        "checked in 12 of 100 steps, and holds in the others", "a custom op", "float32 (50, 2)", "lookahead",
        "2 batches were handed out", "bounded by no clip", "in 3 steps", "a queue of features",
    )  # fmt: skip
    for word in words:
        assert word in said
    assert len(FULL.assumptions()) == 7
    assert len(LoopFacts(steps=8, checked=8).assumptions()) == 2
    assert "others" not in LoopFacts(steps=8, checked=8).assumptions()[0]
    assert replace(FULL, own_loop=False).assumptions() == ()


@pytest.mark.parametrize("facts", [LoopFacts(), FULL, VOID, LoopFacts(own_loop=False)])
def test_facts_are_read_back_as_they_were_written(facts: LoopFacts) -> None:
    assert LoopFacts.from_dict(json.loads(json.dumps(facts.as_dict()))) == facts


BAD: list[dict[str, Any]] = [
    {"steps": -1}, {"steps": 1.0}, {"steps": True}, {"checked": "1"}, {"own_loop": 1}, {"void_from": -1},
    {"void_from": 3}, {"void_reason": "why"}, {"void_from": 3, "void_reason": "x" * (MOST_CHARACTERS + 1)},
    {"outside": "text"}, {"outside": [1]}, {"outside": ["x" * (MOST_CHARACTERS + 1)]},
    {"not_followed": ["x"] * (MOST_ENTRIES + 1)}, {"post_processing": None}, {"unknown": 1},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD, ids=[str(change)[:40] for change in BAD])
def test_what_is_not_facts_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        LoopFacts.from_dict(LoopFacts().as_dict() | change)


def test_a_missing_key_and_what_is_no_table_are_refused() -> None:
    for field in fields(LoopFacts):
        with pytest.raises(InvalidValue, match="must have the keys"):
            LoopFacts.from_dict({k: v for k, v in FULL.as_dict().items() if k != field.name})
    with pytest.raises(InvalidValue, match="must have the keys"):
        LoopFacts.from_dict([])


# --- the guarantee ----------------------------------------------------------------------------------


def test_a_guarantee_carries_its_assumptions_and_a_plan_none() -> None:
    plain = PLAN.guarantee
    assert plain.as_dict()["assumptions"] == []
    assert "assumptions" not in PLAN.as_dict()["guarantee"]
    assert "assumption" not in str(plain)
    found = qualify(plain, FULL)
    assert found.as_dict()["assumptions"] == list(FULL.assumptions())
    assert str(found) == str(plain)[:-1] + "; 7 assumptions]"
    assert (found.label, found.epsilon) == (plain.label, plain.epsilon)
    assert qualify(plain, None).assumptions == (NOT_RECORDED,)
    assert str(qualify(plain, None)).endswith("; 1 assumption]")
    assert qualify(plain, LoopFacts(own_loop=False)) == plain == qualify(plain, None, own_loop=False)


def test_a_voided_run_has_no_guarantee() -> None:
    found = qualify(PLAN.guarantee, VOID)
    assert (found.label, found.epsilon_lower) == ("claimed", None)
    assert uncertified_reason(found) == "coupled examples were found (from step 7 on)"


# --- the ledger -------------------------------------------------------------------------------------


def test_a_note_is_on_the_disk_charges_nothing_and_the_last_holds(tmp_path: Path) -> None:
    with LedgerFile.create(tmp_path, PLAN) as ledger:
        assert read_ledger(tmp_path).loop is None
        ledger.charge(0, PLAN.steps[0])
        for facts in (LoopFacts(), FULL):
            ledger.note(facts)
            assert read_ledger(tmp_path).loop == facts == ledger.facts
        size = (tmp_path / NAME).stat().st_size
        ledger.note(FULL)  # nothing new
        assert (tmp_path / NAME).stat().st_size == size
        ledger.charge(1, PLAN.steps[1])
        assert (read_ledger(tmp_path).ledger.steps, read_ledger(tmp_path).position, read_ledger(tmp_path).notes) == (
            2,
            ledger.position,
            (),
        )
    with LedgerFile.open(tmp_path, PLAN) as ledger:
        assert (ledger.facts, ledger.next_step) == (FULL, 2)
    with pytest.raises(InvalidValue, match="is closed"):
        ledger.note(LoopFacts())


def test_that_there_is_no_guarantee_stays(tmp_path: Path) -> None:
    with LedgerFile.create(tmp_path, PLAN) as ledger:
        for account in (OnDisk(tmp_path, ledger, PLAN), InMemory(PLAN)):
            account.note(VOID)
            account.note(LoopFacts(steps=200))
            assert account.facts == LoopFacts(steps=200, void_from=7, void_reason=VOID.void_reason)
    end = chain_line(read_ledger(tmp_path).position.digest, loop_row(0, LoopFacts()))[0]
    found = parse((tmp_path / NAME).read_bytes() + end).loop
    assert found is not None
    assert found.void_from == 7


def test_a_line_of_the_loop_that_is_none_is_refused(tmp_path: Path) -> None:
    LedgerFile.create(tmp_path, PLAN).close()
    whole, digest = (tmp_path / NAME).read_bytes(), read_ledger(tmp_path).position.digest
    bad: list[dict[str, Any]] = [
        {"loop": 0, "facts": {}}, {"loop": 0}, {"loop": None, "facts": FULL.as_dict()}, loop_row(0, FULL) | {"step": 0},
        loop_row(1, FULL), loop_row(False, FULL), {"loop": 0, "facts": FULL.as_dict() | {"steps": -1}},
        {"none": 0, "facts": FULL.as_dict()}, {"loop": 0, "facts": VOID.as_dict()},
    ]  # fmt: skip
    for row in bad:
        with pytest.raises(InvalidValue, match="line 2"):
            parse(whole + chain_line(digest, row)[0])


@pytest.mark.parametrize("facts", [LoopFacts(), FULL, VOID])
def test_a_note_that_a_crash_tore_is_readable_and_never_hides_a_void(tmp_path: Path, facts: LoopFacts) -> None:
    with LedgerFile.create(tmp_path, PLAN) as ledger:
        ledger.charge(0, PLAN.steps[0])
        whole = (tmp_path / NAME).read_bytes()
        ledger.note(facts)
    line = (tmp_path / NAME).read_bytes()[len(whole) :]
    for cut in range(1, len(line) - 1):
        found = parse(whole + line[:cut])
        extra = found.ledger.steps - 1
        assert 0 <= extra <= 1 + len(line) // 150
        assert extra == 0 or cut < 3 or facts != LoopFacts()  # without texts it costs nothing
        void = found.loop is not None and found.loop.void_from is not None
        assert void == (cut >= 3 and facts is VOID)
    assert parse(whole + line[:-1]).loop == facts  # it lacks only its end


@pytest.mark.parametrize("facts", [LoopFacts(), VOID])
def test_a_torn_note_is_repaired_and_still_says_void(tmp_path: Path, facts: LoopFacts) -> None:
    with LedgerFile.create(tmp_path, PLAN) as ledger:
        ledger.note(facts)
    file = tmp_path / NAME
    file.write_bytes(file.read_bytes()[:-40])
    with LedgerFile.open(tmp_path, PLAN) as ledger:
        before = ledger.charged
        ledger.charge(before, PLAN.steps[before])
        ledger.note(LoopFacts(steps=3))
        found = read_ledger(tmp_path).loop
        assert found == ledger.facts
        assert found is not None
        assert (found.void_from is not None) == (facts is VOID)


def test_a_plan_with_assumptions_in_its_file_is_refused(tmp_path: Path) -> None:
    from privet.planning import Plan
    from privet.planning.plan import plan_hash

    content = PLAN.as_dict()
    content["guarantee"] |= {"assumptions": ["none"]}
    content["hash"] = plan_hash({key: value for key, value in content.items() if key != "hash"})
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(InvalidValue, match="'assumptions', which is not known"):
        Plan.load(tmp_path / "plan.json")
