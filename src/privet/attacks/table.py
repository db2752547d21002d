"""Outcomes as text: one line for each attack, the baselines, and what the paper printed."""

from collections.abc import Mapping, Sequence
from typing import Any

from privet._registry import published
from privet.attacks.outcome import CONFIDENCE, TRIVIAL, Measures, Outcome

_HEAD = (
    "method", "step", "attack", "PSNR", "SSIM", "top-1", "top-10", "label", "success", "control",
    f"difference [{CONFIDENCE:.0%}]", "ceiling", "run", "MSE<0.70*", "iter", "evals", "s",
)  # fmt: skip


def table(
    task: str, settings: Mapping[str, Any], baselines: Mapping[str, Measures], outcomes: Sequence[Outcome],
    guarantees: Mapping[str, str],
) -> str:  # fmt: skip
    """Everything that one wants to read at a glance."""
    lines = [
        f"{counted(settings['examples'], 'victim')} of {counted(settings['batch'], 'unknown record')} from {task}, "
        f"{settings['candidates']} candidates, seed {settings['seed']}; the attacker knows every other record"
    ]
    lines += aligned([_HEAD, *map(_line, outcomes), *(_base(n, found) for n, found in baselines.items())])
    lines += [
        f"  success: SSIM > 0.9 or identified, of victims; control: the same noise on no gradient. * {TRIVIAL}.",
        "  ceiling: the most that any attack on this step can identify (top-1); run: on the whole run. Both follow "
        "from the plan; '-': no guarantee, or several records at once.",
    ]
    lines += [f"  {name}: {text}" for name, text in guarantees.items() if text != "none"]
    lines += [
        f"  violation: {o.method}, step {o.when}, {o.attack}: {o.found.top1} of {o.found.records} identified, more "
        "than the guarantee allows"
        for o in outcomes if o.is_violation
    ]  # fmt: skip
    return "\n".join(lines + _published(task, outcomes))


def _line(o: Outcome) -> tuple[str, ...]:
    low, high = o.limits
    return (
        o.method, o.when, o.attack, *_measures(o.found), f"{o.control.success:.2f}",
        f"{o.difference:+.2f} [{low:+.2f}, {high:+.2f}]", _share(o.ceiling), _share(o.run_ceiling),
        f"{o.found.paper / o.found.records:.2f}", f"{o.iterations:.0f}", f"{o.evaluations:.0f}", f"{o.seconds:.1f}",
    )  # fmt: skip


def _base(name: str, found: Measures) -> tuple[str, ...]:
    return (
        f"({name})", "", "", *_measures(found), "", "", "", "", f"{found.paper / found.records:.2f}", "", "", ""
    )  # fmt: skip


def _measures(found: Measures) -> tuple[str, ...]:
    counts = (found.top1, found.top10, found.labels)
    return (
        f"{found.psnr:.1f}",
        f"{found.ssim:.3f}",
        *(f"{c / found.records:.2f}" for c in counts),
        f"{found.success:.2f}",
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _published(task: str, outcomes: Sequence[Outcome]) -> list[str]:
    """The paper's figures beside ours, for the same attack on the first step."""
    rows, theirs_of = [], published("figures_printed")
    for o in outcomes:
        beside = theirs_of.printed(o.method, task)
        if beside is not None and o.step == 1 and o.attack.startswith("invert-l2"):
            theirs = (f"{beside.iterations:g}", f"{beside.success:g}", f"{beside.mse:.2e}")
            ours = (f"{o.iterations:.1f}", f"{o.found.paper / o.found.records:.2f}", f"{o.found.mse:.2e}")
            rows.append((o.method, *theirs, *ours, f"{o.difference:+.2f}"))
    if not rows:
        return []
    head = ("method", "iter", "success", "MSE", "our iter", "MSE<0.70*", "our MSE", "success - control")
    return [f"  published: {theirs_of.SOURCE}; its iterations are L-BFGS calls", *aligned([head, *rows])]


def counted(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines: words to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    is_word = [not any(row[i] and row[i][0] in "+-0123456789" for row in rows[1:]) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(
            cell.ljust(width) if word else cell.rjust(width)
            for cell, width, word in zip(row, widths, is_word, strict=True)
        ).rstrip() for row in rows
    ]  # fmt: skip
