"""A report in real Chromium: it fits wide and narrow screens, asks nobody for anything, and prints.

Pictures of it are kept in build/screenshots. Skipped where there is no Chromium; `make prove` installs it, or fails.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import report_runs
from privet.reporting.report import Report, report
from privet.training.train import train

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.chrome.service import Service  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
PICTURES = Path(__file__).parents[2] / "build" / "screenshots"

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("page") / "a-run-with-quite-a-long-name-that-nobody-would-type"
    train(report_runs.tiny_plan(steps=4, method="dynamic", rho_noise=1.5, rho_clip=1.5), "tiny_task:task", out=folder)
    (folder / "audit.json").write_text(json.dumps(report_runs.audit_of(folder)))
    (folder / "raw_attack.json").write_text(json.dumps(report_runs.attack_of(folder)))
    return report(folder, show_private=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield found
    found.quit()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (320, "dark")])
def test_it_fits_the_screen_and_asks_nobody(
    browser: Any, made: Report, tmp_path: Path, width: int, scheme: str
) -> None:
    page = made.save(tmp_path / "report.html")
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get_log("performance")
    browser.get(page.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []  # nothing that its policy had to stop
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("data:", page.as_uri()))] == []
    back = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    dark = sum(map(int, back.removeprefix("rgb(").removesuffix(")").split(","))) < 3 * 128
    assert dark == (scheme == "dark")
    PICTURES.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(PICTURES / f"report-{width}-{scheme}.png"))


def test_it_prints(made: Report, tmp_path: Path) -> None:
    printed = made.save(tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert len(printed) > 20_000
