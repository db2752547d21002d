"""What a federation is made of, and its description on disk, `federation.json`, by which it goes on."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from privet import _check
from privet._files import write_new
from privet._text import shorten
from privet.errors import InvalidValue
from privet.ledger.reading import FEDERATION
from privet.training.settings import drop_none

NAME = FEDERATION
FORMAT, VERSION = "privet-federation", 1
READ = {  # what only one unit of privacy reads
    "client": ("algorithm", "local_epochs", "local_batch"),
    "example": ("local_steps", "sample"),
}
ALGORITHMS = ("fedavg", "fedsgd")
RATES = {"fedavg": 1.0, "fedsgd": 0.1}  # of the server: FedAvg goes all the way, FedSGD follows a gradient

Losses = Callable[[Any, Any], Tensor]  # (outputs, targets) -> one loss for each record


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """The work of a client in one round. FedSGD reads neither epochs, batch nor lr."""

    algorithm: str = "fedavg"
    epochs: int = 1
    batch: int = 32
    lr: float = 0.1

    def __post_init__(self) -> None:
        _check.one_of(ALGORITHMS, algorithm=self.algorithm)
        _check.whole(local_epochs=self.epochs, local_batch=self.batch)
        _check.positive(local_lr=self.lr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that is chosen but the plan. Server: optimizer, lr, momentum. Clients: the local ones.

    `local_steps` and `sample` are for record-level privacy: private steps of a client in a round, and the chance that
    a client is asked. In client-level privacy the plan says who is asked.
    """

    task: str = "digits"
    model: str | None = None
    clients: int = 10
    rounds: int | None = None  # the plan's
    split: str = "iid"
    split_seed: int = 0  # public
    algorithm: str = "fedavg"
    local_epochs: int = 1
    local_batch: int = 32
    local_lr: float = 0.1
    local_steps: int = 1
    sample: float = 1.0
    optimizer: str = "sgd"
    lr: float | None = None
    momentum: float | None = None
    evaluate_every: int | None = None
    dropout: float = 0.0  # simulated: the chance that a client that was asked does not answer

    def __post_init__(self) -> None:
        _check.whole(clients=self.clients, local_steps=self.local_steps)
        _check.whole(least=0, split_seed=self.split_seed)
        _check.whole(**drop_none(self, "rounds", "evaluate_every"))
        _check.one_of(ALGORITHMS, algorithm=self.algorithm)
        _check.rate(sample=self.sample)
        _check.positive(**drop_none(self, "lr"))
        _check.fraction(**drop_none(self, "momentum"))
        if not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout <= 1:
            raise InvalidValue(f"dropout={self.dropout!r} must be from 0 to 1. It is a probability.")
        self.local  # noqa: B018  raises if one of the local ones cannot be

    @property
    def local(self) -> LocalTraining:
        return LocalTraining(
            algorithm=self.algorithm, epochs=self.local_epochs, batch=self.local_batch, lr=self.local_lr
        )  # fmt: skip

    @property
    def server_lr(self) -> float:
        """The server's learning rate: as given, else 1 for FedAvg, 0.1 for FedSGD; 0.01 for other optimizers."""
        if self.lr is not None:
            return self.lr
        return RATES[self.algorithm] if self.optimizer.startswith("sgd") else 0.01

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "Settings":
        """The settings in a table; None counts as not given, and a key that is not known is refused."""
        known = [field.name for field in fields(cls)]
        for key in table:
            if key not in known:
                raise InvalidValue(f"{shorten(str(key))} is not known.{_check.suggestion(key, known)}")
        return cls(**drop_none(table))


def unused_settings(unit: str, algorithm: str | None) -> dict[str, str]:
    """The settings that a federation of this unit and algorithm passes over, and why."""
    found = dict.fromkeys(READ["example" if unit == "client" else "client"], f"is not for a plan with unit={unit!r}")
    if unit == "client" and algorithm == "fedsgd":
        found |= dict.fromkeys(("local_epochs", "local_batch", "local_lr"), "does not apply to algorithm='fedsgd'")
    return found


def check_read(asked: Mapping[str, Any], unit: str) -> None:
    """Raise if a setting is given that would be passed over."""
    for name, why in unused_settings(unit, asked.get("algorithm")).items():
        if asked.get(name) is not None:
            raise InvalidValue(f"{name}={asked[name]!r} {why}. It would change nothing. Leave it out.")


def write(folder: Path, settings: Settings, **more: Any) -> None:
    text = json.dumps({"format": FORMAT, "version": VERSION, "settings": asdict(settings), **more}, indent=1)
    write_new(folder / NAME, text.encode() + b"\n")


def read(folder: Path) -> tuple[Settings, dict[str, Any]]:
    """The settings of a federation, and what else its description says."""
    file = folder / NAME
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidValue(f"{file}: there is no such file. Give the folder of a federation.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValue(f"{file}: cannot be read: {shorten(str(error))}. Restore a copy of it.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("version") != VERSION:
        raise InvalidValue(f"{file}: is not of format={FORMAT!r}, version {VERSION}. Restore a copy of it.")
    if not isinstance(found.get("settings"), dict) or type(found.get("weights_seed")) is not int:
        raise InvalidValue(f"{file}: lacks settings or weights_seed. Restore a copy of it.")
    if type(found.get("seed")) not in (int, type(None)):
        raise InvalidValue(f"{file}: seed={found.get('seed')!r} must be a number or null. Restore a copy of it.")
    try:
        return Settings.of(found["settings"]), found
    except (InvalidValue, TypeError) as error:
        raise InvalidValue(f"{file}: {shorten(str(error))}") from None
