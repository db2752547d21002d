"""What a layer rule is: how one torch function's parameters get their per-example gradients."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from privet.engine.share import Share
from privet.errors import PrivetError

if TYPE_CHECKING:
    from privet.engine.tape import Use


class TooHard(PrivetError):
    """The rules do not cover this model: it must be run example by example."""


Function = Callable[..., Any]
Ran = tuple[Any, list[Tensor], Any]  # the output, the tensors whose gradients are wanted, what to remember


class Rule(Protocol):
    """One way to get the per-example gradients of the parameters that enter a torch function."""

    name: str

    def accepts(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether the rule is right for this call; if not, the next more general one takes it."""

    def run(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
        """Call the function, and say which tensors' gradients are wanted."""

    def shares(self, use: "Use", grads: list[Tensor]) -> Iterable[tuple[Tensor, Share]]:
        """(tracked tensor, share) for each tracked argument, given the gradients of the tensors that were wanted."""


_rules: dict[Function, Rule] = {}


def register(*functions: Function) -> Callable[[type[Rule]], type[Rule]]:
    """Class decorator: this rule answers for these torch functions."""

    def add(kind: type[Rule]) -> type[Rule]:
        rule = kind()
        _rules.update(dict.fromkeys(functions, rule))
        return kind

    return add


def functions_of(kind: type) -> list[Function]:
    """The functions that a class of rules is registered for."""
    return [func for func, rule in _rules.items() if type(rule) is kind]


def rule_of(func: Function, args: Sequence[Any], kwargs: dict[str, Any], *, forced: bool = False) -> Rule:
    """The rule for a function; the general one, if there is none or it is forced, is a vmap of the function's vjp."""
    rule = None if forced else _rules.get(func)
    return rule if rule is not None and rule.accepts(args, kwargs) else _rules[rule_of]


def register_last(kind: type[Rule]) -> type[Rule]:
    """Class decorator: this rule answers where no other does."""
    return register(rule_of)(kind)


def bound(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the order of `names`, wherever they were given; None for what was not."""
    if not kwargs:
        return [*args[: len(names)], *[None] * (len(names) - len(args))]
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name) for name in names]


def plain(func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Ran:
    """Run as it is; the gradient of its one output is all that is wanted."""
    out = func(*args, **kwargs)
    return out, [out], None
