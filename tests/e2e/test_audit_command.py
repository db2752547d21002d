"""`privet audit` as a user types it."""

import re
from pathlib import Path

import pytest

from privet import plan
from typed import answer, refused, run


def test_a_sound_method() -> None:
    found = answer("audit --method noisy-sgd --kind replay")
    assert found["verdict"] == "consistent"
    assert found["mechanism"] == "method noisy-sgd"
    assert found["findings"][0]["scenes"] == 30


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privet.cli.common.OFTEN", 0.001)
    result = run("audit --method noisy-sgd --kind replay --json")
    assert result.stdout.count("\n") == 1
    assert any(re.fullmatch(r"auditing: .*, \d+ s so far", line) for line in result.stderr.splitlines())
    monkeypatch.setattr("privet.cli.common.OFTEN", 60.0)
    assert run("audit --method noisy-sgd --kind replay").stderr == ""


def test_a_violation_is_a_finding_and_not_a_failure() -> None:
    result = run("audit --method dp-baseline --as-published --kind replay")
    assert result.exit_code == 0
    assert result.stdout.startswith("violation: method dp-baseline as published")
    assert "the query moves by 2 times the declared sensitivity" in result.stdout


def test_a_build_can_fail_on_a_violation() -> None:
    assert run("audit --control quarter-noise --kind replay --fail-on-violation").exit_code == 3
    assert run("audit --method noisy-sgd --kind replay --fail-on-violation").exit_code == 0


@pytest.mark.slow
def test_samples_give_a_labelled_bound_and_a_seed_gives_it_again() -> None:
    line = "audit --control per-layer --kind step --samples 300 --seed 3"
    found = answer(line)
    one = found["findings"][0]
    assert one["verdict"] == "violation"
    assert one["empirical"]["label"] == "empirical"
    assert one["confidence"] == 0.999
    assert one["mu"] > one["mu_claimed"] == pytest.approx(1.0)
    text = run(line).stdout
    assert f"mu >= {one['mu']:.3g} (Gaussian reading) against 1 claimed" in text
    assert "[empirical: direct bound, confidence 99.9 %]" in text


@pytest.mark.slow
def test_a_plan_is_run_once(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan(epsilon=8.0, delta=1e-5, dataset_size=300, batch_size=100, steps=10).save(file)
    found = answer("audit --kind one-run --canaries 300 --seed 1 --plan", str(file))
    assert [one["kind"] for one in found["findings"]] == ["one-run"]
    assert found["verdict"] in ("consistent", "inconclusive")
    assert found["claim"].startswith("epsilon <= 7.99")
    assert found["findings"][-1]["canaries"] == 300


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("audit", "Give one of --method"),
        ("audit --method dynamic --alarm 2", "significance=2.0 must lie strictly between 0 and 1"),
        ("audit --method noisy-sgd --control own-norm", "Give one of --method"),
        ("audit --method own-norm", "method='own-norm' is not known"),
        ("audit --control noisy-sgd", "control='noisy-sgd' is not known"),
        ("audit --control own-norm --as-published", "--uncertified needs --method"),
        ("audit --method noisy-sgd --kind replays", "kind='replays' must be one of"),
        ("audit --method noisy-sgd --kind ,", "has an empty name"),
        ("audit --method noisy-sgd --kind one-run", "needs a plan"),
        ("audit --method noisy-sgd --samples 3 --kind step", "samples=3"),
        ("audit --method noisy-sgd --samples x", "not a whole number"),
        ("audit --method noisy-sgd --alarm 2 --kind step", "significance=2.0"),
        ("audit --method noisy-sgd --task digits", "--task needs --plan"),
        ("audit --plan nowhere.json", "nowhere.json"),
        ("audit --run nowhere", "nowhere"),
    ],
)
def test_mistakes_are_one_line(line: str, words: str) -> None:
    refused(run(line), words)
