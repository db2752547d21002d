"""The planner page in real Chromium: a slider moves, numbers follow, a plan is taken home, and it can be used by all.

Pictures of it are kept in build/screenshots. Skipped where there is no Chromium; `make prove` installs it, or fails.
"""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privet.planning import plan
from privet.training.train import train
from tiny_task import SIZE
from typed import run
from web_server import serving

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
AXE = "axe-core@4.14.0"
NASTY = "<img src=x onerror=document.title='owned'>"
SHORT = "#epsilon=2&delta=1e-5&dataset_size=6000&batch_size=600&epochs=4&method=noisy-sgd"  # plans quickly

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    runs = tmp_path_factory.mktemp("page") / "runs"
    train(
        plan(epsilon=3.0, delta=1e-3, dataset_size=SIZE, batch_size=20, steps=10), "tiny_task:task", out=runs / "tiny"
    )
    (runs / "tiny" / "report.html").write_text("<title>the report</title><script>document.title = 'ran'</script>")
    (runs / NASTY).mkdir()
    (runs / NASTY / "run.json").write_text("{}")
    with serving(runs) as client:
        yield f"http://127.0.0.1:{client.port}/"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(DRIVER))
    folder = str(tmp_path_factory.mktemp("downloads"))
    found.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": folder})
    found.downloads = Path(folder)
    yield found
    found.quit()


def until(browser: Any, true: Callable[[Any], Any]) -> Any:
    return WebDriverWait(browser, 60, poll_frequency=0.1).until(true)


def text(browser: Any, selector: str) -> str:
    return browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)


def click(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def opened(browser: Any, address: str, fragment: str = SHORT, *, width: int = 1360, dark: bool = False) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get("about:blank")
    browser.get(address + fragment)
    until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".heat") and text(b, "#chart-tradeoff .legend"))
    until(browser, lambda b: text(b, "#chart-epsilon .legend") and b.find_elements(By.CSS_SELECTOR, "#gallery li"))


def pictured(browser: Any, name: str, *, width: int = 1360) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    height = browser.execute_script("return document.documentElement.scrollHeight")
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    assert browser.save_screenshot(str(PICTURES / f"{name}.png"))
    assert (PICTURES / f"{name}.png").stat().st_size > 20_000


def test_a_slider_moves_and_the_numbers_follow(browser: Any, address: str) -> None:
    opened(browser, address)
    before = {place: text(browser, place) for place in ("#promises", "#facts", "#meaning", "#command")}
    assert "≤ 1.99" in before["#promises"]
    slider = browser.find_element(By.CSS_SELECTOR, "[data-name=epsilon] input[type=range]")
    slider.send_keys(Keys.ARROW_LEFT * 40)  # by the keyboard, as some people must
    until(browser, lambda b: all(text(b, place) not in ("", was) for place, was in before.items()))
    asked = float(browser.find_element(By.ID, "epsilon").get_attribute("value"))
    assert asked < 2
    assert f"--epsilon {asked:g} " in text(browser, "#command")
    shown = float(text(browser, ".promise.main .number").rpartition(" ")[2])
    assert 0.99 * asked < shown <= asked
    assert text(browser, ".promise.main .tag") == "certified"
    assert text(browser, ".promise.approximate .tag") == "approximate"


def test_between_two_steps_the_bound_of_the_later_is_read(browser: Any, address: str) -> None:
    opened(browser, address)
    lines = [
        {"name": "few", "colour": "one", "x": [1, 101], "y": [1, 2.00001], "stairs": True},
        {"name": "more", "colour": "two", "x": [1, 51, 101], "y": [0, 0, 0]},
    ]
    drawn = "import('/static/charts.js').then((m) => m.draw('chart-epsilon', arguments[0])).then(arguments[1])"
    browser.execute_async_script(drawn, {"lines": lines, "x": "step", "y": "epsilon", "said": "stairs"})
    plot = browser.find_element(By.CSS_SELECTOR, "#chart-epsilon .u-over")
    webdriver.ActionChains(browser).move_to_element(plot).perform()
    assert text(browser, "#chart-epsilon .legend .at") == "2.001"  # rounded up


def test_a_plan_is_taken_home_and_accepted(browser: Any, address: str) -> None:
    opened(browser, address)
    for name in ("plan.json", "recipe.toml"):
        click(browser, f"#get-{name.partition('.')[0]}")
        until(browser, lambda _, name=name: (browser.downloads / name).exists())
    found = run("epsilon --delta 1e-5 --json", "--from", str(browser.downloads / "plan.json"))
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["label"] == "certified"
    assert run("plan", str(browser.downloads / "recipe.toml")).exit_code == 0


def test_plans_are_compared_and_claims_look_different(browser: Any, address: str) -> None:
    opened(browser, address)
    click(browser, "#keep")
    until(browser, lambda b: "noisy-sgd" in text(b, "#compared"))
    choose = (
        "const m = document.getElementById('method'); m.value = 'auto-linear'; m.dispatchEvent(new Event('change'))"
    )
    browser.execute_script(choose)
    click(browser, "#uncertified")
    until(browser, lambda b: text(b, ".promise.main .tag") == "claimed")
    until(browser, lambda b: "no proof covers" in text(b, "#promises") and "No proof" in text(b, "#chart-epsilon"))
    click(browser, "#keep")
    until(browser, lambda b: "auto-linear as published" in text(b, "#compared"))
    style = "return getComputedStyle(document.querySelector(arguments[0])).borderTopStyle"
    assert browser.execute_script(style, ".tag.certified") == "solid"
    assert browser.execute_script(style, ".tag.claimed") == "dotted"
    pictured(browser, "compare")


def test_an_error_is_shown_and_nothing_can_be_taken(browser: Any, address: str) -> None:
    opened(browser, address)
    batch = browser.find_element(By.ID, "batch_size")
    batch.clear()
    batch.send_keys("1000000")
    until(browser, lambda b: "must be at most dataset_size" in text(b, "#error"))
    assert browser.find_element(By.ID, "get-plan").get_attribute("href") is None


def test_the_gallery_shows_names_as_text_and_reports_apart(browser: Any, address: str) -> None:
    opened(browser, address)
    assert NASTY in text(browser, "#gallery")
    assert "certified" in text(browser, "#gallery")
    assert browser.title == "Privet planner"
    assert not browser.execute_script("return document.querySelectorAll('#gallery img').length")
    click(browser, "#gallery a")
    until(browser, lambda b: b.title == "ran")
    assert browser.execute_script("return self.origin") == "null"  # its scripts are not the page's


def test_nothing_is_asked_of_other_machines(browser: Any, address: str) -> None:
    browser.get_log("performance")
    browser.get_log("browser")
    opened(browser, address)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert len(asked) > 10
    assert all(url.startswith((address, "about:", "data:")) for url in asked)
    assert [entry["message"] for entry in browser.get_log("browser")] == []  # no error, no breach of the policy


@pytest.mark.parametrize(
    ("name", "width", "dark"), [("light", 1360, False), ("dark", 1360, True), ("narrow", 375, False)]
)
def test_it_looks_right_and_can_be_used_by_all(
    browser: Any, address: str, axe: str, name: str, width: int, dark: bool
) -> None:
    opened(browser, address, width=width, dark=dark)
    click(browser, "#keep")
    wide = browser.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0  # no sideways scrolling
    pictured(browser, name, width=width)
    browser.execute_script(axe)
    found = browser.execute_async_script("axe.run(document).then(arguments[arguments.length - 1])")
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found["violations"]] == []
    assert len(found["passes"]) > 20


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The accessibility checker, from the npm registry."""
    there = tmp_path_factory.mktemp("axe")
    done = subprocess.run(["npm", "pack", "--silent", AXE], cwd=there, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.fail(f"axe-core cannot be fetched: {done.stderr[:200]}")
    with tarfile.open(next(there.glob("*.tgz"))) as packed:
        member = packed.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()
