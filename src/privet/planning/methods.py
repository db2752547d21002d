"""The methods of the papers: rows of a table, not classes. A method is a choice of shapes, a clipping rule and a price.

By default a name means its sound sibling, priced by the certified accountant `pld`. As published it means the
paper's own rule, formula and label, however weak: an unsound method must be asked for in so many words.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privet import _check
from privet._registry import written
from privet.accounting.guarantee import Label
from privet.accounting.tcdp import auto_exponential, auto_linear, auto_step, auto_time
from privet.accounting.zcdp import epsilon_of_rho
from privet.errors import InvalidValue
from privet.planning.rules import is_unsound

if TYPE_CHECKING:
    from privet.planning.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a method's shapes may depend on."""

    recipe: "Recipe"
    rate: float
    count: int
    scale: float

    @property
    def epoch(self) -> str:
        """The steps of an epoch, as an option of a schedule."""
        if isinstance(self.recipe.batch, str):
            raise InvalidValue(
                f"batch={self.recipe.batch!r} changes over the steps, but method={self.recipe.method!r} changes its "
                "noise once in an epoch. Give one batch size."
            )
        return written(1 / self.rate)

    @property
    def epochs(self) -> int:
        return max(1, round(self.count * self.rate))


ShapeOf = Callable[[Setting], str]
Claim = Callable[[Setting, float], float]  # (setting, delta) -> epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row: what it does, what its paper claims, what is wrong with that, and what is done instead."""

    name: str
    paper: str
    noise_says: str
    clip_says: str
    label: Label
    accountant: str
    wrong: str
    sibling: str
    rule: str = "flat"
    published_rule: str = "flat"
    noise: ShapeOf | None = field(default=None, repr=False)
    clip: ShapeOf | None = field(default=None, repr=False)
    needs: tuple[str, ...] = ()
    free: tuple[str, ...] = ()  # which of noise and clip a recipe may shape itself
    claim: Claim | None = field(default=None, repr=False)
    published_noise: ShapeOf | None = field(default=None, repr=False)  # where it depends on the noise itself

    @property
    def sound(self) -> bool:
        """Whether a proof covers the clipping rule as published."""
        return not is_unsound(self.published_rule)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.name,
            "paper": self.paper,
            "noise": self.noise_says,
            "clip": self.clip_says,
            "rule": self.rule,
            "needs": list(self.needs),
            "as_published": {"rule": self.published_rule, "accountant": self.accountant, "label": self.label},
            "wrong": self.wrong,
            "sibling": self.sibling,
        }


# --- shapes -----------------------------------------------------------------------------------------


def growing_mu(at: Setting) -> str:
    """mu_t = mu_0 rho^(t/T), so noise rho^(-t/T), t = 1..T. Source: Du et al. 2021, eq. (11) and (13)."""
    assert at.recipe.rho_noise is not None
    return f"exponential:end={written(1 / at.recipe.rho_noise)},grid=after"


def decaying_clip(at: Setting) -> str:
    """C_t = C_0 rho^(-t/T), t = 1..T. Source: Du et al. 2021, eq. (14)."""
    assert at.recipe.rho_clip is not None
    return f"exponential:end={written(1 / at.recipe.rho_clip)},grid=after"


def linear_per_epoch(at: Setting) -> str:
    """sigma_e^2 = sigma_0^2 R^e, R = 0.99: called linear, but geometric. Source: Auto DP-SGD, Table 1."""
    return f"step:factor=0.99,every={at.epoch},power=2"


def time_per_epoch(at: Setting) -> str:
    """sigma_e^2 = sigma_0^2 / (1 + R e), R = 1 / E: the published R = sigma_0 / E at sigma_0 = 1."""
    return f"time:decay={written(1 / at.epochs)},every={at.epoch},power=2"


def published_time(at: Setting) -> str:
    """sigma_e^2 = sigma_0^2 / (1 + R e), R = sigma_0 / E. Source: Auto DP-SGD, Table 1."""
    return f"time:decay={written(at.scale / at.epochs)},every={at.epoch},power=2"


def step_per_epochs(at: Setting) -> str:
    """sigma_e^2 = sigma_0^2 R^floor(e / D), R = 0.5, D = 10. Source: Auto DP-SGD, Table 1."""
    return f"step:factor=0.5,every={written(10 * float(at.epoch))},power=2"


def exponential_per_epoch(at: Setting) -> str:
    """sigma_e^2 = sigma_0^2 exp(-R e), R = 0.1. Source: Auto DP-SGD, Table 1."""
    return f"exponential:decay=0.1,every={at.epoch},power=2"


def decay(at: Setting) -> str:
    """Exponential from 1 towards 0.5: a default of ours, since the papers give the form and not the constant."""
    return "exponential:end=0.5,grid=before"


# --- claims -----------------------------------------------------------------------------------------


def _claim_linear(at: Setting, delta: float) -> float:
    return epsilon_of_rho(auto_linear(noise=at.scale, rate=at.rate, epochs=at.epochs)[0], delta)


def _claim_time(at: Setting, delta: float) -> float:
    return epsilon_of_rho(auto_time(noise=at.scale, rate=at.rate, epochs=at.epochs)[0], delta)


def _claim_step(at: Setting, delta: float) -> float:
    return epsilon_of_rho(auto_step(noise=at.scale, rate=at.rate, epochs=at.epochs)[0], delta)


def _claim_exponential(at: Setting, delta: float) -> float:
    return epsilon_of_rho(auto_exponential(noise=at.scale, rate=at.rate, epochs=at.epochs)[0], delta)


# --- the table --------------------------------------------------------------------------------------

_BU = "Bu, Dong, Long, Su 2019, Deep Learning with Gaussian Differential Privacy"
_DU = "Du et al. 2021, Dynamic Differential-Privacy Preserving SGD"
_AUTO = "Auto DP-SGD: Dual Improvements of Privacy and Accuracy (anonymous)"
_WEI = "Wei, Liu 2021, Gradient Leakage Attack Resilient Deep Learning"
_CLT = "The central limit theorem is no bound: at a finite number of steps it may report less than the truth."
_OWN_NORM = (
    "Each example's threshold is its own norm, so nothing is clipped and the noise scale is private data: there is no "
    "guarantee; besides, the closed form counts epochs in place of steps."
)
_PER_LAYER = "Clipping each of M layers to C has sensitivity sqrt(M) C, but C is charged: sqrt(M) too little noise."
_L2_MAX = "The sensitivity is read off the batch, which bounds nothing: neighbours can be told apart with certainty."
_NORMALISED = "normalised clipping (bound 1), pld"
_SQRT_M = "layers clipped to C / sqrt(M), pld"
_QUANTILE = "private quantile in place of l2-max, pld"


def _du(name: str, noise: str, clip: str, needs: tuple[str, ...]) -> Method:
    return Method(
        name=name, paper=_DU, noise_says=noise, clip_says=clip, label="approximate", accountant="gdp", wrong=_CLT,
        sibling="same, pld", needs=needs,
        noise=growing_mu if "rho_noise" in needs else None, clip=decaying_clip if "rho_clip" in needs else None,
    )  # fmt: skip


def _bu(name: str) -> Method:
    return Method(name=name, paper=_BU, noise_says="constant", clip_says="constant", label="approximate",
                  accountant="gdp", wrong=_CLT, sibling="same, pld")  # fmt: skip


def _auto(name: str, says: str, noise: ShapeOf, claim: Claim, published: ShapeOf | None = None) -> Method:
    return Method(
        name=name, paper=_AUTO, noise_says=says, clip_says="each example's own norm", label="claimed",
        accountant="tcdp", wrong=_OWN_NORM, sibling=_NORMALISED, rule="normalised", published_rule="own_norm",
        noise=noise, claim=claim, published_noise=published,
    )  # fmt: skip


def _noise_decay(name: str, paper: str, accountant: str, wrong: str) -> Method:
    return Method(
        name=name, paper=paper, noise_says="sigma_e^2 = sigma_0^2 0.99^e by default", clip_says="constant",
        label="claimed", accountant=accountant, wrong=wrong, sibling="same, pld", noise=linear_per_epoch,
        free=("noise",),
    )  # fmt: skip


def _wei(name: str, *, max_norm: bool = False, clip: bool = False, noise: bool = False) -> Method:
    free = tuple(word for word, on in (("noise", noise), ("clip", clip)) if on)
    return Method(
        name=name, paper=_WEI, label="claimed", accountant="moments", free=free,
        noise_says="linear, exponential or cyclic decay" if noise else "constant",
        clip_says=("linear, exponential or cyclic decay" if clip else "constant") + (", l2-max" if max_norm else ""),
        wrong=_L2_MAX if max_norm else _PER_LAYER, sibling=_QUANTILE if max_norm else _SQRT_M,
        rule="quantile" if max_norm else "per_layer", published_rule="l2_max" if max_norm else "per_layer_c",
        noise=decay if noise else None, clip=decay if clip else None,
    )  # fmt: skip


def _certified(name: str, paper: str, clip: str, rule: str, note: str) -> Method:
    return Method(name=name, paper=paper, noise_says="constant", clip_says=clip, label="certified", accountant="pld",
                  wrong="", sibling=note, rule=rule, published_rule=rule)  # fmt: skip


_ROWS = (
    _bu("noisy-sgd"),
    _bu("noisy-adam"),
    _du("growing-mu", "sigma_0 rho_noise^(-t/T)", "constant", ("rho_noise",)),
    _du("sensitivity-decay", "constant", "C_0 rho_clip^(-t/T)", ("rho_clip",)),
    _du("dynamic", "sigma_0 rho_noise^(-t/T)", "C_0 rho_clip^(-t/T)", ("rho_noise", "rho_clip")),
    _noise_decay(
        "noise-decay-zcdp",
        "Yu et al. 2019, as quoted by Du et al. 2021 and Wei, Liu 2021",
        "zcdp",
        "A sampled Gaussian is not zCDP at all orders, so the rule for rho may report less than the truth.",
    ),
    _noise_decay(
        "noise-decay-tcdp",
        "Zhang et al. 2021, as quoted by Du et al. 2021 and Auto DP-SGD",
        "tcdp",
        "The amplification lemma's conditions fail at small noise, and it covers another sampling.",
    ),
    Method(
        name="proactive",
        paper="van Dijk et al. 2021, Bringing Differential Private SGD to Practice",
        noise_says="sqrt(2 (epsilon + log(1/delta)) / epsilon), whatever T",
        clip_says="constant",
        label="claimed",
        accountant="proactive",
        wrong="The closed form holds under a condition with an unnamed constant; outside it the truth is larger.",
        sibling="constant, pld",
    ),
    _auto("auto-linear", "sigma_e^2 = sigma_0^2 0.99^e", linear_per_epoch, _claim_linear),
    _auto("auto-time", "sigma_e^2 = sigma_0^2 / (1 + R e)", time_per_epoch, _claim_time, published_time),
    _auto("auto-step", "sigma_e^2 = sigma_0^2 0.5^floor(e/10)", step_per_epochs, _claim_step),
    _auto("auto-exp", "sigma_e^2 = sigma_0^2 exp(-0.1 e)", exponential_per_epoch, _claim_exponential),
    _wei("dp-baseline"),
    _wei("dyn-s-l2max", max_norm=True),
    _wei("dyn-s-cdecay", clip=True),
    _wei("dyn-s", max_norm=True, clip=True),
    _wei("dyn-sigma", noise=True),
    _wei("dyn-s-l2max-sigma", max_norm=True, noise=True),
    _wei("dyn-s-cdecay-sigma", clip=True, noise=True),
    _wei("dyn-s-sigma", max_norm=True, clip=True, noise=True),
    _certified(
        "quantile",
        "Andrew et al. 2021, Differentially Private Learning with Adaptive Clipping",
        "tracked privately",
        "quantile",
        "gradient and count are charged as one step",
    ),
    _certified("adaclip", "Pichapati et al. 2019, AdaCliP", "per coordinate", "adaclip", "–"),
)
METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def method(name: str) -> Method:
    """The row called `name`."""
    if not isinstance(name, str) or name not in METHODS:
        raise InvalidValue(
            f"method={name!r} is not known.{_check.suggestion(name, METHODS)} Known: {', '.join(METHODS)}."
        )
    return METHODS[name]
