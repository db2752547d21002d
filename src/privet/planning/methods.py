"""Methods: rows of a table, not classes. A method is a choice of shapes, a clipping rule and a price.

By default a name means its sound sibling, priced by the certified accountant `pld`. As published it means the
paper's own rule, formula and label, however weak: an unsound method must be asked for in so many words. The rows of
those whose figures are claimed are in `privet.published.methods`, and are read when they are asked for.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privet._registry import Registry, format_number
from privet.accounting.guarantee import Label
from privet.errors import InvalidValue
from privet.planning.clipping_rules import is_unsound

if TYPE_CHECKING:
    from privet.planning.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleContext:
    """What a method's shapes may depend on."""

    recipe: "Recipe"
    sample_rate: float
    count: int
    peak_noise_multiplier: float

    @property
    def epoch(self) -> str:
        """The steps of an epoch, as an option of a schedule."""
        if isinstance(self.recipe.batch_size, str):
            raise InvalidValue(
                f"batch_size={self.recipe.batch_size!r} changes over the steps, but method={self.recipe.method!r} "
                "changes its noise once in an epoch. Give one batch size."
            )
        return format_number(1 / self.sample_rate)

    @property
    def epochs(self) -> int:
        return max(1, round(self.count * self.sample_rate))


ShapeOf = Callable[[ScheduleContext], str]
Claim = Callable[[ScheduleContext, float], float]  # (setting, delta) -> epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row: what it does, what its paper claims, what is wrong with that, and what is done instead."""

    name: str
    paper: str
    noise_says: str
    clip_says: str
    label: Label
    accountant: str
    caveat: str
    certified_variant: str
    rule: str = "flat"
    published_rule: str = "flat"
    noise: ShapeOf | None = field(default=None, repr=False)
    clip: ShapeOf | None = field(default=None, repr=False)
    needs: tuple[str, ...] = ()
    free: tuple[str, ...] = ()  # which of noise and clip a recipe may shape itself
    claim: Claim | None = field(default=None, repr=False)
    published_noise: ShapeOf | None = field(default=None, repr=False)  # where it depends on the noise itself

    @property
    def is_certified(self) -> bool:
        """Whether a proof covers the clipping rule as published."""
        return not is_unsound(self.published_rule)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "paper": self.paper, "noise": self.noise_says, "clip": self.clip_says, "rule": self.rule,
            "needs": list(self.needs),
            "as_published": {"rule": self.published_rule, "accountant": self.accountant, "label": self.label},
            "caveat": self.caveat, "certified_variant": self.certified_variant,
        }  # fmt: skip


# --- shapes -----------------------------------------------------------------------------------------
def growing_mu(at: ScheduleContext) -> str:
    """mu_t = mu_0 rho^(t/T), so noise rho^(-t/T), t = 1..T. Source: Du et al. 2021, eq. (11) and (13)."""
    assert at.recipe.rho_noise is not None
    return f"exponential:end={format_number(1 / at.recipe.rho_noise)},grid=after"


def decaying_clip(at: ScheduleContext) -> str:
    """C_t = C_0 rho^(-t/T), t = 1..T. Source: Du et al. 2021, eq. (14)."""
    assert at.recipe.rho_clip is not None
    return f"exponential:end={format_number(1 / at.recipe.rho_clip)},grid=after"


# --- the table --------------------------------------------------------------------------------------

_BU = "Bu, Dong, Long, Su 2019, Deep Learning with Gaussian Differential Privacy"
_DU = "Du et al. 2021, Dynamic Differential-Privacy Preserving SGD"
_CLT = "The central limit theorem is no bound: at a finite number of steps it may report less than the truth."


def _du_method(name: str, noise: str, clip: str, needs: tuple[str, ...]) -> Method:
    return Method(
        name=name, paper=_DU, noise_says=noise, clip_says=clip, label="approximate", accountant="gdp", caveat=_CLT,
        certified_variant="same, pld", needs=needs,
        noise=growing_mu if "rho_noise" in needs else None, clip=decaying_clip if "rho_clip" in needs else None,
    )  # fmt: skip


def _bu_method(name: str) -> Method:
    return Method(name=name, paper=_BU, noise_says="constant", clip_says="constant", label="approximate",
                  accountant="gdp", caveat=_CLT, certified_variant="same, pld")  # fmt: skip


def _certified_method(name: str, paper: str, clip: str, rule: str, note: str) -> Method:
    return Method(name=name, paper=paper, noise_says="constant", clip_says=clip, label="certified", accountant="pld",
                  caveat="", certified_variant=note, rule=rule, published_rule=rule)  # fmt: skip


_ROWS = (
    _bu_method("noisy-sgd"),
    _bu_method("noisy-adam"),
    _du_method("growing-mu", "sigma_0 rho_noise^(-t/T)", "constant", ("rho_noise",)),
    _du_method("sensitivity-decay", "constant", "C_0 rho_clip^(-t/T)", ("rho_clip",)),
    _du_method("dynamic", "sigma_0 rho_noise^(-t/T)", "C_0 rho_clip^(-t/T)", ("rho_noise", "rho_clip")),
    _certified_method(
        "quantile", "Andrew et al. 2021, Differentially Private Learning with Adaptive Clipping", "tracked privately",
        "quantile", "gradient and count are charged as one step",
    ),
    _certified_method("adaclip", "Pichapati et al. 2019, AdaCliP", "per coordinate", "adaclip", "–"),
)  # fmt: skip
NAMES = (
    "noisy-sgd", "noisy-adam", "growing-mu", "sensitivity-decay", "dynamic", "noise-decay-zcdp", "noise-decay-tcdp",
    "proactive", "auto-linear", "auto-time", "auto-step", "auto-exp", "dp-baseline", "dyn-s-l2max", "dyn-s-cdecay",
    "dyn-s", "dyn-sigma", "dyn-s-l2max-sigma", "dyn-s-cdecay-sigma", "dyn-s-sigma", "quantile", "adaclip",
)  # fmt: skip
registry: Registry[Any] = Registry("method", own=False, order=NAMES, published="methods")
for _row in _ROWS:
    registry.register(_row.name)(_row)


class _Methods(Mapping[str, Method]):
    """All rows by name."""

    def __getitem__(self, name: str) -> Method:
        found: Any = registry.maker(name)
        return found  # type: ignore[no-any-return]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in registry

    def __iter__(self) -> Iterator[str]:
        return iter(registry.names())

    def __len__(self) -> int:
        return len(registry.names())


METHODS = _Methods()


def method(name: str) -> Method:
    if not isinstance(name, str):
        raise InvalidValue(f"method={name!r} is not known. Known: {', '.join(METHODS)}.")
    return METHODS[name]
