"""One thread per process; hypothesis tries the same examples every time, new ones with HYPOTHESIS_PROFILE=explore."""

import os
import signal

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: Ctrl-C is tested all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)

from hypothesis import HealthCheck, settings  # noqa: E402

from quick import absent_devices_get_no_seed, few_checks  # noqa: E402, F401

COMMON = {"deadline": None, "max_examples": 50, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, database=None, **COMMON)
settings.register_profile("explore", **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_terminal_summary(terminalreporter):
    """How many loops were refused and accepted, as the closing lines of the adversarial replays."""
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", ()) if report.when == "call"]
    refused, marked, accepted = (
        sum(f"tests/adversarial/{test}" in nodeid for nodeid in passed)
        for test in (
            "test_unsound.py::test_the_loop_is_refused",
            "test_unsound.py::test_what_cannot_be_seen_is_said",
            "test_sound.py::test_the_loop_is_accepted",
        )
    )
    if refused or accepted:
        terminalreporter.write_line(
            f"loops replayed on neighbouring datasets: {refused} unsound refused, {marked} marked as not looked at, "
            f"{accepted} sound accepted"
        )
