"""What a report tells a privacy officer is so: whom it protects, what its ceilings cover, and which run it is about."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import report_runs
from privet.attacks.attack import attack
from privet.cli.demo import _clear
from privet.errors import InvalidValue
from privet.ledger import format, reading as ledger_reading
from privet.reporting import evidence
from privet.reporting.evidence import NonPrivateBaseline, read_attack
from privet.reporting.facts import RunFacts, gather
from privet.reporting.report import compose, report
from privet.reporting.words import verdict
from privet.training.run import Run
from privet.training.train import train
from tiny_task import SIZE, task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_checks")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("truth") / "a"
    train(report_runs.tiny_plan(steps=3), "tiny_task:task", out=folder)
    return folder


@pytest.fixture(scope="module")
def facts(whole: Path) -> RunFacts:
    return gather(whole)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> RunFacts:
    folder = tmp_path_factory.mktemp("tuned") / "a"
    train(
        report_runs.tiny_plan(steps=3, trials_mean=3.0, trial_count_distribution="geometric"),
        "tiny_task:task",
        out=folder,
    )
    return gather(folder)


def text_of(*every: RunFacts) -> str:
    return compose(every).markdown()


def checks(facts: RunFacts) -> dict[str, str]:
    return {check["question"]: check["state"] for check in compose([facts]).as_dict()["checklist"]}


# --- evidence that is kept ---


def kept(run: Path, name: str, content: dict[str, object], **options: object) -> Path:
    """A file of evidence, as if an audit or attack with these options had just left it."""
    return evidence._store(Run.load(run), name, content["format"], options, content["found"])


def test_weak_evidence_does_not_take_the_place_of_strong(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "a"))
    strong = report_runs.attack_of(run, method="run", victims=100, succeeded=90, limits=[0.8, 0.96])
    weak = report_runs.attack_of(
        run, method="run", attack="invert-l2:iterations=2", victims=2, succeeded=0, limits=[-0.9, 0.9]
    )
    assert kept(run, "raw_attack.json", strong, examples=100).name == "raw_attack.json"
    for _ in range(2):  # the second has the settings of the first, and replaces it
        assert kept(run, "raw_attack.json", weak, examples=2).name == "raw_attack-2.json"
    kept(run, "audit.json", report_runs.audit_of(run, verdict="violation"), samples=2000)
    kept(run, "audit.json", report_runs.audit_of(run, verdict="consistent", epsilon=2.0), samples=10)
    found = gather(run)
    assert [(one.victims, one.succeeded) for one in found.attacks.outcomes] == [(100, 90)]
    assert (found.attacks.count, found.audit.count, found.audit.verdict) == (2, 2, "violation")
    text = compose([found], show_private=True).markdown()
    assert "2 attacks on updates of" in text
    assert "audited 2 times" in text


def test_an_audit_by_other_coins_does_not_take_the_place_of_a_violation_of_the_same_settings(whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "a"))
    for said, name in (("consistent", "audit.json"), ("violation", "audit.json"), ("consistent", "audit-2.json")):
        assert kept(run, "audit.json", report_runs.audit_of(run, verdict=said), seed=None).name == name
    assert gather(run).audit.verdict == "violation"


def test_of_two_audits_without_a_violation_the_one_that_proves_a_larger_leak_is_shown(whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "a"))
    for said, leak in (("consistent", 0.1), ("inconclusive", 4.9), ("consistent", 0.3)):
        bound = {"epsilon": leak, "epsilon_lower": leak}
        kept(run, "audit.json", report_runs.audit_of(run, verdict=said, **bound), samples=round(100 * leak))
    found = gather(run).audit
    assert [one.empirical.epsilon for one in found.findings] == [4.9]
    assert found.verdict == "inconclusive"


def test_a_damaged_file_of_evidence_is_replaced(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "a"))
    (run / "audit.json").write_text("torn")
    assert kept(run, "audit.json", report_runs.audit_of(run)).name == "audit.json"
    assert gather(run).audit.count == 1


# --- the guarantee ----------------------------------------------------------------------------------


def test_a_ledger_that_promises_more_than_its_plan_is_refused(tmp_path: Path) -> None:
    """An unfinished run promises what its ledger's first line says; the plan is proven again, the line was not."""
    folder = tmp_path / "a"
    train(report_runs.tiny_plan(steps=6), "tiny_task:task", out=folder, stop_at="accuracy=0", evaluate_every=1)
    whole, header = (folder / ledger_reading.NAME).read_bytes(), ledger_reading.read_ledger(folder).header
    assert header.planned is not None
    low = replace(header.planned, epsilon=0.01, epsilon_lower=0.009)
    for forged in (replace(header, planned=low), replace(header, together="epsilon <= 0.01")):
        text, digest = format.header_line(forged)
        rows = [text]
        for line in whole.splitlines()[1:]:  # with good checksums
            row = {key: value for key, value in json.loads(line).items() if key != "digest"}
            text, digest = format.chain_line(digest, row)
            rows.append(text)
        (folder / ledger_reading.NAME).write_bytes(b"".join(rows))
        for reader in (Run.load, report):
            with pytest.raises(InvalidValue, match="does not say what its plan says"):
                reader(folder)


def test_ceilings_of_a_tuned_run_are_said_to_be_those_of_one_run(tuned: RunFacts) -> None:
    text = text_of(tuned)
    assert "no attack on this run alone finds more than" in text
    assert "Choosing among the runs of the tuning gives away more" in text
    assert "for everything that this run alone gave out" in text


def test_ceilings_of_a_single_run_are_for_all_it_gave_out(facts: RunFacts) -> None:
    text = text_of(facts)
    assert "no attack finds more than" in text
    assert "for everything that was given out" in text
    assert "of the tuning" not in text


# --- whom it protects -------------------------------------------------------------------------------


def test_users_are_not_called_records(tmp_path: Path) -> None:
    owned = replace(task(), users=torch.arange(SIZE) // 2)
    planned = report_runs.tiny_plan(unit="user", dataset_size=SIZE // 2, batch_size=10, steps=3)
    train(planned, owned, out=tmp_path / "a")
    facts = gather(tmp_path / "a")
    text = text_of(facts)
    assert "all training records of one user together, one of 100 users" in text
    assert "The number of users is public" in text
    assert "expected batch size 10, 100 users, sampled" in text
    assert "100 records" not in text
    assert "number of records is public" not in text
    assert checks(facts)["Does each person have one unit?"] == "yes"


def test_a_client_need_not_be_one_person(facts: RunFacts) -> None:
    federated = replace(facts, run=replace(facts.run, guarantee=replace(facts.run.guarantee, unit="client")))
    assert checks(federated)["Does each person have one unit?"] == "open"


def test_a_report_does_not_hide_the_number_that_it_shows(tmp_path: Path) -> None:
    train(report_runs.tiny_plan(adjacency="add-remove", steps=3), "tiny_task:task", out=tmp_path / "a")
    text = text_of(gather(tmp_path / "a"))
    assert "is not given away" not in text
    assert "The number of examples need not be public, but the plan's own figure is: this report shows it" in text


@pytest.mark.parametrize(("delta", "state"), [(0.1 / SIZE, "yes"), (0.5 / SIZE, "open"), (1 / SIZE, "no")])
def test_a_delta_near_one_over_n_is_not_called_small(facts: RunFacts, delta: float, state: str) -> None:
    changed = replace(facts, run=replace(facts.run, guarantee=replace(facts.run.guarantee, delta=delta)))
    assert checks(changed)["Is delta small against the number of records?"] == state


# --- comparisons and evidence -----------------------------------------------------------------------


def test_scores_that_cannot_be_compared_are_not(facts: RunFacts) -> None:
    one = replace(facts, score=0.7)
    other = replace(one, name="other", measure="error", score=0.9)
    assert verdict(one, (other,)) == ""
    assert "scores cannot be compared" in text_of(one, other)


def test_a_score_without_privacy_is_of_the_same_measure(facts: RunFacts) -> None:
    one = replace(facts, baseline=NonPrivateBaseline(measure=facts.measure, score=0.98765, steps=9))
    assert "0.9877" in compose([one], show_private=True).markdown()
    other = replace(facts, baseline=NonPrivateBaseline(measure="loss", score=0.98765, steps=9))
    assert "0.9877" not in compose([other], show_private=True).markdown()


def test_evidence_of_another_run_of_the_same_plan_is_refused(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "b"
    train(Run.load(whole).plan, "tiny_task:task", out=other)
    made = {
        "audit.json": report_runs.audit_of, "raw_attack.json": report_runs.attack_of,
        "raw_plain.json": report_runs.plain_of,
    }  # fmt: skip
    for name, content in made.items():
        (other / name).write_text(json.dumps(content(whole)))
        with pytest.raises(InvalidValue, match="is of another run"):
            report(other)
        (other / name).unlink()


def test_where_nothing_is_guaranteed_no_attack_keeps_within_it(facts: RunFacts, whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "a"))
    claimed = replace(facts.run, guarantee=replace(facts.run.guarantee, label="claimed", epsilon_lower=None))
    for ceiling, run, said in ((None, facts.run, False), (0.5, facts.run, True), (0.5, claimed, False)):
        (folder / "raw_attack.json").write_text(json.dumps(report_runs.attack_of(folder, ceiling=ceiling)))
        text = text_of(replace(facts, run=run, attacks=read_attack(folder, run.plan.hash)))
        assert ("none identified more records than the guarantee allows" in text) is said
        assert ("no ceiling to hold them against" in text) is not said


def test_outcomes_of_a_run_that_is_gone_are_not_taken_for_those_of_the_next(tmp_path: Path) -> None:
    folder, kept = tmp_path / "a", tmp_path / "outcomes"
    planned = report_runs.tiny_plan(dataset_size=100, steps=2)
    for count in (1, 2):
        train(planned, "digits:size=100", out=folder, model="linear")
        attack(Run.load(folder), attacks=["prior"], examples=2, candidates=20, out=kept)
        assert len(list(kept.iterdir())) == count
        shutil.rmtree(folder)


# --- the demo ---------------------------------------------------------------------------------------


def test_the_demo_removes_no_ledger_that_is_charged(whole: Path, tmp_path: Path) -> None:
    """A loop of one's own leaves a ledger and weights without run.json, as a run does that was killed early."""
    mine = tmp_path / "dynamic"
    mine.mkdir()
    for name in ("ledger.jsonl", "ledger.count", "plan.json"):
        shutil.copy(whole / name, mine / name)
    with pytest.raises(InvalidValue, match="is not a run of the demo"):
        _clear(mine)
    assert ledger_reading.read_ledger(mine).ledger.steps == 3
    begun = (mine / "ledger.jsonl").read_bytes().split(b"\n")[0]
    (mine / "ledger.jsonl").write_bytes(begun + b"\n")
    (mine / "ledger.count").unlink()
    _clear(mine)  # nothing was charged
    assert not mine.exists()
