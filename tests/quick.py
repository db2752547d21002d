"""Fixtures that leave out what a test is not about and what takes most of its time."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def absent_devices_get_no_seed():
    """`torch.manual_seed` writes down the whole stack for each device that is not there: a fifth of a training's time.

    A fixture, so that the process which only hands out the tests need not import torch.
    """
    import torch

    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda _: None


@pytest.fixture(scope="module")
def few_checks():
    """Loops are checked in the first step that says something, not in the first eight, which take most of a short run.

    For modules about something else than the checks: `pytestmark = pytest.mark.usefixtures("few_checks")`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privet.training.loop_watch.ALWAYS_CHECKED", 1)
        yield
