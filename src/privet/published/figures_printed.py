"""What Wei and Liu printed, to stand beside what is measured here."""

from dataclasses import dataclass

SOURCE = "Wei, Liu 2021, Gradient Leakage Attack Resilient Deep Learning, Table III (first step, MSE < 0.70)"
TASKS = {"digits": "mnist"}  # ours that are part of theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A column of Table III: iterations (calls of L-BFGS, each of up to 20), success rate, mean squared error."""

    iterations: float
    success: float
    mse: float


def _printed_row(iterations: list[float], success: list[float], mse: list[float]) -> dict[str, Printed]:
    tasks = ("mnist", "fashion-mnist", "cifar10", "lfw")
    return {
        task: Printed(iterations=i, success=s, mse=m)
        for task, i, s, m in zip(tasks, iterations, success, mse, strict=True)
    }


TABLE = {
    "non-private": _printed_row([11.5, 12.4, 28.3, 25], [1, 1, 0.973, 1], [1.50e-05, 2.59e-05, 2.20e-04, 2.20e-04]),
    "dp-baseline": _printed_row([13.4, 14.1, 30.5, 26.3], [0.23, 0.25, 0.16, 0.13], [0.547, 0.588, 0.401, 0.352]),
    "quantile": _printed_row([12.9, 14.3, 30.5, 27.1], [0.64, 0.67, 0.47, 0.49], [0.097, 0.121, 0.203, 0.229]),
    "adaclip": _printed_row([12.6, 14.1, 29.9, 26.4], [0.72, 0.76, 0.58, 0.61], [0.033, 0.041, 0.129, 0.144]),
    "dyn-s-sigma": _printed_row([300, 300, 300, 300], [0, 0, 0, 0], [0.886, 0.904, 0.912, 0.897]),
}


def printed_figures(method: str, task: str) -> Printed | None:
    """The published figures of a method on a task, if there are any.

    >>> printed_figures("quantile", "digits").success
    0.64
    """
    return TABLE.get(method, {}).get(TASKS.get(task, task))
