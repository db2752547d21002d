"""The ledger on disk: charged before it is used, refused outside the plan, torn lines paid for, damage named."""

import errno
import json
import os
import re
import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from privet import Step, _files, plan, spent
from privet.accounting.sampling import sampling
from privet.errors import BudgetExceeded, InvalidValue
from privet.ledger.file import LedgerFile
from privet.ledger.format import LedgerPosition
from privet.ledger.reading import (
    COUNT_NAME as COUNT,
    NAME,
    Count,
    Reading,
    is_run,
    parse,
    read_high_water_mark,
    read_ledger,
)
from privet.planning import Plan

PLAN = plan(
    delta=1e-5, dataset_size=1000, batch_size=10, steps=40, noise_multiplier="2 * exponential:end=0.5", solve="epsilon"
)
LIMIT = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "a"


def spend(folder: Path, *counts: int, p: Plan = PLAN, limit: int = LIMIT) -> bytes:
    """A ledger with one line for each count, and its content."""
    with LedgerFile.create(folder, p, steps_per_line=limit) as ledger:
        for count in counts:
            ledger.reserve(count)
    return (folder / NAME).read_bytes()


def lines_of(folder: Path) -> list[bytes]:
    return (folder / NAME).read_bytes().splitlines(keepends=True)


def put(folder: Path, lines: list[bytes]) -> None:
    (folder / NAME).write_bytes(b"".join(lines))


def left(folder: Path, content: bytes) -> None:
    """A folder as a crash left it before the run went on: the count of what came later is not there yet."""
    (folder / NAME).write_bytes(content)
    (folder / COUNT).unlink(missing_ok=True)


# --- writing and reading ----------------------------------------------------------------------------


def test_a_step_is_in_the_file_when_charge_returns(folder: Path) -> None:
    with LedgerFile.create(folder, PLAN) as ledger:
        assert read_ledger(folder).ledger.steps == 0
        for number, step in enumerate(PLAN.steps):
            ledger.charge(number, step)
            assert read_ledger(folder).ledger == PLAN.ledger().first(number + 1)
    done = read_ledger(folder)
    assert spent(done.ledger, 1e-5).epsilon <= PLAN.guarantee.epsilon
    assert (done.notes, done.tail, done.remark) == ((), None, None)


def test_one_line_may_charge_several_steps_and_all_count(folder: Path) -> None:
    with LedgerFile.create(folder, PLAN, steps_per_line=LIMIT) as ledger:
        ledger.reserve(3)
        size = (folder / NAME).stat().st_size
        assert read_ledger(folder).ledger == PLAN.ledger().first(3)
        for number in range(3):
            ledger.charge(number, PLAN.steps[number])
        assert (folder / NAME).stat().st_size == size
        ledger.charge(3, PLAN.steps[3])
        ledger.reserve(4)
        assert (ledger.next_step, ledger.charged) == (4, 8)
    with LedgerFile.open(folder, PLAN) as ledger:
        assert (ledger.next_step, ledger.charged) == (8, 8)
        ledger.charge(8, PLAN.steps[8])
    assert read_ledger(folder).ledger == PLAN.ledger().first(9)


def test_the_file_is_what_its_page_says(folder: Path) -> None:
    """The oracle: each line is an object, and its checksum that of the one before and its own text, by hand."""
    spend(folder, 1, 4, 2)
    previous, step = "0" * 64, 0
    for number, line in enumerate((folder / NAME).read_text().splitlines()):
        body, digest = re.fullmatch(r'(.*),"digest":"([0-9a-f]{64})"\}', line).groups()  # type: ignore[union-attr]
        assert sha256((previous + body).encode()).hexdigest() == digest
        row, previous = json.loads(line), digest
        if number:
            assert (row["step"], row["sampling"]) == (step, "poisson")
            noises = row["noise"] if isinstance(row["noise"], list) else [row["noise"]] * row["count"]
            assert noises == PLAN.steps.noise_multipliers[step : step + row["count"]].tolist()
            assert row["rate"] == 0.01
            step += row["count"]
    assert step == 7
    assert read_ledger(folder).position == LedgerPosition(4, previous)


def test_the_header_says_whose_steps_these_are(folder: Path) -> None:
    spend(folder)
    found = read_ledger(folder).header
    assert (found.plan, found.size, found.adjacency, found.unit, found.delta, found.reserve) == (
        PLAN.hash, 1000, "zero-out", "example", 1e-5, LIMIT,
    )  # fmt: skip
    assert (found.planned, found.length, found.sound, found.seeded) == (PLAN.certified, 40, True, False)
    assert found.planned_steps() == PLAN.steps
    spend(folder.parent / "b")
    assert read_ledger(folder.parent / "b").header.run != found.run


def test_the_clip_may_follow_what_was_released(folder: Path) -> None:
    with LedgerFile.create(folder, PLAN) as ledger:
        ledger.charge(0, replace(PLAN.steps[0], clipping_norm=0.25))
    assert next(iter(read_ledger(folder).ledger))[0] == replace(PLAN.steps[0], clipping_norm=0.25)


def test_an_unfinished_run_says_when_its_reading_holds(folder: Path) -> None:
    spend(folder, 4)
    assert "fixed beforehand" in str(read_ledger(folder).remark)


def test_tuned_unsound_and_seeded_runs_are_marked(tmp_path: Path) -> None:
    given = {"epsilon": 2.0, "delta": 1e-5, "dataset_size": 1000, "batch_size": 10, "steps": 40}
    tuned = plan(**given, trials=3)
    LedgerFile.create(tmp_path / "tuned", tuned, seeded=True).close()
    found = read_ledger(tmp_path / "tuned").header
    assert (found.planned, found.together, found.seeded) == (tuned.one_run, str(tuned.guarantee), True)
    fixed = plan(**given, sampling="fixed-size", adjacency="replace-one", unit="client", accountant="rdp")
    LedgerFile.create(tmp_path / "fixed", fixed).close()
    found = read_ledger(tmp_path / "fixed").header
    assert (found.planned, found.adjacency, found.unit) == (fixed.guarantee, "replace-one", "client")
    published = plan(**given, method="auto-linear", uncertified=True)
    LedgerFile.create(tmp_path / "published", published).close()
    found = read_ledger(tmp_path / "published").header
    assert (found.sound, found.planned) == (False, None)


def test_a_folder_or_its_ledger_is_a_run(folder: Path, tmp_path: Path) -> None:
    spend(folder)
    (tmp_path / "copy").write_bytes((folder / NAME).read_bytes())
    assert all(is_run(path) for path in (folder, folder / NAME, tmp_path / "copy"))
    assert not is_run(tmp_path / "none")
    assert read_ledger(tmp_path / "copy") == read_ledger(folder)


# --- the gate ---------------------------------------------------------------------------------------

GATE = [
    (0, PLAN.steps[0], "was charged before"),
    (2, PLAN.steps[2], "Do step 1"),
    (40, PLAN.steps[39], "beyond the plan's 40"),
    (1, replace(PLAN.steps[1], noise_multiplier=PLAN.steps[1].noise_multiplier * 0.999), "noise_multiplier="),
    (1, replace(PLAN.steps[1], noise_multiplier=PLAN.steps[1].noise_multiplier * 1.001), "noise_multiplier="),
    (1, replace(PLAN.steps[1], sample_rate=0.0101), "sample_rate=0.0101"),
    (1, replace(PLAN.steps[1], sample_rate=0.0099), "sample_rate=0.0099"),
    (1, replace(PLAN.steps[1], sampling=sampling("shuffled")), "sampling=shuffled"),
]


@pytest.mark.parametrize(("number", "step", "reason"), GATE, ids=[str(reason) for _, _, reason in GATE])
def test_a_step_outside_the_plan_is_refused_and_not_charged(folder: Path, number: int, step: Step, reason: str) -> None:
    with LedgerFile.create(folder, PLAN, steps_per_line=LIMIT) as ledger:
        ledger.charge(0, PLAN.steps[0])
        before = (folder / NAME).read_bytes()
        with pytest.raises(BudgetExceeded, match=re.escape(reason)):
            ledger.charge(number, step)
        assert (folder / NAME).read_bytes() == before
        assert (ledger.next_step, ledger.charged) == (1, 1)
        ledger.reserve(2)  # a reserved step passes the same gate
        with pytest.raises(BudgetExceeded, match=re.escape(reason)):
            ledger.charge(number, step)


def test_the_plan_ends(folder: Path) -> None:
    spend(folder, *[4] * 9, 3)
    with LedgerFile.open(folder, PLAN) as ledger:
        with pytest.raises(BudgetExceeded, match="the 1 left"):
            ledger.reserve(2)
        with pytest.raises(InvalidValue, match="at most 4"):
            ledger.reserve(5)
        ledger.charge(39, PLAN.steps[39])
        with pytest.raises(BudgetExceeded, match="beyond"):
            ledger.charge(40, PLAN.steps[39])
        with pytest.raises(BudgetExceeded, match="the 0 left"):
            ledger.reserve(1)
    assert read_ledger(folder).ledger == PLAN.ledger()


@pytest.mark.parametrize("reserve", [0, -1, 1001, 1.5, True])
def test_a_bad_reserve_is_refused_before_anything_is_made(folder: Path, reserve: int) -> None:
    with pytest.raises(InvalidValue, match="steps_per_line="):
        LedgerFile.create(folder, PLAN, steps_per_line=reserve)
    assert not folder.exists()


def test_threads_cannot_share_a_step(folder: Path) -> None:
    done: list[int] = []

    def work() -> None:
        for number in range(40):
            try:
                ledger.charge(number, PLAN.steps[number])
                done.append(number)
            except BudgetExceeded:
                pass

    with LedgerFile.create(folder, PLAN) as ledger:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(done) == len(set(done)) == read_ledger(folder).ledger.steps


# --- resuming ---------------------------------------------------------------------------------------


def test_a_ledger_is_begun_once(folder: Path) -> None:
    before = spend(folder, 2)
    with pytest.raises(InvalidValue, match="is there already"):
        LedgerFile.create(folder, PLAN)
    assert (folder / NAME).read_bytes() == before
    LedgerFile.open(folder, PLAN).close()  # the refusal let go of the lock


def test_another_plan_is_refused(folder: Path) -> None:
    spend(folder, 2)
    other = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=41, noise_multiplier=2.0, solve="epsilon")
    with pytest.raises(InvalidValue, match="of another plan"):
        LedgerFile.open(folder, other)


def test_steps_that_are_not_the_plans_are_refused(folder: Path) -> None:
    """A header that names the plan is not enough: the steps are compared."""
    other = plan(delta=1e-5, dataset_size=1000, batch_size=10, steps=40, noise_multiplier=2.0, solve="epsilon")
    spend(folder, 2, p=other)
    from privet.ledger import format as lines

    rows = [json.loads(line) for line in lines_of(folder)]
    rows[0]["plan"], previous, forged = PLAN.hash, lines.START, []
    for row in rows:
        row.pop("digest")
        line, previous = lines.chain_line(previous, row)
        forged.append(line)
    put(folder, forged)
    with pytest.raises(InvalidValue, match="charges other steps"):
        LedgerFile.open(folder, PLAN)


def test_a_ledger_that_lost_lines_is_refused_by_the_checkpoints_mark(folder: Path) -> None:
    with LedgerFile.create(folder, PLAN, steps_per_line=LIMIT) as ledger:
        ledger.reserve(4)
        early = ledger.position
        ledger.reserve(4)
        mark = ledger.position
    assert mark.lines == 3
    for seen in (early, mark):
        LedgerFile.open(folder, PLAN, at_least=seen).close()
    put(folder, lines_of(folder)[:-1])
    (folder / COUNT).unlink()
    assert read_ledger(folder).ledger.steps == 4  # the file alone cannot know
    with pytest.raises(InvalidValue, match="2 whole lines, the checkpoint saw 3"):
        LedgerFile.open(folder, PLAN, at_least=mark)
    with LedgerFile.open(folder, PLAN, at_least=early) as ledger:
        ledger.reserve(2)
    with pytest.raises(InvalidValue, match="line 3: is not the one that the checkpoint saw"):
        LedgerFile.open(folder, PLAN, at_least=mark)


def test_lines_cut_off_at_the_end_are_noticed_by_the_count_beside_the_ledger(folder: Path) -> None:
    whole = spend(folder, 4, 4, 4)
    ends = [end for end in range(len(whole)) if whole[end - 1 : end] == b"\n"][1:]
    for cut in (*ends, ends[0] + 9, ends[1] + 9):  # whole lines are missing, or one and a half
        (folder / NAME).write_bytes(whole[:cut])
        if cut > ends[1]:
            assert read_ledger(folder).ledger.steps == 12  # the torn line may have charged 4, and has
            continue
        for opened in (lambda: read_ledger(folder), lambda: LedgerFile.open(folder, PLAN)):
            with pytest.raises(InvalidValue, match=r"ledger\.count beside it says that 12 were"):
                opened()
    (folder / NAME).write_bytes(whole)
    with LedgerFile.open(folder, PLAN) as ledger:
        assert ledger.next_step == 12
        assert read_high_water_mark(folder) == Count(ledger.header.run, 12)


@pytest.mark.parametrize(
    "text", [b"", b"\0" * 120, b"{}\n", b"[]", b'{"run":"a","charged":99,"digest":"0"}\n', b"9" * 9999]
)
def test_a_damaged_count_says_nothing_and_is_made_again(folder: Path, text: bytes) -> None:
    spend(folder, 4)
    (folder / COUNT).write_bytes(text)
    assert read_high_water_mark(folder) is None
    assert read_ledger(folder).ledger.steps == 4
    with LedgerFile.open(folder, PLAN) as ledger:
        ledger.reserve(3)
    assert read_high_water_mark(folder) == Count(ledger.header.run, 7)


def test_a_flipped_count_is_never_taken_for_another(folder: Path) -> None:
    spend(folder, 4)
    good, found = (folder / COUNT).read_bytes(), read_high_water_mark(folder)
    for place in range(len(good)):
        (folder / COUNT).write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert read_high_water_mark(folder) is None
    assert found is not None
    assert found.charged == 4


def test_a_ledger_of_another_run_does_not_fit_the_count(folder: Path, tmp_path: Path) -> None:
    spend(folder, 4)
    (folder / NAME).write_bytes(spend(tmp_path / "other", 4, 4))
    with pytest.raises(InvalidValue, match=r"is of another run than ledger\.count"):
        read_ledger(folder)
    (folder / NAME).unlink()
    spend(folder, 1)  # another run in the folder begins its own count
    assert read_ledger(folder).ledger.steps == 1


def test_a_count_that_cannot_be_written_stops_nothing(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / COUNT).mkdir()
    spend(folder, 4)
    assert read_ledger(folder).ledger.steps == 4


def test_a_second_writer_is_refused_and_readers_are_not(folder: Path) -> None:
    with LedgerFile.create(folder, PLAN) as ledger:
        with pytest.raises(InvalidValue, match=f"in use by process {os.getpid()}. "):
            LedgerFile.open(folder, PLAN)
        ledger.charge(0, PLAN.steps[0])
        assert read_ledger(folder).ledger.steps == 1
    with LedgerFile.open(folder, PLAN):
        pass
    with pytest.raises(InvalidValue, match="is closed"):
        ledger.charge(1, PLAN.steps[1])


def test_a_lost_object_lets_go_of_the_lock(folder: Path) -> None:
    LedgerFile.create(folder, PLAN)
    LedgerFile.open(folder, PLAN).close()


# --- torn lines -------------------------------------------------------------------------------------


def resumed(folder: Path, p: Plan = PLAN) -> Reading:
    """Open what a crash left, do a step if the plan has one left, and read the whole again."""
    left = (folder / NAME).read_bytes()
    before = read_ledger(folder)
    with LedgerFile.open(folder, p) as ledger:
        assert ledger.next_step == before.ledger.steps
        if ledger.next_step < len(p.steps):
            ledger.charge(ledger.next_step, p.steps[ledger.next_step])
    assert (folder / NAME).read_bytes().startswith(left)  # nothing is ever removed
    after = read_ledger(folder)
    assert after.ledger.steps == min(before.ledger.steps + 1, len(p.steps))
    assert after.tail is None
    return after


def test_a_torn_line_is_charged_and_the_run_goes_on(folder: Path) -> None:
    whole = spend(folder, 4, 1, 3)
    last = len(whole) - len(lines_of(folder)[-1])
    for cut in (*range(last + 1, last + 40), *range(last + 40, len(whole) - 5, 11), *range(len(whole) - 5, len(whole))):
        left(folder, whole[:cut])
        found = read_ledger(folder)
        if cut == len(whole) - 1:  # only the end of line is missing: all of it can be proven
            assert (found.ledger.steps, found.tail, found.ended) == (8, None, False)
        else:
            assert 5 + LIMIT <= found.ledger.steps <= 5 + 2 * LIMIT
            assert "torn" in found.notes[0]
        assert found.ledger == PLAN.ledger().first(found.ledger.steps)
        resumed(folder)


def test_crashes_while_a_torn_line_is_repaired(folder: Path) -> None:
    whole = spend(folder, 4)
    torn = whole + b'{"step":4,"cou'
    left(folder, torn)
    LedgerFile.open(folder, PLAN).close()
    repaired = (folder / NAME).read_bytes()
    assert read_ledger(folder).ledger.steps == 8
    for cut in (*range(len(torn), len(torn) + 14), *range(len(torn) + 14, len(repaired), 29)):
        left(folder, repaired[:cut])
        assert read_ledger(folder).ledger.steps >= 8
        LedgerFile.open(folder, PLAN).close()
        again = (folder / NAME).read_bytes()
        left(folder, again[: len(again) - 5])  # and once more
        assert read_ledger(folder).ledger.steps >= 8
        resumed(folder)


def test_many_crashes_during_one_repair_cost_little(folder: Path) -> None:
    """What is torn costs by its length, so a repair stays short: otherwise each crash would double the charge."""
    p = plan(
        delta=1e-5,
        dataset_size=1000,
        batch_size=10,
        steps=2000,
        noise_multiplier="2 * exponential:end=0.5",
        solve="epsilon",
    )
    whole = spend(folder, 4, p=p)
    (folder / NAME).write_bytes(whole + b'{"step":4,')
    for crashes in range(1, 31):
        LedgerFile.open(folder, p).close()
        (folder / NAME).write_bytes((folder / NAME).read_bytes()[:-3])
        assert read_ledger(folder).ledger.steps <= 4 + LIMIT + 2 * LIMIT * crashes
    resumed(folder, p)


def test_a_torn_line_with_lists_is_charged_for_what_fits(folder: Path) -> None:
    p = plan(
        delta=1e-5,
        dataset_size=1000,
        batch_size=10,
        steps=2000,
        noise_multiplier="2 * exponential:end=0.5",
        solve="epsilon",
    )
    whole = spend(folder, 16, 16, p=p, limit=16)
    last = lines_of(folder)[-1]
    assert len(last) > 400
    (folder / NAME).write_bytes(whole[:-3])
    assert 32 <= read_ledger(folder).ledger.steps <= 48
    (folder / NAME).write_bytes(whole[: 30 - len(last)])
    assert read_ledger(folder).ledger.steps == 32
    resumed(folder, p)


def test_a_torn_line_at_the_end_of_the_plan_costs_no_more_than_the_plan(folder: Path) -> None:
    whole = spend(folder, *[4] * 10)
    (folder / NAME).write_bytes(whole[:-20])
    assert read_ledger(folder).ledger == PLAN.ledger()
    assert resumed(folder).ledger == PLAN.ledger()
    (folder / NAME).write_bytes(whole + b"\0\0")
    assert read_ledger(folder).ledger == PLAN.ledger()
    assert resumed(folder).ledger == PLAN.ledger()


def test_a_lost_block_is_charged_for_all_it_could_hold(folder: Path) -> None:
    whole = spend(folder, 4, 4, 4, 4, 4)
    for lost in (1, 50, 200, 400, 700):
        left(folder, whole[:-lost] + bytes(lost))
        assert read_ledger(folder).ledger.steps >= 20
        resumed(folder)


def test_two_last_lines_that_run_together_are_charged_for_both(folder: Path) -> None:
    whole = spend(folder, 4, 4, 4)
    lines = lines_of(folder)
    put(folder, [*lines[:-2], lines[-2][:-1] + b"\x0b", lines[-1]])
    assert len((folder / NAME).read_bytes()) == len(whole)
    assert read_ledger(folder).ledger.steps >= 12
    resumed(folder)


# --- other damage -----------------------------------------------------------------------------------


def changed(line: bytes, old: bytes, new: bytes) -> bytes:
    assert old in line
    return line.replace(old, new)


DAMAGE = {
    "a digit in the middle": (lambda a, b: [*a[:2], changed(a[2], b'"rate":0.01', b'"rate":0.02'), *a[3:]], "line 3"),
    "a checksum in the middle": (lambda a, b: [*a[:2], a[2][:-10] + b"g" + a[2][-9:], *a[3:]], "line 3"),
    "a line is missing": (lambda a, b: [*a[:2], *a[3:]], "line 3"),
    "the line before the last is missing": (lambda a, b: [*a[:-2], a[-1]], "line 5: does not begin with step 12"),
    "two lines are swapped": (lambda a, b: [*a[:2], a[3], a[2], *a[4:]], "line 3"),
    "the last two are swapped": (lambda a, b: [*a[:-2], a[-1], a[-2]], "line 5"),
    "the last line is there twice": (lambda a, b: [*a, a[-1]], "line 7: does not begin with step 20"),
    "a line of another run": (lambda a, b: [*a[:2], b[2], *a[3:]], "line 3"),
    "the header of another run": (lambda a, b: [b[0], *a[1:]], "line 2"),
    "an empty line in the middle": (lambda a, b: [*a[:2], b"\n", *a[2:]], "line 3"),
    "a line that was added by hand": (lambda a, b: [*a, b"# all fine\n"], "line 7"),
    "the header is changed": (lambda a, b: [changed(a[0], b'"reserve":4', b'"reserve":1'), *a[1:]], "line 1"),
    "the header is cut": (lambda a, b: [a[0][:-30]], "line 1"),
    "nothing is left": (lambda a, b: [], "line 1"),
    "something else": (lambda a, b: [b"\x89PNG\r\n\x1a\n\0\0"], "line 1"),
    "end of lines of another system": (lambda a, b: [line[:-1] + b"\r\n" for line in a], "line 1"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named_and_refused(folder: Path, what: str) -> None:
    spend(folder, 4, 4, 4, 4, 4)
    spend(folder.parent / "b", 4, 4, 4, 4, 4)
    make, place = DAMAGE[what]
    put(folder, make(lines_of(folder), lines_of(folder.parent / "b")))
    before = (folder / NAME).read_bytes()
    for attempt in (lambda: read_ledger(folder), lambda: LedgerFile.open(folder, PLAN)):
        with pytest.raises(InvalidValue, match=f"{NAME}: {place}") as caught:
            attempt()
        assert "\n" not in str(caught.value)
        assert str(caught.value).endswith("begin a new run.")
    assert (folder / NAME).read_bytes() == before


def test_what_is_written_by_hand_with_good_checksums_is_refused_without_a_crash(folder: Path) -> None:
    from privet.ledger import format as lines

    whole = spend(folder, 4)
    digest = read_ledger(folder).position.digest
    good = {
        "step": 4,
        "count": 1,
        "noise": 1.0,
        "rate": 0.01,
        "clip": 1.0,
        "sampling": "poisson",
    }
    assert parse(whole + lines.chain_line(digest, good)[0]).ledger.steps == 5
    bad: list[dict[str, object]] = [
        good | {"step": 5}, good | {"step": "4"}, good | {"count": 0}, good | {"count": -1}, good | {"count": 5},
        good | {"count": 1e3}, good | {"noise": "1.0"}, good | {"noise": None}, good | {"noise": [1.0, 1.0]},
        good | {"noise": -1.0}, good | {"noise": 0.0}, good | {"rate": 2.0}, good | {"clip": [[1.0]]},
        good | {"sampling": "shuffled"}, {}, {"torn": 3} | good | {"count": 37},
    ]  # fmt: skip
    for row in bad:
        with pytest.raises(InvalidValue):
            parse(whole + lines.chain_line(digest, row)[0])
    header = json.loads(lines_of(folder)[0])
    header.pop("digest")
    for key, value in {"version": 2, "format": "x", "steps": {}, "planned": 3, "reserve": 10**6, "delta": 2}.items():
        with pytest.raises(InvalidValue, match="line 1"):
            parse(lines.chain_line(lines.START, header | {key: value})[0])


# --- the disk ---------------------------------------------------------------------------------------


def no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_refuses_the_step_and_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[bytes] = []

    def short(number: int, text: bytes) -> int:
        parts.append(text)
        return write(number, text[:30]) if len(parts) == 1 else no_space()

    write = os.write
    with LedgerFile.create(folder, PLAN) as ledger:
        ledger.charge(0, PLAN.steps[0])
        before, mark = (folder / NAME).read_bytes(), ledger.position
        with monkeypatch.context() as patched:
            patched.setattr(_files.os, "write", short)
            with pytest.raises(InvalidValue, match=r"ledger.jsonl: cannot be written: No space left on device\. "):
                ledger.charge(1, PLAN.steps[1])
        assert len(parts) == 2
        assert (folder / NAME).read_bytes() == before
        assert (ledger.next_step, ledger.charged, ledger.position) == (1, 1, mark)
        ledger.charge(1, PLAN.steps[1])  # there is space again
    assert read_ledger(folder).ledger == PLAN.ledger().first(2)


@pytest.mark.parametrize("failing", ["sync", "cut", "interrupt"])
def test_a_line_that_may_be_there_counts_and_stops_the_ledger(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    write = os.write
    with LedgerFile.create(folder, PLAN, steps_per_line=LIMIT) as ledger:
        with monkeypatch.context() as patched:
            patched.setattr(_files, "sync", interrupted if failing == "interrupt" else no_space)
            if failing == "cut":
                patched.setattr(_files.os, "ftruncate", no_space)
                patched.setattr(_files.os, "write", lambda n, t: write(n, t[:99]) if t[:1] == b"{" else no_space())
            with pytest.raises(KeyboardInterrupt if failing == "interrupt" else InvalidValue):
                ledger.charge(0, PLAN.steps[0])
        assert ledger.next_step == 0
        with pytest.raises(InvalidValue, match="open it again"):
            ledger.charge(0, PLAN.steps[0])
    with LedgerFile.open(folder, PLAN) as ledger:
        assert ledger.next_step == (LIMIT if failing == "cut" else 1)


def test_a_folder_that_is_gone_refuses_the_step(folder: Path) -> None:
    with LedgerFile.create(folder, PLAN) as ledger:
        folder.rename(folder.with_name("moved"))
        with pytest.raises(InvalidValue, match="No such file or directory"):
            ledger.charge(0, PLAN.steps[0])
        folder.with_name("moved").rename(folder)
        ledger.charge(0, PLAN.steps[0])


@pytest.mark.parametrize("how", ["replaced", "longer", "shorter"])
def test_a_file_that_someone_else_changed_refuses_the_step(folder: Path, how: str) -> None:
    with LedgerFile.create(folder, PLAN) as ledger:
        ledger.charge(0, PLAN.steps[0])
        file, content = folder / NAME, (folder / NAME).read_bytes()
        if how == "replaced":
            file.unlink()
        file.write_bytes({"replaced": content, "longer": content + b"x", "shorter": content[:-1]}[how])
        with pytest.raises(InvalidValue, match="is not as it was left"):
            ledger.charge(1, PLAN.steps[1])
        assert ledger.next_step == 1


def test_what_is_not_a_ledger_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=f"{NAME}: there is no such file. Give the folder of a run"):
        read_ledger(tmp_path)
    with pytest.raises(InvalidValue, match="there is no such file"):
        LedgerFile.open(tmp_path, PLAN)
    assert list(tmp_path.iterdir()) == []
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(InvalidValue, match="is no plain file"):  # it does not wait for a writer
        read_ledger(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidValue, match="cannot be written"):
        LedgerFile.create(tmp_path / "file" / "a", PLAN)
    with pytest.raises(InvalidValue, match=r"cannot be read|there is no such"):
        read_ledger(tmp_path / "\0")


def test_a_ledger_is_begun_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(_files, "sync", no_space)
        with pytest.raises(InvalidValue, match="No space left"):
            LedgerFile.create(folder, PLAN)
    assert not (folder / NAME).exists()
    LedgerFile.create(folder, PLAN).close()
