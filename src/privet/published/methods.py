"""Methods of the papers whose figures are claimed: their shapes, closed forms and prices, and what is wrong with them.

The registry of `privet.planning.methods` reads this file when one of these names is asked for.
"""

from collections.abc import Callable

from privet._registry import format_number
from privet.planning.methods import Claim, Method, ScheduleContext, ShapeOf, registry
from privet.published.accountants import auto_exponential, auto_linear, auto_step, auto_time, epsilon_of_rho


# --- shapes -----------------------------------------------------------------------------------------
def linear_per_epoch(at: ScheduleContext) -> str:
    """sigma_e^2 = sigma_0^2 R^e, R = 0.99: called linear, but geometric. Source: Auto DP-SGD, Table 1."""
    return f"step:factor=0.99,every={at.epoch},power=2"


def time_per_epoch(at: ScheduleContext) -> str:
    """sigma_e^2 = sigma_0^2 / (1 + R e), R = 1 / E: the published R = sigma_0 / E at sigma_0 = 1."""
    return f"time:decay={format_number(1 / at.epochs)},every={at.epoch},power=2"


def published_time(at: ScheduleContext) -> str:
    """sigma_e^2 = sigma_0^2 / (1 + R e), R = sigma_0 / E. Source: Auto DP-SGD, Table 1."""
    return f"time:decay={format_number(at.peak_noise_multiplier / at.epochs)},every={at.epoch},power=2"


def step_per_epochs(at: ScheduleContext) -> str:
    """sigma_e^2 = sigma_0^2 R^floor(e / D), R = 0.5, D = 10. Source: Auto DP-SGD, Table 1."""
    return f"step:factor=0.5,every={format_number(10 * float(at.epoch))},power=2"


def exponential_per_epoch(at: ScheduleContext) -> str:
    """sigma_e^2 = sigma_0^2 exp(-R e), R = 0.1. Source: Auto DP-SGD, Table 1."""
    return f"exponential:decay=0.1,every={at.epoch},power=2"


def decay(at: ScheduleContext) -> str:
    """Exponential from 1 towards 0.5: a default of ours, since the papers give the form and not the constant."""
    return "exponential:end=0.5,grid=before"


# --- claims -----------------------------------------------------------------------------------------
def _claim(closed_form: Callable[..., tuple[float, float]]) -> Claim:
    """The epsilon that a closed form for (rho, omega) claims."""

    def claim(at: ScheduleContext, delta: float) -> float:
        return epsilon_of_rho(
            closed_form(noise_multiplier=at.peak_noise_multiplier, sample_rate=at.sample_rate, epochs=at.epochs)[0],
            delta,
        )

    return claim


# --- the table --------------------------------------------------------------------------------------

_AUTO = "Auto DP-SGD: Dual Improvements of Privacy and Accuracy (anonymous)"
_WEI = "Wei, Liu 2021, Gradient Leakage Attack Resilient Deep Learning"
_OWN_NORM = (
    "Each example's threshold is its own norm, so nothing is clipped and the noise scale is private data: there is no "
    "guarantee; besides, the closed form counts epochs in place of steps."
)
_PER_LAYER = "Clipping each of M layers to C has sensitivity sqrt(M) C, but C is charged: sqrt(M) too little noise."
_L2_MAX = "The sensitivity is read off the batch, which bounds nothing: neighbours can be told apart with certainty."
_NORMALISED = "normalised clipping (bound 1), pld"
_SQRT_M = "layers clipped to C / sqrt(M), pld"
_QUANTILE = "private quantile in place of l2-max, pld"


def _auto_method(name: str, says: str, noise: ShapeOf, claim: Claim, published: ShapeOf | None = None) -> Method:
    return Method(
        name=name, paper=_AUTO, noise_says=says, clip_says="each example's own norm", label="claimed",
        accountant="tcdp", caveat=_OWN_NORM, certified_variant=_NORMALISED, rule="normalised",
        published_rule="own_norm",
        noise=noise, claim=claim, published_noise=published,
    )  # fmt: skip


def _noise_decay_method(name: str, paper: str, accountant: str, caveat: str) -> Method:
    return Method(
        name=name, paper=paper, noise_says="sigma_e^2 = sigma_0^2 0.99^e by default", clip_says="constant",
        label="claimed", accountant=accountant, caveat=caveat, certified_variant="same, pld", noise=linear_per_epoch,
        free=("noise",),
    )  # fmt: skip


def _wei_method(name: str, *, max_norm: bool = False, clip: bool = False, noise: bool = False) -> Method:
    free = tuple(word for word, on in (("noise", noise), ("clip", clip)) if on)
    return Method(
        name=name, paper=_WEI, label="claimed", accountant="moments", free=free,
        noise_says="linear, exponential or cyclic decay" if noise else "constant",
        clip_says=("linear, exponential or cyclic decay" if clip else "constant") + (", l2-max" if max_norm else ""),
        caveat=_L2_MAX if max_norm else _PER_LAYER, certified_variant=_QUANTILE if max_norm else _SQRT_M,
        rule="quantile" if max_norm else "per_layer", published_rule="l2_max" if max_norm else "per_layer_c",
        noise=decay if noise else None, clip=decay if clip else None,
    )  # fmt: skip


for row in (
    _noise_decay_method("noise-decay-zcdp", "Yu et al. 2019, as quoted by Du et al. 2021 and Wei, Liu 2021", "zcdp",
        "A sampled Gaussian is not zCDP at all orders, so the rule for rho may report less than the truth."),
    _noise_decay_method("noise-decay-tcdp", "Zhang et al. 2021, as quoted by Du et al. 2021 and Auto DP-SGD", "tcdp",
        "The amplification lemma's conditions fail at small noise, and it covers another sampling."),
    Method(
        name="proactive", paper="van Dijk et al. 2021, Bringing Differential Private SGD to Practice",
        noise_says="sqrt(2 (epsilon + log(1/delta)) / epsilon), whatever T", clip_says="constant", label="claimed",
        accountant="proactive", certified_variant="constant, pld",
        caveat="The closed form holds under a condition with an unnamed constant; outside it the truth is larger.",
    ),
    _auto_method("auto-linear", "sigma_e^2 = sigma_0^2 0.99^e", linear_per_epoch, _claim(auto_linear)),
    _auto_method("auto-time", "sigma_e^2 = sigma_0^2 / (1 + R e)", time_per_epoch, _claim(auto_time), published_time),
    _auto_method("auto-step", "sigma_e^2 = sigma_0^2 0.5^floor(e/10)", step_per_epochs, _claim(auto_step)),
    _auto_method("auto-exp", "sigma_e^2 = sigma_0^2 exp(-0.1 e)", exponential_per_epoch, _claim(auto_exponential)),
    _wei_method("dp-baseline"),
    _wei_method("dyn-s-l2max", max_norm=True),
    _wei_method("dyn-s-cdecay", clip=True),
    _wei_method("dyn-s", max_norm=True, clip=True),
    _wei_method("dyn-sigma", noise=True),
    _wei_method("dyn-s-l2max-sigma", max_norm=True, noise=True),
    _wei_method("dyn-s-cdecay-sigma", clip=True, noise=True),
    _wei_method("dyn-s-sigma", max_norm=True, clip=True, noise=True),
):  # fmt: skip
    registry.register(row.name)(row)
