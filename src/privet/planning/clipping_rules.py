"""Clipping rules by name, as far as planning must know them without torch: which there are, and which hold.

The classes of the package are in `engine/clip`, and put themselves into the registry when that is imported; those of
the papers that hold no bound are in `published`, and are imported when one of them is asked for. A rule from
outside may be planned with as well: the engine maps it over the examples and holds each to the rule's bound, so that
its guarantee does not rest on it.
"""

from typing import Any

from privet import _check
from privet._registry import Registry
from privet.errors import InvalidValue, Unsupported

SOUND_RULES = ("flat", "per_layer", "normalised", "quantile", "adaclip")
UNSOUND_RULES = {
    "own_norm": "each example is scaled by its own norm, so one example can move the sum by any amount",
    "per_layer_c": "each of M layers is clipped to C, so one example moves the sum by sqrt(M) C, not C",
    "l2_max": "the sensitivity is read off the batch, which bounds nothing",
}
OF_ADAPTIVE = ("current_clip", "transform", "statistics", "statistics_noise", "learn", "state_dict", "load_state_dict")

NAMES = ("flat", "per_layer", "normalised", "adaclip", "own_norm", "per_layer_c", "l2_max", "quantile")
registry: Registry[Any] = Registry("rule", needs=("groups", "scales", "l2_bound"), order=NAMES, published="clipping")


def is_unsound(rule: str) -> bool:
    """Whether no proof covers a clipping rule, with or without options.

    >>> is_unsound("own_norm:scale=0.5"), is_unsound("quantile:target=0.7")
    (True, False)
    """
    return _rule_name(rule) in UNSOUND_RULES


def _rule_name(rule: str) -> str:
    return rule.partition(":")[0].strip()  # options may follow; a name that is not ours is a module's


def check_rule(rule: str, *, uncertified: bool) -> None:
    """Raise unless `rule` is a clipping rule's name or the address of one, and a sound one unless as published."""
    known = list(dict.fromkeys((*SOUND_RULES, *UNSOUND_RULES, *registry.names())))
    if not isinstance(rule, str) or (rule not in known and not rule.partition(":")[2].strip()):
        raise InvalidValue(
            f"rule={rule!r} is not known.{_check.suggestion(rule, known)} Known: {', '.join(known)}; or your own as "
            "my.module:Class."
        )
    if rule.strip().startswith("privet."):
        raise InvalidValue(
            f"rule={rule!r} is the address of a rule of ours. A name says whether a proof covers it. Use one of "
            f"{', '.join(known)}."
        )
    if is_unsound(rule) and not uncertified:
        raise Unsupported(
            f"rule={rule!r} has no guarantee: {UNSOUND_RULES[_rule_name(rule)]}. Use one of {', '.join(SOUND_RULES)}, "
            "or uncertified."
        )
    if _rule_name(rule) in (*SOUND_RULES, *UNSOUND_RULES):
        return
    name, options = registry.split(rule)
    made = registry.make(name, **registry.options(name, options))
    if type(made).__module__.startswith("privet."):
        raise InvalidValue(
            f"rule={rule!r} is a rule of ours by another address. A name says whether a proof covers it. Use one of "
            f"{', '.join(SOUND_RULES)}."
        )
    check_protocol(made, rule)


def check_protocol(made: Any, rule: Any) -> None:
    """Raise unless an object has the methods of its kind of rule, and does not ask to go past its own bound."""
    needs = (*registry.needs, *OF_ADAPTIVE) if getattr(made, "adaptive", False) else registry.needs
    if isinstance(made, type) or not all(callable(getattr(made, word, None)) for word in needs):
        raise InvalidValue(
            f"rule={rule!r} must be a name, or an object with {', '.join(needs)}. "
            f"Known: {', '.join(registry.names())}; or your own as my.module:Class."
        )
    if getattr(made, "adaptive", False):
        _check.non_negative(statistics_bound=getattr(made, "statistics_bound", None))  # type: ignore[arg-type]
    if getattr(made, "caveat", "") and not registry.is_ours(made):
        raise Unsupported(
            f"rule={rule!r} says caveat={made.caveat!r}. Only the papers' rules that are named here go past their "
            "bound; any other is held to it. Leave out `caveat`, or use one of "
            f"{', '.join(UNSOUND_RULES)} with uncertified."
        )
