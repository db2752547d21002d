"""`privet doctor`: what this machine has, and how the engine goes through a model."""

import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import click

from privet.cli.shell import integer, print_object, warnings_as_lines
from privet.errors import InvalidValue

if TYPE_CHECKING:
    from privet.engine.explain import Explanation

PACKAGES = ("privet", "torch", "numpy", "scipy", "matplotlib")


@click.command("doctor", short_help="What this machine has, and how the engine goes through a model.")
@click.argument("model", required=False, metavar="[MODEL]")
@click.option("--rounds", type=integer, default=5, show_default=True, help="Steps to time, private and plain in turn.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else.")
def doctor_command(model: str | None, rounds: int, as_json: bool) -> None:
    """What this machine has; and for MODEL, which rule clips each parameter, checked against autograd, and its price.

    MODEL is my.module:make, a function without arguments that returns (model, loss_fn, (inputs, targets)), as for
    `clipped_sum`. A model that couples examples is refused, with the module's name and what to use in its place.

    \b
    Examples:
      privet doctor
      privet doctor my.module:make
    """
    machine = _machine()
    if model is None:
        _print(machine, as_json)
        return
    with warnings_as_lines():
        found, milliseconds = _examined(model, rounds)
    if as_json:
        print_object(machine | {"model": model} | found.as_dict() | {"milliseconds": milliseconds})
        return
    click.echo(str(found))
    count = sum(_product(shape) for shape in found.parameters.values())
    click.echo(f"\n{count} parameters in {len(found.parameters)} tensors; agrees with autograd example by example")
    private, plain = milliseconds["private"], milliseconds["plain"]
    click.echo(f"private step {private:.2f} ms, plain {plain:.2f} ms: {private / plain:.2f} times")


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    if found["torch"] is not None:
        import torch

        found |= {"threads": torch.get_num_threads(), "gpu": torch.cuda.is_available()}
    return found


def _print(machine: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_object(machine)
        return
    for name, value in machine.items():
        click.echo(f"{name:<11} {'not installed' if value is None else value}")


def _examined(address: str, rounds: int) -> tuple["Explanation", dict[str, float]]:
    from privet._registry import imported
    from privet.engine import explain

    make = imported(address, kind="model")
    try:
        model, loss_fn, batch = make()
    except (TypeError, ValueError) as error:
        raise InvalidValue(
            f"model={address!r} must be a function without arguments that returns (model, loss_fn, (inputs, targets)): "
            f"{error}."
        ) from None
    return explain(model, loss_fn, batch), _timed(model, loss_fn, batch, rounds)


def _timed(model: Any, loss_fn: Any, batch: Any, rounds: int) -> dict[str, float]:
    """Milliseconds of a private and of a plain forward and backward: the least of some rounds, in turn."""
    import torch

    from privet.engine import clipped_sum
    from privet.engine.clipped import work_on

    work = work_on(model, loss_fn, batch)
    parameters = list(work.named.values())
    steps: dict[str, Any] = {
        "private": lambda: clipped_sum(model, loss_fn, batch),
        "plain": lambda: torch.autograd.grad(work.losses().mean(), parameters, allow_unused=True),
    }
    least = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds + 1):  # the first one warms up, and is rarely the least
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            least[name] = min(least[name], 1e3 * (time.perf_counter() - start))
    return least


def _product(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found
