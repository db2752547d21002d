"""Auto DP-SGD, hyper-parameters: clips (Tables 9 and 10), schedulers (11), the scale factor W (12), decays (13)."""

from privet_papers.reproduce.table_row import Row
from privet_papers.tables.auto2023 import DATA, absent, trains, uncertified
from privet_papers.tables.auto2023_printed import TABLE9, TABLE10, TABLE11, TABLE12, TABLE13

# Table 11: what torch's schedulers need and the paper does not state is ours; they move once an epoch, or once a step
SCHEDULERS = {
    "step": "step:step_size=30",
    "multi-step": "multi-step:milestones=(50,75)",
    "constant": "constant",
    "linear": "linear",
    "exponential": "exponential:gamma=0.95",
    "polynomial": "polynomial",
    "cosine": "cosine",
    "cosine-warm-restarts": "cosine-annealing-warm-restarts:T_0=10,unit=epoch",
    "cyclic": "cyclic:base_lr=0.0001,max_lr=0.001",
    "one-cycle": "one-cycle",
    "reduce-on-plateau": "plateau",
}
_NOISE_13 = "noise 2.8: not in the paper; the sensitivity of its linear row is that of Table 12 at W = 1, which has it"
_SAME_CLIPS = "Table 10 prints the same accuracies on MNIST as Table 9"


def tuning() -> list[Row]:
    """The rows of Tables 9 to 13."""
    return [*_clips("table9", TABLE9), *_clips("table10", TABLE10), *_table11(), *_table12(), *_table13()]


def _clips(table: str, printed: dict[str, dict[float, float]]) -> list[Row]:
    """DP-SGD and adaptive DP-SGD at several clips: plain SGD, noise 2.8."""
    method = "noisy-sgd" if table == "table9" else "noise-decay-tcdp"
    found = []
    for data, accuracies in printed.items():
        for clip, accuracy in accuracies.items():
            name, place = f"{data}-c{clip:g}", f"Table {table[5:]}, {data}, clip {clip:g}"
            if data not in DATA:
                found.append(absent(table, name, place, {"accuracy": accuracy}))
                continue
            notes = ("momentum 0: not in the paper", *((_SAME_CLIPS,) if table == "table10" else ()))
            found.append(trains(
                table, name, place, data, {"method": method, "noise_multiplier": 2.8, "clipping_norm": clip},
                label="claimed", notes=notes,
                published={"accuracy": accuracy}, training={"optimizer": "sgd", "momentum": 0.0, "lr": 1e-4},
            ))  # fmt: skip
    return found


def _table11() -> list[Row]:
    found = []
    for name, (accuracy, norm) in TABLE11.items():
        rate = {"lr": float(name[3:])} if name.startswith("lr-") else {"lr": 1e-3, "scheduler": SCHEDULERS[name]}
        notes = () if name.startswith("lr-") else ("what the scheduler needs is not in the paper: torch's, else ours",)
        found.append(uncertified(
            "table11", name, f"Table 11, {name}", "mnist", "L", 2.8, notes=notes,
            published={"accuracy": accuracy, "sensitivity": norm},
            training={"optimizer": "adamw", "weight_decay": 1e-3, **rate},
        ))  # fmt: skip
    return found


def _table12() -> list[Row]:
    found = []
    for data, scales in TABLE12.items():
        for scale, (accuracy, norm) in scales.items():
            name, place = f"{data}-w{scale:g}", f"Table 12, {data}, W = {scale:g}"
            published = {"accuracy": accuracy, "sensitivity": norm}
            if data in DATA:
                found.append(uncertified("table12", name, place, data, "L", 2.8, scale=scale, published=published))
            else:
                found.append(absent("table12", name, place, published))
    return found


def _table13() -> list[Row]:
    found = []
    for data, variants in TABLE13.items():
        for letter, (accuracy, norm) in variants.items():
            name, place = f"{data}-{letter.lower()}", f"Table 13, {data}, Auto DP-{letter}"
            published = {"accuracy": accuracy, "sensitivity": norm}
            if data in DATA:
                found.append(uncertified("table13", name, place, data, letter, 2.8, published=published,
                                          notes=(_NOISE_13,)))  # fmt: skip
            else:
                found.append(absent("table13", name, place, published))
    return found
