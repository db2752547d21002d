"""A plan: every step's noise, rate and clip, and the guarantee that follows. Frozen, small on disk, checked on load.

In a file it is JSON that is whole, of this version, unedited, and says what is recomputed.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from privet import _check
from privet._files import MIB, parse_json, read_start, read_text, write_file
from privet._text import shorten, versions
from privet.accounting import Guarantee, Ledger
from privet.errors import InvalidValue, PrivetError
from privet.planning.calibrate import solve
from privet.planning.clipping_rules import is_unsound
from privet.planning.format_1 import TABLES_1, from_format_1, to_format_1
from privet.planning.planned_steps import PlannedSteps
from privet.planning.pricing import PricedRecipe
from privet.planning.recipe import Recipe, as_recipe

FORMAT, VERSION = "privet-plan", 2
MOST_BYTES = 64 * MIB
AGREE = 1e-6  # how far a stored epsilon may be from the recomputed one: machines round exponentials differently
AGAIN = "Make the plan again."
_KEYS = ("format", "version", "recipe", "steps", "guarantee", "certified", "versions", "hash")
_STEPS = (
    "length", "sample_rate", "peak_noise_multiplier", "noise_schedule", "batch_schedule", "clip_schedule", "sampling",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recipe, the steps that answer it, and what they cost. Made by `plan`; read back by `Plan.load`.

    `guarantee` is the answer of the recipe's accountant; `certified` is what `pld` proves of the same steps (the same
    guarantee where that is the accountant), or None if no proof covers the method as published. With tuning, both are
    for all runs together, the steps are those of one run, and `one_run` is what is proven of one.
    """

    recipe: Recipe
    steps: PlannedSteps
    guarantee: Guarantee
    certified: Guarantee | None
    versions: Mapping[str, str] = field(hash=False)
    one_run: Guarantee | None = None

    @property
    def peak_noise_multiplier(self) -> float:
        """The largest noise multiplier of the schedule, before its shape."""
        return self.steps.peak_noise_multiplier

    @property
    def shapes(self) -> dict[str, str]:
        """The three shapes, spelled: noise (over its peak), batch (over the sample rate) and clip."""
        return {name: getattr(self.steps, f"{name}_schedule") for name in ("noise", "batch", "clip")}

    @property
    def rule(self) -> str:
        return PricedRecipe(self.recipe).rule

    @property
    def is_unsound(self) -> bool:
        """Whether no proof covers the clipping rule: a claim is all there is."""
        return is_unsound(self.rule)

    @property
    def batch_size(self) -> float:
        """The expected number of records in the first step: the public constant that updates are divided by."""
        return float(self.steps.sample_rates[0]) * self.recipe.dataset_size

    @property
    def hash(self) -> str:
        """SHA-256 of the content: equal plans have equal hashes."""
        return plan_hash(self._content())

    @property
    def selection_epsilon(self) -> float | None:
        """For trials on disjoint parts: the epsilon that choosing one may spend, on a part of its own."""
        tuning = self.recipe.tuning
        return self.guarantee.epsilon if tuning is not None and tuning.trial_count_distribution == "disjoint" else None

    def ledger(self) -> Ledger:
        """What one run will spend, as an accountant sees it."""
        return self.steps.ledger()

    def save(self, path: str | Path) -> None:
        try:
            write_file(Path(path), plan_text(self.as_dict()).encode())
        except OSError as error:
            raise InvalidValue(f"{path}: cannot be written: {error.strerror}. Choose another place.") from None

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """The plan in a file, once it has been proven again: the guarantee must follow from the steps.

        Raises:
            InvalidValue: the file is missing, torn, edited, or of another version; says which.
        """
        try:
            return from_dict(parse_plan_file(Path(path)))
        except RecursionError:
            raise InvalidValue(f"{path}: nested too deeply. {AGAIN}") from None
        except PrivetError as error:
            raise InvalidValue(f"{path}: {error}") from None

    def as_dict(self) -> dict[str, Any]:
        return self._content() | {"hash": self.hash}

    def _content(self) -> dict[str, Any]:
        steps = {name: getattr(self.steps, name) for name in _STEPS} | {"sampling": str(self.steps.sampling)}
        return {
            "format": FORMAT, "version": VERSION, "recipe": self.recipe.as_dict(), "steps": steps,
            "guarantee": self.guarantee.to_file_table(), "certified": _guarantee_table(self.certified),
            "versions": dict(self.versions),
        } | ({} if self.recipe.tuning is None else {"one_run": _guarantee_table(self.one_run)})  # fmt: skip


def _guarantee_table(guarantee: Guarantee | None) -> dict[str, Any] | None:
    return None if guarantee is None else guarantee.to_file_table()


def plan(recipe: Recipe | None = None, /, **given: Any) -> Plan:
    """The plan that meets a recipe, or the keywords of `Recipe.of`: the budget met, never exceeded.

    >>> p = plan(epsilon=2.0, delta=1e-5, dataset_size=60000, batch_size=256, epochs=15)
    >>> p.guarantee.label, p.guarantee.epsilon <= 2.0, round(p.steps[0].noise_multiplier, 3)
    ('certified', True, 0.839)

    Raises:
        NoSolution: nothing meets it; names what blocks and the nearest value of each knob that does.
    """
    question = PricedRecipe(as_recipe(recipe, given))
    return _build_plan(question, solve(question), versions("privet", "numpy", "scipy"), warn=True)


def _build_plan(question: PricedRecipe, steps: PlannedSteps, made_by: Mapping[str, str], *, warn: bool) -> Plan:
    return Plan(
        recipe=question.recipe, steps=steps, guarantee=question.cost(steps, warn=warn),
        certified=question.certified_guarantee(steps), versions=dict(made_by),
        one_run=question.guarantee_of_one_run(steps),
    )  # fmt: skip


# --- reading ----------------------------------------------------------------------------------------
def from_dict(found: Any) -> Plan:
    """The plan in the plain values of `Plan.as_dict`, recomputed and compared."""
    if not isinstance(found, Mapping) or found.get("format") != FORMAT:
        raise InvalidValue(f"is not a plan: it has no format={FORMAT!r}. Make one with `privet plan --out`.")
    if found.get("version") == 1:
        found = {key: from_format_1(key, value) if key in TABLES_1 else value for key, value in found.items()}
    elif found.get("version") != VERSION:
        raise InvalidValue(f"version={found.get('version')!r} must be {VERSION}. {AGAIN}")
    tuned = any(key.startswith("trials") for key in get_table(found, "recipe")) if "recipe" in found else False
    check_table("the plan", found, (*_KEYS, "one_run") if tuned else _KEYS)
    if plan_hash({key: value for key, value in found.items() if key != "hash"}) != found["hash"]:
        raise InvalidValue(f"hash: the content is not what was hashed. The file was edited or is damaged. {AGAIN}")
    made_by = get_table(found, "versions")
    if not all(isinstance(name, str) for name in made_by.values()):
        raise InvalidValue(f"versions must be text. {AGAIN}")
    question = PricedRecipe(Recipe.of(**get_table(found, "recipe")))
    made = _build_plan(question, _restore_steps(question, get_table(found, "steps")), made_by, warn=False)
    guarantee = check_stored_guarantee("guarantee", made.guarantee, found["guarantee"])
    certified = check_stored_guarantee("certified", made.certified, found["certified"])
    one_run = check_stored_guarantee("one_run", made.one_run, found["one_run"]) if tuned else None
    assert guarantee is not None
    if guarantee.epsilon > question.recipe.budget.epsilon:
        raise InvalidValue(f"guarantee.epsilon={guarantee.epsilon!r} is above the recipe's budget. {AGAIN}")
    return replace(made, guarantee=guarantee, certified=certified, one_run=one_run)


def _restore_steps(question: PricedRecipe, stored: Mapping[str, Any]) -> PlannedSteps:
    """The stored steps, which must be those of the recipe at some height, length and rate."""
    check_table("steps", stored, _STEPS)
    recipe, length = question.recipe, stored["length"]
    rate, peak = stored["sample_rate"], stored["peak_noise_multiplier"]
    _check.whole(steps=length)
    _check.rate(sample_rate=rate)
    _check.positive(peak_noise_multiplier=peak)
    made = question.steps(
        peak_noise_multiplier=peak if recipe.solve == "noise" else 1.0, count=length, sample_rate=rate
    )
    wanted = {name: getattr(made, name) for name in _STEPS} | {"sampling": str(made.sampling)}
    if recipe.solve != "batch":
        wanted["sample_rate"] = recipe.base_rate
    if recipe.count is not None:
        wanted["length"] = recipe.count
    for name, value in wanted.items():
        if stored[name] != value:
            raise InvalidValue(
                f"steps.{name}={shorten(str(stored[name]))} does not follow from the recipe, which gives "
                f"{shorten(str(value))}. {AGAIN}"
            )
    return made


def plan_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def is_plan(path: Path) -> bool:
    """Whether a file says of itself that it is a plan, whole or torn."""
    return f'"format": "{FORMAT}"'.encode() in read_start(path, 200)


def parse_plan_file(path: Path) -> Any:
    """The JSON of a file, or one line that says what is wrong with it."""
    text = read_text(
        path, most=MOST_BYTES, advice=f"A plan keeps shapes, not lists. {AGAIN}", wanted="Give a plan in JSON.",
        missing="there is no such file. Make one with `privet plan --out`.", encoding="utf-8",
    )  # fmt: skip
    numbers = f"is not a number JSON has. A plan's numbers are finite. {AGAIN}"
    return parse_json(text, numbers, torn=f"The file is torn or edited. {AGAIN}", advice=AGAIN)


def check_table(name: str, found: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    """Raise unless the table has these keys and no other."""
    for key in keys:
        if key not in found:
            raise InvalidValue(f"{name} has no {key!r}. The file was edited or is of another version. {AGAIN}")
    for key in found:
        if key not in keys:
            raise InvalidValue(f"{name} has {shorten(str(key))!r}, which is not known. The file was edited. {AGAIN}")


def get_table(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = found[key]
    if not isinstance(inner, Mapping):
        raise InvalidValue(f"{key} must be a table. The file was edited. {AGAIN}")
    return inner


def check_stored_guarantee(name: str, ours: Guarantee | None, stored: Any) -> Guarantee | None:
    """The stored guarantee, if it says what was recomputed (`ours`)."""
    if ours is None or stored is None:
        if ours is not stored:
            raise InvalidValue(f"{name}={shorten(str(stored))} does not follow from the steps: {ours}. {AGAIN}")
        return None
    if not isinstance(stored, Mapping):
        raise InvalidValue(f"{name} must be a table. The file was edited. {AGAIN}")
    fields = ours.to_file_table()
    check_table(name, stored, tuple(fields))
    for key, value in fields.items():
        if not (_nearly_equal(value, stored[key]) if key in ("epsilon", "epsilon_lower") else value == stored[key]):
            raise InvalidValue(
                f"{name}.{key}={shorten(str(stored[key]))} does not follow from the steps, which give {value}. "
                f"The plan was edited, or made by another version. {AGAIN}"
            )
    # The file's number is kept, for a plan has one hash on every machine; but none below what is proven to be spent.
    if ours.epsilon_lower is not None and stored["epsilon"] < ours.epsilon_lower:
        raise InvalidValue(
            f"{name}.epsilon={stored['epsilon']} is below {ours.epsilon_lower}, which the steps spend at least. {AGAIN}"
        )
    return Guarantee(**stored)


def _nearly_equal(ours: Any, stored: Any) -> bool:
    if ours is None or stored is None or isinstance(stored, bool) or not isinstance(stored, (int, float)):
        return ours is stored
    return math.isclose(ours, stored, rel_tol=AGREE, abs_tol=1e-12)


def plan_hash(content: Mapping[str, Any]) -> str:
    """The checksum of a plan's content, in the names of format 1."""
    named = {key: to_format_1(key, value) if key in TABLES_1 else value for key, value in content.items()}
    return content_digest(named | {"version": 1})


def content_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of plain values, in one spelling."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
