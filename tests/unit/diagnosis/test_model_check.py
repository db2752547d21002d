"""The look before training: what is found, that nothing moves, that no record is read, that `stop` means refused."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from privet import Training, plan
from privet.clipping.rule import clipping_rule
from privet.diagnosis import estimate as estimates
from privet.diagnosis.estimate import SAFE, estimate, random_rows, repeat_rows
from privet.diagnosis.model_check import examine_model
from privet.diagnosis.plan_check import MUCH_NOISE, examine_optimizer, examine_plan
from privet.errors import PrivetError
from privet.planning import Plan

LOSS = nn.CrossEntropyLoss(reduction="none")
BATCH = torch.randn(8, 4), torch.randint(3, (8,))


class Kept(nn.Module):
    """A linear layer, and a buffer that `write` writes in each forward pass."""

    def __init__(self, write, start=0.0) -> None:
        super().__init__()
        self.linear, self.write = nn.Linear(4, 3), write
        self.register_buffer("kept", torch.full((4,), start))

    def forward(self, x):
        with torch.no_grad():
            self.kept.add_(self.write(x))
        return self.linear(x)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = Centred(), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.inner(x))


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Doubled(nn.Module):
    """Tied, frozen and unused parameters, and a function without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out, self.pair = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3), nn.Bilinear(4, 4, 4)
        self.b.weight = self.a.weight
        self.b.bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        h = self.b(self.a(x))
        return self.out(self.pair(h, h))


class Stepwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(x) * (2.0 if float(x.sum()) > 0 else 3.0)


class OwnNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x).relu()


def broken() -> nn.Module:
    made = nn.Linear(4, 3)
    made.weight.data[0, 0] = math.nan
    return made


def seen(model: nn.Module, batch=BATCH, loss=LOSS) -> set[tuple[str, str]]:
    return {(finding.severity, finding.where) for finding in examine_model(model, loss, batch).findings}


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout()), set()),
        (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)),
         {("stop", "1"), ("stop", "3")}),
        (nn.Sequential(nn.BatchNorm1d(4), OwnNorm(4), nn.Linear(4, 3)), {("stop", "0"), ("stop", "1")}),
        (nn.Sequential(nn.BatchNorm1d(4), Mixed()), {("stop", "0"), ("stop", "1.inner")}),
        (nn.Sequential(nn.BatchNorm1d(4).eval(), nn.Linear(4, 3)), {("warn", "0")}),
        (nn.Sequential(nn.LazyLinear(3)), {("stop", "0")}),
        (nn.Linear(5, 3), {("stop", "model")}),
        (nn.Linear(4, 3).requires_grad_(False), {("stop", "model"), ("note", "weight, bias")}),
        (nn.Linear(4, 3).eval(), {("warn", "model")}),
        (broken(), {("stop", "weight")}),
        (Kept(lambda x: x.mean(0)), {("stop", "kept")}),
        (Kept(lambda x: len(x)), {("stop", "kept")}),
        (Kept(lambda x: 1.0), {("note", "kept")}),
        (Kept(lambda x: 0.0), set()),
        (Doubled(), {("note", "b.bias"), ("note", "a.weight, b.weight"), ("note", "unused"),
                     ("slow", "pair.weight, pair.bias")}),
        (Stepwise(), {("slow", "model")}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_what_is_found(model: nn.Module, found: set[tuple[str, str]]) -> None:
    assert seen(model) == found


def test_half_precision_is_noted() -> None:
    assert ("note", "weight, bias") in seen(nn.Linear(4, 3).bfloat16(), (BATCH[0].bfloat16(), BATCH[1]))


def test_a_loss_over_the_batch_is_found() -> None:
    assert seen(nn.Linear(4, 3), loss=nn.CrossEntropyLoss()) == {("stop", "model")}
    assert seen(nn.Linear(4, 3), loss=lambda out, y: LOSS(out / out.norm(), y)) == {("stop", "model")}


def test_the_gravest_comes_first_and_every_stop_says_the_way_out() -> None:
    model = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.BatchNorm1d(4), Mixed()).eval().train()
    findings = examine_model(model, LOSS, BATCH).findings
    assert [finding.severity for finding in findings] == ["stop", "stop", "note"]
    assert all(finding.way_out for finding in findings[:2])


@pytest.mark.parametrize("model", [Kept(lambda x: x.mean(0)), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))])
def test_nothing_moves(model: nn.Module) -> None:
    before, coins = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    examine_model(model, LOSS, BATCH)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(coins, torch.get_rng_state())


# --- plans ------------------------------------------------------------------------------------------


def made(**more) -> Plan:
    return plan(
        **{
            "delta": 1e-3,
            "dataset_size": 200,
            "batch_size": 20,
            "steps": 20,
            "noise_multiplier": 2.0,
            "solve": "epsilon",
        }
        | more
    )


USERS = torch.arange(200) // 2


@pytest.mark.parametrize(
    ("asked", "records", "users"),
    [
        ({}, 200, None),
        ({}, 201, None),
        ({"adjacency": "add-remove"}, 201, None),
        ({"sampling": "fixed-size", "accountant": "rdp"}, 200, None),
        ({"sampling": "truncated-poisson:cap=40,size=200"}, 200, None),
        ({"sampling": "truncated-poisson:cap=40,size=201", "adjacency": "add-remove"}, 300, None),
        ({"unit": "client"}, 200, None),
        ({"unit": "user"}, 200, None),
        ({"unit": "user", "dataset_size": 100}, 200, USERS),
        ({"unit": "user", "dataset_size": 99}, 200, USERS),
        ({"unit": "user", "dataset_size": 100}, 200, USERS[:-1]),
        ({"method": "auto-linear", "uncertified": True}, 200, None),
    ],
)
def test_a_stop_is_what_training_refuses(asked: dict, records: int, users) -> None:
    p, model = made(**asked), nn.Linear(3, 2)
    dataset = torch.randn(records, 3), torch.zeros(records, dtype=torch.long)
    is_user = p.recipe.budget.unit == "user"
    try:
        Training(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, p, users=users if is_user else None)
        refused = None
    except PrivetError as error:
        refused = str(error)
    stops = [finding for finding in examine_plan(p, records=records, users=users) if finding.severity == "stop"]
    assert len(stops) == (refused is not None)
    for finding in stops:
        assert f"{finding.why} {finding.way_out}" == refused


@pytest.mark.filterwarnings("ignore:delta")
@pytest.mark.parametrize(
    ("asked", "facts", "severity", "words"),
    [
        ({"delta": 0.005}, {}, "warn", "delta=0.005 is not below 1/200"),
        ({"adjacency": "add-remove"}, {}, "note", "the number of records is private"),
        ({}, {"users": USERS}, "note", "one who owns several has less"),
        ({}, {"rows": 8}, "note", "The batch given has 8 rows; the plan expects 20"),
        ({"unit": "client"}, {"rows": 20}, "stop", "protects clients"),
        ({"sampling": "shuffled", "steps": 10}, {}, "note", "by shuffled sampling"),
    ],
)
def test_what_is_said_of_a_plan(asked: dict, facts: dict, severity: str, words: str) -> None:
    assert [finding.severity for finding in examine_plan(made(**asked), **facts) if words in finding.why] == [severity]


def test_a_plan_that_fits_has_no_findings() -> None:
    assert examine_plan(made(), records=200, rows=20, parameters=100) == ()


def test_much_noise_is_noted_from_the_stated_factor_on() -> None:
    p = made()  # noise 2, batch 20: sqrt(d) / 10 times
    edge = int((10 * MUCH_NOISE) ** 2)
    assert examine_plan(p, parameters=edge) == ()
    (finding,) = examine_plan(p, parameters=4 * edge)
    assert "about 20 times" in finding.why
    assert "rule of thumb" in finding.why


def test_optimizers() -> None:
    model = nn.Linear(3, 2)
    assert examine_optimizer(torch.optim.Adam(model.parameters()), model) == ()
    (finding,) = examine_optimizer(torch.optim.AdamW(model.parameters(), weight_decay=0.1), model)
    assert (finding.severity, finding.where) == ("note", "optimizer")
    (finding,) = examine_optimizer(torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1), model)
    assert finding.severity == "stop"


# --- time and memory --------------------------------------------------------------------------------


class Guarded:
    """A dataset whose values must not be used: all NaN, and only the first may be asked for."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int):
        assert index == 0
        words = torch.full((6,), 10**6)
        return {"x": torch.full((4,), math.nan), "words": words}, (torch.tensor(10**6), math.nan)


def test_random_rows_have_the_shapes_and_nothing_else_of_the_records() -> None:
    rows_of = random_rows(Guarded(), {"words": 30, "classes": 7}, nn.Embedding(20, 2))
    inputs, (labels, values) = rows_of(500)
    assert inputs["x"].shape == (500, 4)
    assert bool(inputs["x"].isfinite().all())
    assert inputs["words"].dtype == torch.int64
    assert int(inputs["words"].max()) == 19  # the model's table is smaller than what the facts say
    assert set(labels.tolist()) == set(range(7))
    assert set(values.tolist()) == {0.0, 1.0}


def test_records_that_are_not_pairs_are_refused() -> None:
    with pytest.raises(PrivetError, match="must have examples that are pairs"):
        random_rows((torch.zeros(3, 1),) * 3, {}, nn.Linear(1, 1))


def wide() -> tuple[nn.Module, estimates.Rows]:
    """Activations of 40 kB for each record, and next to no parameters."""
    model = nn.Sequential(nn.Unflatten(1, (1, 100)), nn.Conv1d(1, 100, 1), nn.Tanh(), nn.Flatten(), nn.AvgPool1d(5000))
    return model, repeat_rows((torch.randn(4, 100), torch.tensor([0, 1, 0, 1])))


def test_memory_grows_with_the_records_and_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "LONGEST", 1e9)  # on a busy machine, too, all rows are tried
    model, rows_of = wide()
    free = estimate(model, LOSS, rows_of, batch_size=128, rounds=1)
    assert free.physical is None
    assert free.bytes_each is not None
    assert 40_000 <= free.bytes_each <= 10 * 40_000  # an activation or more, and not a gradient for each weight
    assert free.peak_bytes is not None
    assert free.peak_bytes >= 128 * 40_000
    tight = estimate(model, LOSS, rows_of, batch_size=128, rounds=1, limit=free.peak_bytes // 2)
    assert tight.physical is not None
    assert 8 <= tight.physical < 128
    assert tight.peak_bytes is not None
    assert tight.peak_bytes <= SAFE * (free.peak_bytes // 2)
    assert tight.fits
    assert not estimate(model, LOSS, rows_of, batch_size=128, rounds=1, limit=40_000).fits


def test_the_plans_rule_and_largest_batch_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(estimates, "LONGEST", 1e9)
    monkeypatch.setattr(estimates, "clipping_rule", lambda rule, **_: used.append(rule) or clipping_rule(rule, **_))
    p = made(rule="quantile", batch_size="10 * linear:end=4")
    mean, largest = estimates.mean_and_largest_rate(p)
    assert (mean, largest) == (pytest.approx(0.125), pytest.approx(0.2))
    found = estimate(nn.Linear(4, 3), LOSS, repeat_rows(BATCH), plan=p, rounds=1)
    assert (found.batch_size, found.rows) == (40, 40)
    assert used == ["quantile"]


def test_a_step_that_takes_long_is_tried_on_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "LONGEST", 0.0)
    found = estimate(nn.Linear(4, 3), LOSS, repeat_rows(BATCH), batch_size=1000, rounds=1)
    assert (found.batch_size, found.rows) == (1000, estimates.FIRST)


def test_memory_is_not_guessed_where_torch_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.autograd, "_enable_profiler")
    found = estimate(nn.Linear(4, 3), LOSS, repeat_rows(BATCH), batch_size=8, rounds=1, limit=10)
    assert (found.peak_bytes, found.bytes_each, found.physical, found.fits) == (None, None, None, True)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    assert estimates._container_memory(tmp_path) is None
    (tmp_path / "memory.current").write_text("600\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert estimates._container_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert estimates._container_memory(tmp_path) == 400
    free = estimates.free_memory()
    assert free is None or free > 0
