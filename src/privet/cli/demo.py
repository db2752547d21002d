"""`privet demo`: the whole story on real digits: plan, train, rival, audit, attack, report."""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet.cli.common import PATH, print_object, progress, warnings_as_lines
from privet.errors import InvalidValue, PrivetError

if TYPE_CHECKING:
    from privet.reporting.report import Report
    from privet.training.run import Run

DYNAMIC, CONSTANT = "dynamic", "constant"
BUDGET = {"epsilon": 3.0, "delta": 2.5e-5, "dataset_size": 4000, "batch_size": 256, "clipping_norm": 0.1}
TASK, MODEL = "digits", "tanh-cnn"
# Network, batch, clip and rate: picked from 17 runs by the held-out digits, mostly dynamic. See docs/howto-report.md.
SHAPES: dict[str, dict[str, Any]] = {
    DYNAMIC: {"method": "dynamic", "rho_noise": 1.5, "rho_clip": 1.5},
    CONSTANT: {"method": "noisy-sgd"},
}
SEED = 0  # of the audit and the attack, which are repeatable; the two runs are private, and have none
FULL: dict[str, Any] = {"steps": 188, "kinds": None, "examples": 40, "attacks": ["invert-l2", "prior"]}
QUICK: dict[str, Any] = {"steps": 4, "kinds": ["replay"], "examples": 2, "attacks": ["invert-l2:iterations=15"]}
SAMPLES = 4000


@click.command("demo", short_help="The whole story on real digits, in about two minutes.")
@click.option("--out", type=PATH, default=Path("demo"), show_default=True, metavar="FOLDER", help="Where it is kept.")
@click.option("--quick", is_flag=True, help="A few steps of everything, in seconds: to see that it works.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def demo_command(*, out: Path, quick: bool, as_json: bool) -> int:
    """Plan a dynamic schedule for 4,000 real digits, train it and a constant rival, audit, attack, and report.

    Both runs have the same certified budget. Interrupted at any moment, it goes on where it was when it is run again;
    parts that are whole are not done again. The digits are public, so the report shows also what is not private.

    \b
    Examples:
      privet demo
      privet demo --out /tmp/demo --quick
    """
    from privet.reporting.report import report

    start, sizes = time.monotonic(), QUICK if quick else FULL
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValue(f"--out={str(out)!r} cannot be made: {error.strerror}. Choose another.") from None
    runs = {}
    for number, name in enumerate((DYNAMIC, CONSTANT), start=1):
        run = _train(out / name, name, sizes["steps"], f"{number}. {name}: ")
        if not run.is_over:
            click.echo(f"privet: stopped at step {run.steps}; `privet demo --out {out}` goes on there", err=True)
            return 130
        runs[name] = run
    run = runs[DYNAMIC]
    with warnings_as_lines():
        _part("3. the same network without privacy", run, "baseline", lambda: _plain(run))
        _part("4. audit: is the claim kept?", run, "audit", lambda: _audit(run, sizes))
        _part("5. attack: what does one update give away?", run, "attack", lambda: _attack(run, out, sizes))
        _say("6. report")
        found = report(run, runs[CONSTANT], show_private=True, title="Real digits, trained privately")
        found.save(out / "report.html")
    seconds = time.monotonic() - start
    if as_json:
        print_object(found.as_dict() | {"files": [str(out / "report.html")], "seconds": seconds})
    else:
        click.echo("\n".join(_summary(found, out, seconds)))
    return 0


def _say(text: str) -> None:
    click.echo(text, err=True)


# --- training ---------------------------------------------------------------------------------------
def _train(folder: Path, name: str, steps: int, head: str) -> "Run":
    from privet.planning import plan
    from privet.reporting.facts import ends
    from privet.training.progress import LiveProgress, LogProgress
    from privet.training.run import NAME, Run
    from privet.training.train import resume_run, train

    planned = plan(**BUDGET, steps=steps, training={"task": TASK, "model": MODEL, "lr": 2.0}, **SHAPES[name])
    watcher = LiveProgress() if sys.stderr.isatty() else LogProgress(sys.stderr)
    if (folder / NAME).exists():
        run = Run.load(folder)
        if run.plan.recipe != planned.recipe:
            raise InvalidValue(f"{folder}: is a run of another plan, not the demo's. Choose another --out.")
        _say(f"{head}{'trained already' if run.is_over else f'goes on at step {run.steps}'}; {run.plan.guarantee}")
        return resume_run(run, watcher=watcher)
    _clear(folder)
    _say(
        f"{head}{len(planned.steps)} steps, noise {ends(planned.steps.noise_multipliers, up=True)}; {planned.guarantee}"
    )
    return train(planned, out=folder, watcher=watcher)


def _clear(folder: Path) -> None:
    """Remove what a run left that was killed before its first step: run.json is written before any noise is drawn."""
    from privet.ledger.reading import NAME as LEDGER
    from privet.training.run import PLAN

    if not folder.is_symlink() and not folder.exists():
        return
    ours = ("ledger.", PLAN) if (folder / LEDGER).exists() else ("ledger.",)  # a plan comes after its ledger
    strange = folder.is_symlink() or not folder.is_dir() or [
        file.name for file in folder.iterdir() if not file.name.startswith(ours)
    ]  # fmt: skip
    ledger = folder / LEDGER  # that goes on behind its first line: of a loop of someone's own, which has no run.json
    if strange or (ledger.exists() and ledger.read_bytes().partition(b"\n")[2]):
        raise InvalidValue(f"{folder}: is not a run of the demo. It would be in the way. Choose another --out.")
    shutil.rmtree(folder)


# --- rival, audit, attack ---------------------------------------------------------------------------
def _part(head: str, run: "Run", name: str, make: Callable[[], None]) -> None:
    """Make a part, unless its file is there and whole."""
    from privet.reporting import evidence

    try:
        is_there = getattr(evidence, f"read_{name}")(run.folder, run.plan.hash) is not None
    except PrivetError:  # torn, or of another plan
        is_there = False
    _say(head + (" (done already)" if is_there else ""))
    if not is_there:
        make()


def _plain(run: "Run") -> None:
    from privet.planning import plan
    from privet.reporting.evidence import NonPrivateBaseline, store_baseline
    from privet.training.baseline import train_plainly

    steps = len(run.plan.steps)
    own = {key: BUDGET[key] for key in ("dataset_size", "batch_size", "delta")}
    training = {"task": TASK, "model": MODEL, "lr": 0.1, "momentum": 0.9}
    batches = plan(
        **own, steps=steps, noise_multiplier=1.0, solve="epsilon", training=training
    )  # nobody adds the noise
    found = train_plainly(batches, seed=SEED)
    store_baseline(run, NonPrivateBaseline(measure=found.scores.name, score=found.scores.measure, steps=steps))


def _audit(run: "Run", sizes: dict[str, Any]) -> None:
    from privet.auditing.audit import audit
    from privet.noise.randomness import Randomness
    from privet.reporting.evidence import store_audit

    with progress("auditing") as tell:
        found = audit(run, kinds=sizes["kinds"], samples=SAMPLES, randomness=Randomness(SEED), progress=tell)
    store_audit(run, found, {"samples": SAMPLES, "seed": SEED})


def _attack(run: "Run", out: Path, sizes: dict[str, Any]) -> None:
    from privet.attacks.attack import attack
    from privet.reporting.evidence import store_attack

    with progress("attacking") as tell:
        found = attack(
            run.plan, TASK, attacks=sizes["attacks"], model="shallow-cnn", out=out / "attack",
            examples=sizes["examples"], seed=SEED, progress=tell,
        )  # fmt: skip
    store_attack(run, found)


# --- what came out ----------------------------------------------------------------------------------
def _summary(found: "Report", out: Path, seconds: float) -> list[str]:
    from privet.reporting.words import verdict

    facts, rival = found.runs
    scores = [f"{one.name} {_score(one.score)}" for one in found.runs]
    if facts.baseline is not None:
        scores.append(f"without privacy {_score(facts.baseline.score)}")
    lines = [(one.name, str(one.run.guarantee)) for one in found.runs]
    lines += [(facts.measure, f"{', '.join(scores)} (held-out)"), ("result", verdict(facts, (rival,)))]
    if facts.audit is not None:
        lines.append(("audit", f"{facts.audit.verdict}, {len(facts.audit.findings)} tests"))
    for one in () if facts.attacks is None else facts.attacks.outcomes:
        what = "without privacy" if one.ceiling is None else "with the plan"
        lines.append((one.attack, f"{what}: {one.succeeded} of {one.victims} records; noise alone: {one.control}"))
    lines.append(("report", f"{out / 'report.html'}: open it in a browser"))
    return [f"the demo took {seconds:.0f} s", *(_line(name, text) for name, text in lines)]


def _line(name: str, text: str) -> str:
    """
    >>> _line("audit", "consistent"), _line("invert-l2:iterations=15", "2 of 2")
    ('  audit     consistent', '  invert-l2:iterations=15 2 of 2')
    """
    return f"  {name:<9} {text}"


def _score(score: float | None) -> str:
    return "none" if score is None else f"{score:.4g}"
