"""The example that audits another library finds what it says."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "audit_opacus.py"


@pytest.mark.slow
def test_opacus_takes_its_rate_from_the_number_of_records() -> None:
    """The noise on 101 records is 50/33 of that on 100: samples and replay both see it."""
    pytest.importorskip("opacus")
    spec = importlib.util.spec_from_file_location("audit_opacus", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = example.main(samples=60)
    assert found.verdict == "violation"
    assert any("changes the noise, 1.515 times" in reason for reason in found.finding("replay").reasons)
    step = found.finding("step")
    assert step.verdict == "violation"
    assert step.empirical.label == "empirical"
    assert step.empirical.epsilon > 0.536  # what is charged for such a step at delta 1e-5
