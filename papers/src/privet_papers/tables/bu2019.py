"""Bu, Dong, Long, Su 2019, Deep Learning with Gaussian Differential Privacy: Tables 1-4, Figures 2-5.

The paper states everything that its private runs need: noise, clip R, learning rate, batch and epochs.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from privet.accounting import Ledger, Step, gdp, spent
from privet.accounting.tradeoff import Gaussian, Tradeoff, from_deltas, least_error_sum, tradeoff
from privet.planning import plan
from privet_papers.reproduce.figures import attacker, errors, over_epochs
from privet_papers.reproduce.table_row import Curve, Figure, Paper, Row, Table, keyed

NAME = "bu2019"
DELTA = 1e-5
MNIST = {"dataset_size": 60000, "batch_size": 256, "delta": DELTA, "method": "noisy-sgd"}
PLAIN_SGD = {"optimizer": "sgd", "momentum": 0.0}  # Algorithm 1 has no momentum

# Table 1: learning rate, clip R, noise, epochs; accuracy, CLT mu, CLT epsilon, MA epsilon
_TABLE1 = (
    (0.25, 1.5, 1.3, 15, 95.0, 0.23, 0.83, 1.19),
    (0.15, 1.0, 1.1, 60, 96.6, 0.57, 2.32, 3.01),
    (0.25, 1.5, 0.7, 45, 97.0, 1.13, 5.07, 7.10),
    (0.25, 1.5, 0.6, 62, 97.6, 2.00, 9.98, 13.27),
    (0.25, 1.5, 0.55, 68, 97.8, 2.76, 14.98, 18.72),
    (0.25, 1.5, 0.5, 100, 98.0, 4.78, 31.12, 32.40),
)


def rows() -> list[Row]:
    """All rows, in the order of the paper."""
    return [
        *_figure2(), *_table1(), *_figure3(), *_table2(), *_table3(), *_table4(), *_figure4(), *_figure5()
    ]  # fmt: skip


# --- tables -----------------------------------------------------------------------------------------


def _table1() -> list[Row]:
    found = [
        _trains(
            "table1", f"sigma-{noise}", f"Table 1, row {number}", task="mnist", model="cnn",
            published={"accuracy": accuracy} | _privacy(mu, clt, ma),
            recipe={**MNIST, "noise_multiplier": noise, "clipping_norm": clip, "epochs": epochs},
            training={**PLAIN_SGD, "lr": lr},
        )
        for number, (lr, clip, noise, epochs, accuracy, mu, clt, ma) in enumerate(_TABLE1, start=1)
    ]  # fmt: skip
    plain = Row(
        paper=NAME, table="table1", name="non-private", place="not in the paper", kind="baseline", task="mnist",
        model="cnn", recipe={"dataset_size": 60000, "batch_size": 256, "epochs": 15}, training={**PLAIN_SGD, "lr": 0.1},
        notes=("no published figure; epochs of the first row, learning rate 0.1",),
    )  # fmt: skip
    return [*found, plain]


def _table2() -> list[Row]:
    adult = {"dataset_size": 29305, "batch_size": 256}
    return [
        _trains(
            "table2", "private", "Table 2, private networks", task="adult", model="mlp",
            published={"accuracy": 84.0} | _privacy(2.03, 10.20, 14.70),
            recipe={**adult, "noise_multiplier": 0.55, "clipping_norm": 1.0, "epochs": 18, "delta": DELTA,
                    "method": "noisy-sgd"},
            training={**PLAIN_SGD, "lr": 0.15}, notes=("numbers are cut at round values, not at quantiles",),
        ),
        _baseline("table2", "adult", "mlp", 84.5, adult, {**PLAIN_SGD, "lr": 0.15}),
        *_quoted("table2", {"knn": 79.7, "naive-bayes": 83.9, "voted-id3": 84.4, "c4.5": 84.5}, "accuracy", "MLC++"),
    ]  # fmt: skip


def _table3() -> list[Row]:
    imdb, adam = {"dataset_size": 25000, "batch_size": 512}, {"optimizer": "adam", "lr": 0.02}
    recipe = {
        **imdb,
        "noise_multiplier": 0.56,
        "clipping_norm": 1.0,
        "epochs": 9,
        "delta": DELTA,
        "method": "noisy-adam",
    }
    start = "Adam's constants: not in the paper, those of PyTorch; the embedding starts as one of Keras does"
    private = _trains(
        "table3", "private", "Table 3, private networks", task="imdb", model="embedding-mlp", training=adam,
        recipe=recipe, published={"accuracy": 83.8} | _privacy(2.07, 10.43, 15.24),
        notes=("words are hashed into 10,000: the paper counts the most frequent, which is not private", start),
    )  # fmt: skip
    counted = "the most frequent words are counted, as in the paper: no epsilon covers what they tell"
    plain = _baseline("table3", "imdb", "embedding-mlp", 84.7, imdb, adam)
    return [
        private,
        replace(
            private, name="private-counted", task="imdb:vocabulary=counted", recipe={**recipe, "uncertified": True},
            published={"accuracy": 83.8}, label="claimed", notes=(counted, start),
        ),
        plain,
        replace(plain, name="non-private-counted", task="imdb:vocabulary=counted"),
        *_quoted("table3", {"lstm": 85.4}, "accuracy", "a TensorFlow tutorial"),
    ]  # fmt: skip


def _table4() -> list[Row]:
    ratings = {"dataset_size": 800167, "sample_rate": 1 / 80}
    baselines = {"svd": 0.873, "nmf": 0.916, "user-based-cf": 0.923, "global-average": 1.117}
    return [
        _trains(
            "table4", "private", "Table 4, private networks", task="movielens-1m", model="ncf",
            published={"rmse": 0.915} | _privacy(1.94, 10.61, 15.39),
            recipe={**ratings, "noise_multiplier": 0.6, "clipping_norm": 5.0, "epochs": 20, "delta": 1e-6,
                    "method": "noisy-adam"},
            training={"optimizer": "adam", "lr": 0.01, "max_physical_batch_size": 2048},
            notes=("epsilon is for one rating: a user has 132 of those trained on in the mean",),
        ),
        _baseline("table4", "movielens-1m", "ncf", 0.893, ratings, {"optimizer": "adam", "lr": 0.01}, measure="rmse"),
        *_quoted("table4", baselines, "rmse", "the Surprise library"),
    ]  # fmt: skip


def _trains(table: str, name: str, place: str, **rest: Any) -> Row:
    return Row(paper=NAME, table=table, name=name, place=place, kind="trains", label="approximate", **rest)


def _privacy(mu: float, clt: float, ma: float) -> dict[str, float]:
    return {"gdp mu": mu, "gdp epsilon": clt, "moments epsilon": ma}


def _baseline(
    table: str, task: str, model: str, value: float, recipe: Mapping[str, Any], training: Mapping[str, Any], *,
    measure: str = "accuracy",
) -> Row:  # fmt: skip
    return Row(
        paper=NAME, table=table, name="non-private", place=f"Table {table[-1]}, non-private networks", kind="baseline",
        task=task, model=model, published={measure: value}, recipe={**recipe, "epochs": 20}, training=training,
        notes=("batch and learning rate: not in the paper, those of the private row",),
    )  # fmt: skip


def _quoted(table: str, values: Mapping[str, float], measure: str, source: str) -> list[Row]:
    return [
        Row(
            paper=NAME, table=table, name=name, place=f"Table {table[-1]}", kind="not run", published={measure: value},
            why=f"a baseline of the paper, by {source}",
        )
        for name, value in values.items()
    ]  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------

_FIGURE2 = {**MNIST, "noise_multiplier": 0.7, "clipping_norm": 1.5, "epochs": 45}
_BY = {"clt": "gdp", "ma": "moments", "tight": "pld"}


def _accounts(table: str, name: str, place: str, **rest: Any) -> Row:
    return Row(paper=NAME, table=table, name=name, place=place, kind="accounts", **rest)


def _figure2() -> list[Row]:
    """Epsilon against delta after 45 epochs; epsilon over the epochs; the noise that the CLT finds enough."""
    found = []
    for name, accountant in _BY.items():
        deltas, epochs = partial(_over_delta, accountant=accountant), over_epochs(accountant)
        found.append(_accounts("fig2a", name, "Figure 2, top", recipe=_FIGURE2, curve=deltas))
        found.append(_accounts("fig2b", name, "Figure 2, bottom left", recipe=_FIGURE2, curve=epochs))
    for name in ("clt", "tight"):
        noise_curve = partial(_enough_noise, accountant=_BY[name])
        found.append(_accounts("fig2c", name, "Figure 2, bottom right", recipe=_FIGURE2, curve=noise_curve))
    return found


@keyed("_over_delta")
def _over_delta(row: Row, accountant: str) -> Curve:
    """Epsilon at deltas from 1e-8 to 1e-2."""
    deltas = np.logspace(-8, -2, 25).tolist()
    ledger = row.plan().ledger()
    found = [spent(ledger, delta, accountant=accountant) for delta in deltas]
    return Curve(x=tuple(g.epsilon for g in found), y=tuple(deltas), label=found[0].label)


@keyed("_enough_noise")
def _enough_noise(row: Row, accountant: str) -> Curve:
    """The noise with which `accountant` finds the epsilon that MA finds at each noise: Figure 1 of the paper."""
    noises = (0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4)
    given = {key: value for key, value in row.recipe.items() if key not in ("noise_multiplier", "method")}
    enough = []
    for noise in noises:
        epsilon = spent(_ledger(row, noise), DELTA, accountant="moments").epsilon
        enough.append(plan(**given, epsilon=epsilon, accountant=accountant).steps[0].noise_multiplier)
    return Curve(x=noises, y=tuple(enough))


def _ledger(row: Row, noise: float) -> Ledger:
    recipe, ledger = row.as_recipe(), Ledger()
    assert recipe.base_rate is not None
    assert recipe.count is not None
    ledger.add(Step(noise_multiplier=noise, sample_rate=recipe.base_rate), recipe.count)
    return ledger


def _figure3() -> list[Row]:
    """The trade-off curves of the six rows of Table 1: CLT, MA at one delta, MA at every delta, and what is true."""
    found = []
    for number, (_, clip, noise, epochs, *_rest) in enumerate(_TABLE1, start=1):
        for kind in ("clt", "ma-pair", "ma-all", "tight"):
            printed = {"clt": 77.6, "ma-pair": 9.4}.get(kind) if number == 2 else None
            found.append(_accounts(
                "fig3", f"sigma-{noise}-{kind}", f"Figure 3 and Section 4.1, setting {number}",
                label={"clt": "approximate", "ma-pair": "certified", "ma-all": "certified"}.get(kind),
                recipe={**MNIST, "noise_multiplier": noise, "clipping_norm": clip, "epochs": epochs},
                panel=f"noise {noise}, {epochs} epochs",
                published={} if printed is None else {"least error sum": printed}, curve=partial(_errors, kind=kind),
                figures=partial(_least_error_sum, kind=kind),
            ))  # fmt: skip
    return found


def _error_curve(row: Row, kind: str) -> Tradeoff | Gaussian:
    recipe, ledger = row.as_recipe(), row.plan().ledger()
    if kind == "tight":
        return tradeoff(ledger)
    if kind == "clt":
        assert recipe.base_rate is not None
        assert recipe.epochs is not None
        mu = gdp.clt_mu(
            noise_multiplier=recipe.noise_multiplier,
            sample_rate=recipe.base_rate,
            steps=recipe.epochs / recipe.base_rate,
        )
        return Gaussian(mu=mu, label="approximate")
    deltas = (DELTA,) if kind == "ma-pair" else tuple(np.logspace(-12, -0.01, 60).tolist())
    return from_deltas([spent(ledger, d, accountant="moments").epsilon for d in deltas], deltas, method="moments")


@keyed("_errors")
def _errors(row: Row, kind: str) -> Curve:
    return errors(_error_curve(row, kind))


@keyed("_least_error_sum")
def _least_error_sum(row: Row, kind: str) -> dict[str, Figure]:
    curve = _error_curve(row, kind)
    return {"least error sum": Figure(value=100 * least_error_sum(curve), label=curve.label)}


_AT_FOUR = ("in the paper, when epsilon is 4, the run by MA has 92 % and the one by CLT 96 %",)


def _figure4() -> list[Row]:
    """Less noise at the same epsilon: MA's noise against the noise that the CLT finds enough. One run of each."""
    found = []
    # the noise by MA and by CLT, epochs, epsilon, mu; epochs to 95, 96 and 97 % for either
    settings: tuple[tuple[float, float, int, float, float, tuple[float, ...], tuple[float, ...]], ...] = (
        (1.3, 1.06, 20, 1.34, 0.35, (), ()),
        (0.7, 0.638, 70, 8.68, 1.78, (23, 33, 64), (18, 26, 45)),
    )
    for by_ma, by_clt, epochs, epsilon, mu, ma_epochs, clt_epochs in settings:
        for name, noise, published, until in (
            ("ma", by_ma, {"moments epsilon": epsilon}, ma_epochs),
            ("clt", by_clt, {"gdp epsilon": epsilon, "gdp mu": mu}, clt_epochs),
        ):
            reached = {f"epochs to {goal} %": float(at) for goal, at in zip((95, 96, 97), until, strict=False)}
            recipe = {**MNIST, "noise_multiplier": noise, "clipping_norm": 1.5, "epochs": epochs}
            place, panel = f"Figure 4 and Section 4.2, epoch {epochs}", f"{epochs} epochs"
            found.append(_trains(
                "fig4", f"{name}-sigma-{noise}", place, task="mnist", model="cnn", panel=panel, recipe=recipe,
                published=published | reached, training={**PLAIN_SGD, "lr": 0.15}, notes=_AT_FOUR if until else (),
            ))  # fmt: skip
            found.append(_accounts(
                "fig4-epsilon", f"{name}-sigma-{noise}", place, recipe=recipe, panel=panel, published=published,
                label="approximate" if name == "clt" else "certified", curve=over_epochs(_BY[name]),
            ))  # fmt: skip
    return found


def _figure5() -> list[Row]:
    """How near the CLT is after one epoch's number of steps, at a rate that leaves its mu as it was: 234 steps."""
    steps = 234
    rate = 256 / 60000 * math.sqrt(60 * 60000 / 256 / steps)
    recipe = {
        "dataset_size": 60000,
        "sample_rate": rate,
        "steps": steps,
        "noise_multiplier": 1.1,
        "delta": DELTA,
        "method": "noisy-sgd",
    }
    return [
        _accounts(
            "fig5", name, "Figure 5, Appendix A", recipe=recipe, curve=partial(attacker, accountant=accountant),
            published={"gdp mu": 0.57} if name == "clt" else {}, label="approximate",
        )
        for name, accountant in (("clt", "gdp"), ("tight", "pld"))
    ]  # fmt: skip


_TYPE1, _TYPE2 = "type I error", "type II error, at least"
PAPER = Paper(
    name=NAME,
    title="Bu, Dong, Long, Su 2019, Deep Learning with Gaussian Differential Privacy",
    tables={
        "fig2a": Table(title="MNIST, noise 0.7, 45 epochs: delta against epsilon", x="epsilon", y="delta", log_y=True),
        "fig2b": Table(title="MNIST, noise 0.7: epsilon over the epochs", x="epoch", y="epsilon at delta 1e-5"),
        "fig2c": Table(title="The noise that gives the epsilon of MA", x="noise by MA", y="noise that is enough"),
        "table1": Table(title="NoisySGD on MNIST, delta 1e-5"),
        "fig3": Table(title="What an attacker can achieve in the settings of Table 1", x=_TYPE1, y=_TYPE2),
        "table2": Table(title="NoisySGD on Adult, delta 1e-5"),
        "table3": Table(title="NoisyAdam on IMDb, delta 1e-5"),
        "table4": Table(title="NoisyAdam on MovieLens 1M, delta 1e-6"),
        "fig4": Table(title="Less noise at the same epsilon, MNIST", x="epoch", y="accuracy on held-out records, %"),
        "fig4-epsilon": Table(title="Less noise at the same epsilon, MNIST", x="epoch", y="epsilon at delta 1e-5"),
        "fig5": Table(title="The CLT after 234 steps", x=_TYPE1, y=_TYPE2),
    },
    rows=rows,
)
