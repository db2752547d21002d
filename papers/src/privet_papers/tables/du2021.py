"""Du et al. 2021, Dynamic Differential-Privacy Preserving SGD: Tables 1-4 (the last federated), Figures 1-4.

The tables give budgets and accuracies, Section 5.1 the optimizers. Batch, steps, clip, learning rate and the chosen rho
are in no part of the text we have; what is used here is stated in each row, and the learning rate is chosen on a split.
Each method is calibrated by the certified accountant, so its epsilon is at most the table's.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from privet.accounting import spent
from privet_papers.reproduce.figures import over_steps
from privet_papers.reproduce.table_row import Figure, Paper, Row, Table, keyed

NAME = "du2021"
RHO = 2.0  # 1/rho = 0.5: the paper sweeps 0.1 to 0.8 and does not name the winner
METHODS: dict[str, dict[str, Any]] = {
    "constant": {"method": "noisy-sgd"},
    "growing-mu": {"method": "growing-mu", "rho_noise": RHO},
    "sensitivity-decay": {"method": "sensitivity-decay", "rho_clip": RHO},
    "dynamic": {"method": "dynamic", "rho_noise": RHO, "rho_clip": RHO},
}
# The methods compared with. Yu et al. have no amplification: each record once an epoch. Zhang et al. as published.
OTHERS: dict[str, dict[str, Any]] = {
    "noise-decay-zcdp": {"method": "noise-decay-zcdp", "sampling": "shuffled"},
    "noise-decay-tcdp": {"method": "noise-decay-tcdp", "uncertified": True},
}
_SGD = {"optimizer": "sgd", "momentum": 0.0}  # equation (4)
_PLAIN_SGD = {**_SGD, "lr": 0.1}  # without clipping, larger rates kill the CNN
_PLAIN_ADAM = {"optimizer": "adam", "lr": 0.002}  # of IMDb alone, Section 5.1
_RHO_NOTE = "rho 2: the paper sweeps 1/rho from 0.1 to 0.8 and does not name the one it took"
_DECAY_NOTE = "the variance falls by 1 % an epoch: the constant of the method compared with is not in the paper"
_LR_NOTE = "lr: not in the paper, chosen on a split of the training records; the search is not charged"

# For each budget: Yu et al. (zCDP), Zhang et al. (tCDP), Bu et al. (constant), growing-mu, sensitivity-decay, dynamic
_COLUMNS = (*OTHERS, *METHODS)
_MNIST = {
    0.4: (10.28, 26.93, 91.18, 91.67, 93.95, 94.35),
    0.6: (10.12, 83.28, 93.80, 94.49, 95.17, 95.21),
    1.2: (65.33, 92.60, 95.50, 96.06, 96.17, 96.34),
}
_FASHION = {
    0.4: (9.86, 53.69, 76.77, 77.81, 78.11, 78.50),
    1.2: (63.30, 76.48, 80.45, 80.95, 82.83, 83.22),
    2.0: (72.18, 77.58, 82.55, 83.10, 83.64, 83.81),
}
_IMDB = {
    0.5: (None, 56.67, 63.62, 64.92, 65.44, 65.63),
    1.0: (None, 58.24, 69.71, 69.85, 70.25, 70.77),
    3.0: (None, 62.15, 75.64, 76.00, 76.23, 76.64),
    6.0: (None, 65.88, 77.75, 78.16, 78.47, 78.61),
    9.0: (None, 70.16, 78.60, 78.56, 79.42, 79.61),
}
_NAMES = {
    1.0: (None, 48.13, 62.71, 64.10, 66.66, 67.30),
    2.0: (None, 51.20, 69.64, 71.25, 71.78, 72.01),
    4.0: (None, 57.67, 73.04, 74.68, 73.67, 75.03),
    8.0: (None, 68.53, 74.15, 75.50, 74.78, 75.75),
}
# Table 4, for 250,000 and 500,000 images: non-private; then constant, growing-mu, sensitivity-decay, dynamic
_FEDERATED_PLAIN = {250_000: 98.89, 500_000: 98.96}
_FEDERATED = {
    250_000: {0.1: (93.47, 93.75, 94.46, 94.72), 0.4: (95.71, 95.93, 95.90, 96.00), 1.0: (96.02, 96.13, 96.40, 96.55)},
    500_000: {0.1: (94.82, 95.65, 95.75, 95.88), 0.4: (96.55, 96.76, 96.83, 96.95), 1.0: (96.89, 97.05, 97.06, 97.22)},
}

IMAGES = {"batch_size": 256, "steps": 5000, "clipping_norm": 1.0, "dataset_size": 60000}
_IMAGES_NOTE = "batch 256, clip 1: not in the table; 5,000 steps are those of Figure 1"
IMDB = {"batch_size": 512, "epochs": 9, "clipping_norm": 1.0, "dataset_size": 25000}
_IMDB_NOTE = "batch 512, 9 epochs, clip 1: those of Bu et al. 2019, which the table compares with"
NAMES = {"batch_size": 256, "epochs": 20, "clipping_norm": 1.0, "dataset_size": 16040}
_NAMES_NOTE = "batch 256, 20 epochs, clip 1, and 16,040 names to train: not in the text we have"
FEDERATED: dict[str, Any] = {"batch_size": 250, "steps": 100, "clipping_norm": 0.1, "unit": "client"}
_FEDERATED_NOTE = (
    "that one client is protected, ten images a client, 250 clients expected in each of 100 rounds, a CNN of 7,934 "
    "weights, momentum 0.9, clip 0.1: not in the text we have. delta is 1/(10 clients), a reading of the paper's "
    "1/(10 |X|), since X is made of clients then: ten times that of 1/(10 images). MNIST's 60,000 are enlarged by "
    "affine distortions"
)
_FEDERATED_RATE = "lr 5 is the best of 5, 10 and 40 on a split for constant noise at epsilon 0.4, and the same for all"


def rows() -> list[Row]:
    """All rows, in the order of the paper."""
    return [*_figure1(), *_figure2(), *_table1(), *_table2(), *_table3(), *_table4(), *_figure3(), *_figure4()]


# --- tables -----------------------------------------------------------------------------------------


def _table1() -> list[Row]:
    rates = {"lr": (0.06, 0.12, 0.25, 0.5)}
    found = []
    for task, plain, figures in (("mnist", 98.83, _MNIST), ("fashion-mnist", 87.92, _FASHION)):
        common = {"task": task, "model": "cnn", "training": _SGD, "choices": rates}
        found.append(_plain("table1", task, plain, IMAGES, common, _PLAIN_SGD))
        found += _private("table1", task, figures, IMAGES, common, (_IMAGES_NOTE,))
    return found


def _table2() -> list[Row]:
    common = {
        "task": "imdb", "model": "embedding-mlp", "training": {"optimizer": "adam"},
        "choices": {"lr": (0.005, 0.01, 0.02, 0.04, 0.08)},
    }  # fmt: skip
    return [
        _plain("table2", "imdb", 82.85, IMDB, common, _PLAIN_ADAM),
        *_private("table2", "imdb", _IMDB, IMDB, common, (_IMDB_NOTE,)),
    ]  # fmt: skip


def _table3() -> list[Row]:
    rates = {"lr": (0.25, 0.5, 1.0, 2.0, 4.0)}
    common = {"task": "names", "model": "char-lstm", "training": _SGD, "choices": rates}
    return [
        _plain("table3", "names", 80.14, NAMES, common, _SGD, choices=rates),
        *_private("table3", "names", _NAMES, NAMES, common, (_NAMES_NOTE,)),
    ]  # fmt: skip


def _private(
    table: str, task: str, figures: Mapping[float, tuple[float | None, ...]], recipe: Mapping[str, Any],
    common: Mapping[str, Any], notes: tuple[str, ...],
) -> list[Row]:  # fmt: skip
    found = []
    for epsilon, printed in figures.items():
        for name, accuracy in zip(_COLUMNS, printed, strict=True):
            if accuracy is None:
                continue
            extra = _DECAY_NOTE if name in OTHERS else _RHO_NOTE if name != "constant" else ""
            found.append(Row(
                paper=NAME, table=table, name=f"{task}-{epsilon:g}-{name}", kind="trains",
                place=f"Table {table[-1]}, {task}, epsilon {epsilon:g}, {name}", published={"accuracy": accuracy},
                label="claimed" if name in OTHERS else "approximate",
                recipe={**recipe, **(OTHERS | METHODS)[name], "epsilon": epsilon},
                notes=(*notes, *filter(None, (extra,)), _LR_NOTE), **common,
            ))  # fmt: skip
    return found


def _plain(
    table: str, task: str, accuracy: float, recipe: Mapping[str, Any], common: Mapping[str, Any],
    training: Mapping[str, Any], *, choices: Mapping[str, Any] | None = None,
) -> Row:  # fmt: skip
    batches = {key: value for key, value in recipe.items() if key != "clipping_norm"}
    return Row(
        paper=NAME, table=table, name=f"{task}-non-private", place=f"Table {table[-1]}, {task}, non-private",
        kind="baseline", published={"accuracy": accuracy}, recipe=batches,
        notes=("batch, steps and lr of the non-private row: not in the paper",), task=common["task"],
        model=common["model"], training=training, choices=choices or {},
    )  # fmt: skip


def _table4() -> list[Row]:
    """Client-level privacy by FedSGD, on MNIST made as large by distortions: InfiniteMNIST is made the same way."""
    training = {"algorithm": "fedsgd", "momentum": 0.9, "lr": 5.0, "evaluate_every": 10}
    return [*map(_federated_plainly, _FEDERATED), *(
        Row(
            paper=NAME, table="table4", name=f"{images // 1000}k-{epsilon:g}-{name}", kind="federates",
            label="approximate", place=f"Table 4, MNIST-{images // 1000}K, epsilon {epsilon:g}, {name}",
            published={"accuracy": accuracy}, task=f"mnist:enlarged={images}", model="tanh-cnn", training=training,
            recipe={**FEDERATED, **METHODS[name], "dataset_size": images // 10, "delta": 1 / images,
                    "epsilon": epsilon},
            notes=(_FEDERATED_NOTE, _FEDERATED_RATE, *filter(None, (_RHO_NOTE if name != "constant" else "",))),
        )
        for images, budgets in _FEDERATED.items()
        for epsilon, printed in budgets.items()
        for name, accuracy in zip(METHODS, printed, strict=True)
    )]  # fmt: skip


def _federated_plainly(images: int) -> Row:
    """FedSGD of clients with as many images each is SGD on all that those who are asked have: so it is trained."""
    return Row(
        paper=NAME, table="table4", name=f"{images // 1000}k-non-private", kind="baseline", model="tanh-cnn",
        place=f"Table 4, MNIST-{images // 1000}K, non-private", published={"accuracy": _FEDERATED_PLAIN[images]},
        task=f"mnist:enlarged={images}", training={"optimizer": "sgd", "momentum": 0.9},
        choices={"lr": (0.02, 0.05, 0.1, 0.2, 0.4)}, notes=(_FEDERATED_NOTE,),
        recipe={"dataset_size": images, "batch_size": 10 * FEDERATED["batch_size"], "steps": FEDERATED["steps"]},
    )  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------

_FIGURE1 = {**IMAGES, "epsilon": 0.4, "delta": 1e-5}


def _figure1() -> list[Row]:
    """The gradient's norm over 5,000 steps at (0.4, 1e-5): SGD, DP-SGD and dynamic DP-SGD. Not private: raw."""
    common: dict[str, Any] = {
        "paper": NAME, "table": "fig1", "place": "Figure 1", "task": "mnist", "model": "cnn",
        "training": _PLAIN_SGD, "trace": "raw_gradient_norm",
        "notes": ("raw: it is shown on a public dataset", _IMAGES_NOTE, _RHO_NOTE, "lr 0.1: not in the paper"),
    }  # fmt: skip
    plain = Row(
        name="sgd",
        kind="baseline",
        recipe={key: IMAGES[key] for key in ("dataset_size", "batch_size", "steps")},
        **common,
    )
    return [
        plain,
        *(
            Row(name=name, kind="trains", label="approximate", recipe={**_FIGURE1, **METHODS[name]}, **common)
            for name in ("constant", "dynamic")
        ),
    ]


def _figure2() -> list[Row]:
    """How the budget epsilon = 1.2 is spent over the steps, for several rho_mu."""
    return [
        Row(
            paper=NAME, table="fig2", name=f"rho-{rho:g}", place="Figure 2", kind="accounts", label="approximate",
            recipe={**IMAGES, "epsilon": 1.2, "method": "growing-mu", "rho_noise": rho}, curve=over_steps(),
            notes=(_IMAGES_NOTE, *(() if rho == 1 else ("of the values of rho_mu the text names 1 alone",))),
        )
        for rho in (1.0, 2.0, 5.0, 10.0)
    ]  # fmt: skip


def _figure3() -> list[Row]:
    """Accuracy of dynamic DP-SGD over a grid of rho_mu and rho_c, on MNIST at epsilon 0.4."""
    inverse = (0.1, 0.4, 0.8)
    notes = (_IMAGES_NOTE, "dataset, epsilon and lr 0.25: not in the text; 1/rho goes from 0.1 to 0.8 in it")
    return [
        Row(
            paper=NAME, table="fig3", name=f"mu-{of_noise:g}-c-{of_clip:g}", place="Figure 3", kind="trains",
            task="mnist", model="cnn", label="approximate", training={**_SGD, "lr": 0.25}, notes=notes,
            panel=f"1/rho_mu = {of_noise:g}",
            recipe={**IMAGES, "epsilon": 0.4, "method": "dynamic", "rho_noise": 1 / of_noise, "rho_clip": 1 / of_clip},
        )
        for of_noise in inverse
        for of_clip in inverse
    ]  # fmt: skip


def _figure4() -> list[Row]:
    """Epsilon over the steps of dynamic DP-SGD by the extended CLT, by Rényi, and what is true."""
    return [
        Row(
            paper=NAME, table="fig4", name=f"{budget:g}-{name}", place="Figure 4", kind="accounts",
            label="approximate" if accountant == "gdp" else "certified",
            recipe={**IMAGES, **METHODS["dynamic"], "epsilon": budget, "uncertified": True},
            panel=f"epsilon {budget:g}",
            curve=over_steps(accountant), figures=partial(_at_the_end, accountant=accountant),
            notes=(_IMAGES_NOTE, _RHO_NOTE, "the epsilons 0.4 and 1.2: not in the text"),
        )
        for budget in (0.4, 1.2)
        for name, accountant in (("extended-clt", "gdp"), ("renyi", "rdp"), ("tight", "pld"))
    ]  # fmt: skip


@keyed("_at_the_end")
def _at_the_end(row: Row, accountant: str) -> dict[str, Figure]:
    plan = row.plan()
    found = spent(plan.ledger(), plan.recipe.budget.delta, accountant=accountant)
    return {f"{accountant} epsilon": Figure(value=found.epsilon, label=found.label)}


PAPER = Paper(
    name=NAME,
    title="Du et al. 2021, Dynamic Differential-Privacy Preserving SGD",
    tables={
        "fig1": Table(title="The gradient over the training, MNIST, epsilon 0.4 (raw: not private)", x="step",
                      y="mean absolute gradient", log_y=True),
        "fig2": Table(title="How growing-mu spends epsilon 1.2", x="step", y="epsilon so far"),
        "table1": Table(title="CNN on MNIST and Fashion-MNIST, delta 1/(10 n)"),
        "table2": Table(title="MLP on IMDb, delta 1/(10 n)"),
        "table3": Table(title="LSTM on names, delta 1/(10 n)"),
        "table4": Table(title="Federated learning on enlarged MNIST, epsilon for one client"),
        "fig3": Table(title="Accuracy of dynamic DP-SGD for several rho, MNIST, epsilon 0.4", x="epoch",
                      y="accuracy on held-out records, %"),
        "fig4": Table(title="Epsilon of dynamic DP-SGD by three accountants", x="step", y="epsilon so far"),
    },
    rows=rows,
)  # fmt: skip
