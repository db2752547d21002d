"""A report says what the run says: labels beside every epsilon, nothing private unasked, nothing from outside."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scipy import stats

import report_runs
from privet.accounting import Guarantee
from privet.errors import MissingExtra
from privet.ledger.assumptions import LoopFacts
from privet.ledger.file import LedgerFile
from privet.planning import Plan, plan
from privet.reporting import render
from privet.reporting.facts import RunFacts, gather
from privet.reporting.render import epsilon, percent
from privet.reporting.report import compose, report
from privet.reporting.words import verdict
from privet.training.train import train
from report_runs import NASTY
from tiny_task import SIZE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_checks")]
LABELS = ("certified", "approximate", "claimed", "empirical")
NUMBER = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?"
EPSILON = re.compile(rf"(?:ε|\bepsilon)\s*(?:≤|≈|≥|<=|>=|~|=|of|claimed to be|claimed)?\s*({NUMBER})")
TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "p", "span", "h1", "h2", "h3", "ul", "li", "nav", "a",
    "main", "section", "dl", "dt", "dd", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure",
    "figcaption", "svg", "path", "text", "code", "img", "footer",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return report_runs.made_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def facts(runs: dict[str, Path]) -> dict[str, RunFacts]:
    """What is known of each run, gathered once."""
    return {name: gather(folder) for name, folder in runs.items()}


@pytest.fixture(scope="module")
def evident(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> RunFacts:
    """The complete run with all evidence."""
    run = Path(shutil.copytree(runs["complete"], tmp_path_factory.mktemp("evident") / "a"))
    add_evidence(run)
    return gather(run)


@pytest.fixture(scope="module")
def run_with_own_loop(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> RunFacts:
    """The complete run, as a loop of the user's own would have left it."""
    run = Path(shutil.copytree(runs["complete"], tmp_path_factory.mktemp("own") / "a"))
    with LedgerFile.open(run, Plan.load(run / "plan.json")) as ledger:
        ledger.note(LoopFacts(steps=4, checked=3, post_processing=(NASTY,)))
    return gather(run)


def add_evidence(run: Path) -> None:
    (run / "audit.json").write_text(json.dumps(report_runs.audit_of(run)))
    (run / "raw_attack.json").write_text(json.dumps(report_runs.attack_of(run)))
    (run / "raw_plain.json").write_text(json.dumps(report_runs.plain_of(run)))


class Page(HTMLParser):
    """The text of a page, and everything that a browser would act upon."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self.words.append(data)

    @property
    def text(self) -> str:
        spoken = [value for name, value in self.attributes if name in ("aria-label", "alt", "title")]
        return " ".join(" ".join([*self.words, *spoken]).split())


def unlabelled(text: str) -> list[str]:
    """Every number that is printed as an epsilon and is not followed by its label at once."""
    return [
        text[found.start() : found.end() + 40] for found in EPSILON.finditer(text)
        if not re.match(rf"[^\w]*(?:at delta {NUMBER} \[)?({'|'.join(LABELS)})", text[found.end() :])
    ]  # fmt: skip


# --- labels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["complete", "raw", "seeded", "unsound", "tuned", "stopped", "unfinished"])
@pytest.mark.parametrize("show_private", [False, True])
def test_no_epsilon_stands_without_its_label(facts: dict[str, RunFacts], name: str, show_private: bool) -> None:
    found = compose([facts[name], facts["complete"]], show_private=show_private)
    page, text = Page(found.html()).text, found.markdown()
    for written in (page, text):
        assert EPSILON.search(written)
        assert unlabelled(written) == []


def test_what_the_guarantee_assumes_is_listed_and_its_question_stays_open(run_with_own_loop: RunFacts) -> None:
    found = compose([run_with_own_loop])
    page, text = Page(found.html()).text, found.markdown()
    for written in (page, text):
        assert "independence of examples was checked in 3 of 4 steps" in written
        assert "assumes of the training loop" in written
        assert "things of the training loop that nobody has checked" in written
    assert NASTY not in found.html()
    checks = {check["question"]: check for check in found.as_dict()["checklist"]}
    asked = checks["Is everything checked that the guarantee assumes of the training loop?"]
    assert asked["state"] == "open"
    said = found.as_dict()["runs"][0]["guarantee"]["assumptions"]
    assert any("independence of examples" in one for one in said)
    assert found.as_dict()["runs"][0]["guarantee"]["label"] == "certified"


def test_a_run_of_privets_own_loop_says_that_it_assumes_nothing(facts: dict[str, RunFacts]) -> None:
    found = compose([facts["complete"]])
    assert "none (the loop is Privet's own)" in Page(found.html()).text
    assert "that nobody has checked" not in found.html()
    checks = {check["question"]: check["state"] for check in found.as_dict()["checklist"]}
    assert checks["Is everything checked that the guarantee assumes of the training loop?"] == "yes"


def test_an_epsilon_without_its_label_is_found() -> None:
    assert unlabelled("so ε ≤ 2.5 holds") == ["ε ≤ 2.5 holds"]
    assert unlabelled("epsilon 3 of the plan")
    assert not unlabelled("ε ≤ 2.5 certified, ε claimed to be 1.2 claimed, epsilon <= 1 at delta 1e-5 [certified: pld]")


def test_a_number_in_the_place_of_a_word_stops_the_report(evident: RunFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traps: wherever the page writes a value by itself, a bare number there is refused, and so is a guarantee."""
    given: list[dict[str, object]] = []
    monkeypatch.setattr("privet.reporting.report.Page", given.append)
    compose([evident], show_private=True)
    (values,) = given
    words = {name: value for name, value in values.items() if isinstance(value, str) and value}
    assert words.keys() >= {"title", "unit", "folder", "sampling", "source", "version"}
    facts, run = evident, evident.run
    trapped = [values | {name: trap} for name in words for trap in (1.5, 3, facts.run.guarantee)]
    trapped += [values | {"facts": replace(facts, **one)} for one in ({"measure": 0.5}, {"damage": 0.5})]
    trapped += [values | {"run": replace(run, **one)} for one in ({"evaluation": 0.5}, {"together": 0.5})]
    trapped += [values | {"g": replace(run.guarantee, method=0.5)}, values | {"versions": {"privet": 0.5}}]
    for traps in trapped:
        with pytest.raises((TypeError, AttributeError)):
            render.Page(traps)
    assert render.Page(values).markdown()


def test_an_empirical_epsilon_has_its_own_label(evident: RunFacts) -> None:
    page = Page(compose([evident]).html()).text
    assert unlabelled(page) == []
    assert re.search(r"ε ≥ 0\.4321? empirical", page)


@pytest.mark.parametrize(("name", "label"), [("seeded", "claimed"), ("unsound", "claimed"), ("complete", "certified")])
def test_a_claim_is_told_from_a_proof(facts: dict[str, RunFacts], name: str, label: str) -> None:
    found = compose([facts[name]])
    g = found.runs[0].run.guarantee
    assert g.label == label
    html = found.html()
    others = [other for other in LABELS if other != label]
    assert re.search(rf'class="promise {label}"', html)
    assert not re.search(rf'class="promise ({"|".join(others)})"', html)
    is_proven = label == "certified"
    assert ("no attack finds more than" in html) == is_proven  # nothing is said about attackers without a proof
    assert (found.runs[0].attacker is not None) == is_proven
    assert ("There is no guarantee." in html) == (not is_proven)
    states = {check["question"]: check["state"] for check in found.as_dict()["checklist"]}
    assert states["Is the guarantee proven?"] == ("yes" if is_proven else "no")


@pytest.mark.parametrize(("name", "is_none"), [("seeded", True), ("unsound", True), ("complete", False)])
def test_without_a_guarantee_nothing_holds_and_no_accountant_is_named(
    facts: dict[str, RunFacts], name: str, is_none: bool
) -> None:
    text = compose([facts[name]]).markdown()
    assert ("| what holds | guarantee: none" in text) == is_none
    assert ("- Guarantee: none" in text) == is_none
    assert ("privet epsilon --from" in text) != is_none  # it would refuse the run
    assert "privet audit --run" in text


def test_secure_noise_is_told(facts: dict[str, RunFacts]) -> None:
    run = facts["complete"].run
    secure = replace(facts["complete"], run=replace(run, about=dict(run.about) | {"secure_noise": True}))
    assert "| noise | secure: " in compose([secure]).markdown()
    assert "| noise | secure: " not in compose([facts["complete"]]).markdown()


def test_json_has_a_label_beside_every_epsilon(evident: RunFacts) -> None:
    def walk(value: object) -> int:
        if isinstance(value, dict):
            if "epsilon" in value:
                assert value["label"] in LABELS
            return ("epsilon" in value) + sum(map(walk, value.values()))
        return sum(map(walk, value)) if isinstance(value, list) else 0

    assert walk(json.loads(json.dumps(compose([evident], show_private=True).as_dict()))) == 3


def test_numbers_are_rounded_to_the_safe_side() -> None:
    bound = {"delta": 1e-5, "method": "m", "epsilon_lower": None}
    assert epsilon(Guarantee(epsilon=1.23401, label="certified", **bound)) == "ε ≤ 1.235"
    assert epsilon(Guarantee(epsilon=1.23499, label="empirical", **bound)) == "ε ≥ 1.234"
    assert (percent(0.05401, up=True), percent(1.2, up=True)) == ("5.41 %", "100 %")


def test_a_report_claims_no_more_noise_and_no_smaller_clip_than_there_was(facts: dict[str, RunFacts]) -> None:
    found = facts["complete"]
    steps = found.run.plan.steps
    text = compose([found]).markdown()
    rows = (("noise multiplier", steps.noise_multipliers, 1), ("clipping norm", steps.clipping_norms, -1))
    for name, true, sign in rows:
        said = re.search(rf"\| {name} \| ([\d.]+) to ([\d.]+) \|", text)
        assert sign * float(said.group(1)) <= sign * true[0]
        assert sign * float(said.group(2)) <= sign * true[-1]
    first = re.search(r"\| noise multiplier \| 1: ([\d.]+)", text)  # the chart's points in words
    assert float(first.group(1)) <= steps.noise_multipliers[0]


# --- what it means ----------------------------------------------------------------------------------


def test_the_attackers_ceiling_is_that_of_the_exact_law(tmp_path: Path) -> None:
    """Full batches are Gaussian privacy with mu = sqrt(T) / noise: Phi(Phi^-1(a) + mu) members are found at most."""
    made = plan(delta=1e-3, dataset_size=SIZE, batch_size=SIZE, steps=4, noise_multiplier=4.0, solve="epsilon")
    train(made, "tiny_task:task", out=tmp_path / "a")
    facts = gather(tmp_path / "a")
    for power in facts.powers:
        exact = stats.norm.cdf(stats.norm.ppf(power.false_alarms) + 4**0.5 / 4.0)
        assert exact <= power.hits <= 1.02 * exact
    assert facts.advantage == pytest.approx(2 * stats.norm.cdf(0.25) - 1, rel=0.02)
    assert facts.advantage >= 2 * stats.norm.cdf(0.25) - 1


def test_an_unfinished_run_promises_its_whole_plan(facts: dict[str, RunFacts]) -> None:
    run, page = facts["unfinished"].run, Page(compose([facts["unfinished"]]).html()).text
    assert run.steps < len(run.plan.steps)
    assert run.guarantee.epsilon == run.plan.guarantee.epsilon
    assert "not finished" in page
    assert "That of the whole plan" in page
    stopped = Page(compose([facts["stopped"]]).html()).text
    assert "stopped early" in stopped
    assert re.search(r"the ledger adds up to ε claimed to be \S+ claimed", stopped)


def test_a_comparison_says_what_came_out(facts: dict[str, RunFacts]) -> None:
    one = facts["complete"]
    better, worse = replace(one, name="better", score=0.9), replace(one, name="worse", score=0.7)
    assert verdict(worse, (better,)).startswith("worse did worse than better by 0.2. One run each")
    assert verdict(better, (worse,)).startswith("better did better than worse by 0.2.")
    errors = [replace(one, higher_is_better=False) for one in (better, worse)]
    assert "better did worse than worse" in verdict(errors[0], (errors[1],))
    beside = Page(compose([one, facts["seeded"]]).html()).text
    assert "seeded promises another kind of thing" in beside
    assert "another task" not in beside


def test_no_evidence_is_said_and_left_open(facts: dict[str, RunFacts], evident: RunFacts) -> None:
    page = Page(compose([facts["complete"]]).html()).text
    assert "Not audited yet" in page
    assert "Not attacked yet" in page

    def states(one: RunFacts) -> dict[str, str]:
        return {check["question"]: check["state"] for check in compose([one]).as_dict()["checklist"]}

    assert states(facts["complete"])["Was the mechanism audited?"] == "open"
    assert states(facts["complete"])["Was it attacked?"] == "open"
    assert evident.audit is not None
    assert states(evident)["Was the mechanism audited?"] == states(evident)["Was it attacked?"] == "yes"
    for verdict_, state in (("violation", "no"), ("inconclusive", "open")):
        judged = replace(evident, audit=replace(evident.audit, verdict=verdict_))
        assert states(judged)["Was the mechanism audited?"] == state


# --- what is private --------------------------------------------------------------------------------


def test_nothing_private_is_shown_unless_asked_for(evident: RunFacts) -> None:
    hidden = compose([evident])
    for text in (hidden.html(), hidden.markdown(), json.dumps(hidden.as_dict())):
        for secret in ("31 of 37", "0.98765", "0.9877", "image/png", '"succeeded"'):
            assert secret not in text
    shown = Page(compose([evident], show_private=True).html())
    assert "31 of 37 not private" in shown.text
    assert "0.9877 not private" in shown.text
    assert any(value.startswith("data:image/png;base64,") for name, value in shown.attributes if name == "src")


def test_raw_metrics_are_not_shown_unless_asked_for(facts: dict[str, RunFacts]) -> None:
    one = facts["raw"]
    assert one.raw
    hidden, shown = compose([one]), compose([one], show_private=True)
    for name, value in one.raw.items():
        assert name not in hidden.html() + hidden.markdown() + json.dumps(hidden.as_dict())
        assert f"{name}: {value:.4g} not private" in Page(shown.html()).text
        assert shown.as_dict()["runs"][0]["not_private"]["raw"][name] == value
    assert "raw figures from training records are in its metrics and not shown" in hidden.html()


# --- one page, nothing from outside -----------------------------------------------------------------


def check_harmless(page: Page) -> None:
    assert page.tags <= TAGS
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name != "href" or value.startswith("#")
        assert name != "src" or value.startswith("data:image/png;base64,")
        assert name != "style"


def test_the_page_needs_nothing_else_and_runs_nothing(evident: RunFacts) -> None:
    html = compose([evident], show_private=True).html()
    check_harmless(Page(html))
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "http://" not in html
    assert "https://" not in html


def test_what_a_folder_says_is_text(runs: dict[str, Path], tmp_path: Path) -> None:
    nasty = Path(shutil.copytree(runs["complete"], tmp_path / NASTY.replace("/", "-")))
    add_evidence(nasty)
    about = json.loads((nasty / "run.json").read_text())
    about["settings"] |= {"task": NASTY, "model": NASTY, "optimizer": NASTY}
    about |= {"task": NASTY, "evaluation": NASTY, "source": NASTY, "end": NASTY, "own_task": True}
    about |= {"versions": {NASTY: NASTY}, "changed": {NASTY: [NASTY, NASTY]}}
    (nasty / "run.json").write_text(json.dumps(about))
    found = report(nasty, show_private=True, title=NASTY)
    page = Page(found.html())
    check_harmless(page)
    assert NASTY in page.text
    outside = re.sub(r"(?<!\\)`[^`\n]*`", "", found.markdown())  # in code it is text anyway
    assert "<" not in outside


def test_markdown_tables_keep_their_columns(evident: RunFacts) -> None:
    text = compose([evident], show_private=True).markdown()
    table: list[int] = []
    for line in text.splitlines():
        if line.startswith("| "):
            table.append(len(re.findall(r"(?<!\\)\|", line)))
            assert table[-1] == table[0]
        else:
            table = []


def test_a_pdf_needs_a_browser(evident: RunFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render.shutil, "which", lambda _: None)
    with pytest.raises(MissingExtra, match=r"Chromium or Chrome.*write \.html"):
        compose([evident]).save(tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()
