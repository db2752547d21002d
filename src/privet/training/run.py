"""A run: the folder that training leaves behind, read back. What was spent comes from its ledger alone.

runs/a/plan.json                  what was to be spent
runs/a/run.json                   task, settings, seed, versions, how it ended
runs/a/ledger.jsonl               what was spent
runs/a/checkpoint.safetensors     the last weights; best/checkpoint.safetensors those that were kept, if asked for
runs/a/metrics.jsonl              what was seen on the way
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from privet import _text, models
from privet._files import write_new
from privet._text import shorten
from privet.accounting import Guarantee, Ledger
from privet.data.files import DataFolders
from privet.data.task import Task, task as task_of
from privet.errors import InvalidValue, PrivetError, name_errors
from privet.ledger import reading as ledger_reading
from privet.ledger.account import guarantee_of, mark_uncertified, preprocessing_reason, qualify, uncertified_reason
from privet.ledger.assumptions import LoopFacts
from privet.ledger.format import Header, make_header
from privet.ledger.reading import RUN, is_federation, resume_command
from privet.planning import Plan
from privet.planning.format_1 import from_format_1
from privet.planning.plan import check_table, parse_plan_file, plan_text
from privet.training import checkpoint, checkpoint_format, metrics
from privet.training.settings import Settings

PLAN, NAME, BEST = "plan.json", RUN, "best"
FORMAT, VERSION = "privet-run", 2
PACKAGES = ("privet", "torch", "numpy", "scipy", "safetensors")
_KINDS: dict[str, tuple[type, ...]] = {  # of run.json
    "task": (str,), "own_task": (bool,), "settings": (dict,), "evaluation": (str,), "versions": (dict,),
    "network": (dict, type(None)), "seed": (int, type(None)), "weights_seed": (int,), "end": (str, type(None)),
    "secure_noise": (bool,), "uncertified": (bool,), "show_private": (bool,), "measure": (dict,),
    "changed": (dict,), "non_private_preprocessing": (str,), "weights": (str, type(None)),
}  # fmt: skip
_LATER = {"non_private_preprocessing": "", "weights": None}  # keys that older runs have not
COUNTED = "vocabulary=counted, says its source"  # of an older run, whose ledger calls it sound


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """What a training run has left. Made by `train`; read back by `Run.load`.

    `guarantee` is what holds for all that was given out: the plan's, unless every step of it was made and both are the
    same. `spent` is the ledger's reading. If outputs decided when to stop, it is a claim.
    """

    folder: Path
    plan: Plan
    settings: Settings
    ledger: Ledger
    guarantee: Guarantee
    spent: Guarantee
    together: str | None  # with tuning: what the plan says of all runs
    notes: tuple[str, ...]  # what was torn in the ledger, and is charged
    metrics: tuple[dict[str, Any], ...]
    seed: int | None
    evaluation: str  # what the held-out set is
    end: str | None  # why it is over; None while steps are left
    about: Mapping[str, Any]  # run.json
    loop: LoopFacts  # what is known of the loop that made it
    dataset: str | None = None  # the name of the records, which other runs on them share; None if none was given

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """The run in a folder, whether it has ended or not.

        Raises:
            InvalidValue: it is not a run's folder, or one of its files is damaged, or of another version.
        """
        folder = Path(folder)
        about = read_about(folder)
        plan = Plan.load(folder / PLAN)
        reading = ledger_reading.read_ledger(folder)
        if not about["plan"] == plan.hash == reading.header.plan:
            raise InvalidValue(
                f"{folder}: plan.json, run.json and ledger.jsonl are of different plans. What holds could not be told. "
                "Restore the files of one run."
            )
        if reading.header.seeded != (about["seed"] is not None):
            raise InvalidValue(
                f"{folder}: run.json has seed={about['seed']!r}, and ledger.jsonl says that the run is "
                f"{'seeded' if reading.header.seeded else 'not'}. Whether it is private could not be told. Restore the "
                "files of one run."
            )
        non_private_preprocessing = about["non_private_preprocessing"]
        covered = reading.header.sound if non_private_preprocessing == COUNTED else not non_private_preprocessing
        _check_promise(folder, reading.header, plan, preprocessing_is_private=covered)
        stopped = about["end"] is not None and reading.ledger.steps < reading.header.length
        guarantee, spent = _guarantees(
            reading, plan, by_outputs=stopped, non_private_preprocessing=non_private_preprocessing
        )
        with name_errors(folder / NAME):
            settings = Settings.of(about["settings"])
        return cls(
            folder=folder, plan=plan, settings=settings, ledger=reading.ledger, guarantee=guarantee,
            spent=spent, together=reading.header.together, notes=reading.notes, metrics=metrics.read(folder),
            seed=about["seed"], evaluation=about["evaluation"], end=about["end"], about=about,
            loop=reading.loop or LoopFacts(own_loop=False), dataset=reading.header.dataset,
        )  # fmt: skip

    @property
    def steps(self) -> int:
        """How many steps are charged."""
        return self.ledger.steps

    @property
    def is_over(self) -> bool:
        return self.end is not None

    @property
    def noise_is_secret(self) -> bool:
        """False for a seeded run: reproducible, not private."""
        return self.seed is None

    @property
    def why_none(self) -> str:
        """Why the run has no guarantee, so that its epsilon is a claim; empty if it has one."""
        return uncertified_reason(self.guarantee)

    @property
    def non_private_preprocessing(self) -> str:
        """What was read off the training records without noise before the first step; empty if nothing was."""
        found: str = self.about["non_private_preprocessing"]
        return found

    @property
    def versions(self) -> dict[str, str]:
        return dict(self.about["versions"])

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the weights that `network` gives: the best, if they were to be kept, else the last."""
        best = self.folder / BEST
        folder = best if self.settings.keep == "best" and (best / checkpoint_format.NAME).exists() else self.folder
        return folder if (folder / checkpoint_format.NAME).exists() else None

    def check_weights(self) -> None:
        """Raise if saved weights cannot be read back."""
        for folder in (self.folder, self.folder / BEST):
            if (folder / checkpoint_format.NAME).exists():
                checkpoint_format.check(folder / checkpoint_format.NAME)

    @property
    def scores(self) -> dict[str, Any] | None:
        """The evaluation of those weights on the held-out set: what a line of the metrics says of them."""
        kept = self.checkpoint
        if kept is not None and kept != self.folder:
            return metrics.scores_of_weights(checkpoint.peek(kept).extra)
        found = metrics.evaluation_lines(self.metrics)
        return metrics.scores_of_weights(found[-1]) if found else None

    def task(self, *, where: DataFolders | None = None) -> Task:
        """The task that it was trained on, loaded again."""
        if self.about["own_task"]:
            raise InvalidValue(
                f"{self.folder}: task={self.settings.task!r} was given as an object, and is not in a file. It cannot "
                "be made again. Give it."
            )
        return task_of(self.settings.task, where=where)

    def network(self, task: Task | None = None, *, where: DataFolders | None = None) -> nn.Module:
        """The trained model: its weights averaged if they were to be, frozen what did not train.

        `task` is needed where it makes the network.
        """
        kept = self.checkpoint
        if kept is None:
            raise InvalidValue(f"{self.folder}: has no weights yet. They are saved at evaluations. Resume the run.")
        known = self.about["network"]
        if task is None and known is not None:
            facts = {key: tuple(v) if isinstance(v, list) else v for key, v in known["facts"].items()}
            made = _freeze_untrained(models.model(known["model"], **facts), self.settings)
        else:
            made = build_network(self.task(where=where) if task is None else task, self.settings)
        checkpoint.load_weights(kept, model=made)
        return made.eval()


def build_network(task: Task, settings: Settings) -> nn.Module:
    return _freeze_untrained(task.network(settings.model), settings)


def _freeze_untrained(model: nn.Module, settings: Settings) -> nn.Module:
    if settings.train is not None:
        models.freeze(model, settings.train)
    return model


def _check_promise(folder: Path, said: Header, plan: Plan, *, preprocessing_is_private: bool) -> None:
    """Raise unless the ledger's first line, which speaks for steps to come, says what the plan says: that is proven."""
    if said != make_header(
        plan, run=said.run, steps_per_line=said.reserve, seeded=said.seeded,
        preprocessing_is_private=preprocessing_is_private, dataset=said.dataset,
    ):  # fmt: skip
        raise InvalidValue(
            f"{folder / ledger_reading.NAME}: line 1: does not say what its plan says, and run.json of the task. What "
            "holds could not be told. Restore the files of one run."
        )


def _guarantees(
    reading: ledger_reading.Reading, plan: Plan, *, by_outputs: bool, non_private_preprocessing: str
) -> tuple[Guarantee, Guarantee]:
    """(what holds, what the ledger adds up to)."""
    header = reading.header
    if reading.ledger.steps:
        spent = guarantee_of(reading.ledger, plan)
    else:
        spent = replace(header.planned or plan.guarantee, epsilon=0.0, epsilon_lower=None, steps=0)
    whole = reading.ledger.steps >= header.length
    held = spent if whole else header.planned or plan.guarantee
    if by_outputs:
        spent = replace(spent, label="claimed", epsilon_lower=None, method=f"{spent.method}; outputs decided the stop")
    held, spent = (qualify(g, reading.loop, own_loop=False) for g in (held, spent))
    if uncertified_reason(held):
        return held, spent
    held, spent = (
        mark_guarantee(g, plan, seeded=header.seeded, non_private_preprocessing=non_private_preprocessing)
        for g in (held, spent)
    )
    return held, spent


def mark_guarantee(guarantee: Guarantee, plan: Plan, *, seeded: bool, non_private_preprocessing: str = "") -> Guarantee:
    if plan.is_unsound:
        return mark_uncertified(guarantee, f"rule {plan.rule!r} is unsound")
    if non_private_preprocessing:
        return mark_uncertified(guarantee, preprocessing_reason(non_private_preprocessing))
    return mark_uncertified(guarantee, "seeded: reproducible, not private") if seeded else guarantee


# --- run.json ---------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    return dict(_text.versions(*PACKAGES))


def write_plan(folder: Path, plan: Plan) -> None:
    write_new(folder / PLAN, plan_text(plan.as_dict()).encode())


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    text = json.dumps({"format": FORMAT, "version": VERSION} | dict(about), indent=1, allow_nan=False) + "\n"
    write_new(folder / NAME, text.encode())


def read_about(folder: Path) -> dict[str, Any]:
    """The content of run.json."""
    file = folder / NAME
    if not file.exists() and is_federation(folder):
        raise InvalidValue(
            f"{folder}: is the folder of a federation, not of a run. It has no {NAME}. `{resume_command(folder)}` "
            "goes on with it, and says what it has spent."
        )
    if not file.exists():
        rest = "Give the folder of a run." if not (folder / ledger_reading.NAME).exists() else (
            "Its ledger is there: `privet epsilon --from` reads it. Begin a new run in another folder."
        )  # fmt: skip
        raise InvalidValue(f"{file}: there is no such file. {rest}")
    try:
        found = parse_plan_file(file)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InvalidValue(f"is not the description of a run: it has no format={FORMAT!r}.")
        if found.get("version") == 1:
            found = dict(from_format_1("run", found))
        elif found.get("version") != VERSION:
            raise InvalidValue(f"version={found.get('version')!r} must be {VERSION}. Use the Privet that wrote it.")
        if "non_private_preprocessing" not in found and "COUNTED WITHOUT PRIVACY" in str(found.get("source")):
            found["non_private_preprocessing"] = COUNTED
        found = _LATER | found
        check_table("the run", found, ("format", "version", "plan", "source", *_KINDS))
        _check_about(found)
        return found
    except RecursionError:
        raise InvalidValue(f"{file}: nested too deeply. It was edited. Restore a copy.") from None
    except PrivetError as error:
        text = str(error).replace("Make the plan again.", "Restore a copy of it.")
        raise InvalidValue(f"{file}: {text}") from None


def _check_about(found: Mapping[str, Any]) -> None:
    for key, allowed in _KINDS.items():
        if type(found[key]) not in allowed:
            raise InvalidValue(f"{key}={shorten(repr(found[key]))} is not what a run has there. Restore a copy of it.")
    network = found["network"]
    if network is not None and not (isinstance(network.get("model"), str) and isinstance(network.get("facts"), dict)):
        raise InvalidValue("network is not what a run has there. Restore a copy of it.")
