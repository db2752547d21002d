"""Ranks make the steps of one process; what they do not share, or what fails on one, stops all of them."""

import os
import socket
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import nn

from privet import Training, _files, plan
from privet.clipping.clipped_sum import ClippedSum
from privet.clipping.rule import bounded, clipping_rule
from privet.errors import BudgetExceeded, InvalidValue, Unsupported
from privet.ledger.account import issue_uncharged
from privet.ledger.reading import NAME, read_ledger
from privet.noise import gaussian, release as engine_release
from privet.noise.gaussian import std_per_rank
from privet.noise.randomness import seeded
from privet.training import distributed
from privet.training.loop_watch import LoopGuard
from privet.training.processes import checksum, group
from privet.training.resume import resume, save
from ranks import fine, on_ranks

LOSS = nn.CrossEntropyLoss(reduction="none")
SIZE = 60
G = torch.Generator().manual_seed(3)
X, Y = torch.randn(SIZE, 4, generator=G, dtype=torch.float64), torch.randint(3, (SIZE,), generator=G)
USERS = [f"user {i % 30}" for i in range(SIZE)]


def a_plan(**given):
    amount = {} if "sample_rate" in given else {"batch_size": 12}
    return plan(**{"delta": 1e-3, "dataset_size": SIZE, "steps": 6, "noise_multiplier": 0.7, "clipping_norm": 0.5,
                "solve": "epsilon",
                   **amount, **given})  # fmt: skip


PLAN = a_plan()


def a_model(seed=1):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    own = torch.Generator().manual_seed(seed)  # torch's own is shared by the threads that stand for ranks
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.rand(p.shape, generator=own, dtype=p.dtype) - 0.5)
    return model


def adam(model, lr=0.05):
    return torch.optim.Adam(model.parameters(), lr=lr)


def a_training(group=None, planned=PLAN, dataset=(X, Y), seed=1, lr=0.05, **given):
    model = a_model(seed)
    return Training(model, adam(model, lr), dataset, planned, group=group, **given)


def run(training, most=None):
    """The weights at the end, and how often the loop went round."""
    rounds = 0
    for x, y in training:
        rounds += 1
        training.step(LOSS(training.model(x), y))
        if training.steps_done == most:
            break
    return weights(training), rounds


def weights(training):
    return torch.cat([p.detach().flatten() for p in training.model.parameters()]).clone()


@pytest.fixture
def no_noise(monkeypatch):
    def average(grads, *, divisor, **_):
        return {name: grad / divisor for name, grad in grads.items()}

    monkeypatch.setattr(engine_release, "add_noise", average)


@pytest.fixture
def drawn(monkeypatch):
    """What each draw of noise gave, in their order; tests may put other words between."""
    seen, add_noise = [], gaussian.add_noise

    def noted(grads, **given):
        found = add_noise(grads, **given)
        seen.append(checksum(list(found.values())))
        return found

    monkeypatch.setattr(engine_release, "add_noise", noted)
    return seen


# --- one step of many is one step -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "planned", "given"),
    [
        (2, {"sample_rate": 1.0}, {}),
        (3, {}, {"max_physical_batch_size": 2}),
        (3, {"batch_size": 2}, {}),  # often fewer records than ranks, and often none
        (2, {"batch_size": 2}, {"max_physical_batch_size": 1}),
        (2, {}, {"augmentations": 2, "max_physical_batch_size": 4}),
        (2, {}, {"workers": 1, "max_physical_batch_size": 3}),
        (2, {"sampling": "truncated-poisson:cap=30,size=60"}, {}),
        (
            3,
            {"sampling": "fixed-size", "adjacency": "replace-one", "accountant": "rdp"},
            {"max_physical_batch_size": 5},
        ),
        (2, {"sampling": "shuffled"}, {}),
        (3, {"unit": "user", "dataset_size": 30}, {"users": USERS, "max_physical_batch_size": 2}),
        (2, {"rule": "quantile"}, {"max_physical_batch_size": 2}),
        (2, {"rule": "adaclip"}, {}),
        (2, {"rule": "per_layer"}, {"ema_decay": 0.9}),
    ],
    ids=str,
)
def test_without_noise_many_ranks_make_the_weights_of_one(no_noise, size, planned, given):
    """In double precision, to 12 digits; on every rank the same bits, in as many rounds."""
    p = a_plan(**planned)
    alone, _ = run(a_training(planned=p, randomness=seeded(7, size, 0), **given))  # the coins that the group tosses
    told = fine(on_ranks(size, lambda g: run(a_training(g, p, seed=g.rank + 1, randomness=seeded(7), **given))))
    assert all(torch.equal(told[0][0], found) for found, _ in told)
    assert len({rounds for _, rounds in told}) == 1
    torch.testing.assert_close(told[0][0], alone, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(alone, weights(a_training()))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["flat", "quantile", "adaclip"])
@pytest.mark.parametrize("secure", [False, True])
def test_with_noise_all_ranks_have_the_same_bits_and_rules_learn_the_same(rule, secure):
    def work(g):
        training = a_training(g, a_plan(rule=rule), seed=g.rank, secure_noise=secure, ema_decay=0.9)
        found, _ = run(training)
        learnt = list(training.rule.state_dict().values()) if rule != "flat" else []
        mean = torch.cat([m.flatten() for m in training.average.mean.values()])
        return [found, mean, *(torch.as_tensor(v).flatten() for v in learnt)]

    one, other = fine(on_ranks(2, work))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert len(one) > 2 or rule == "flat"
    again, _ = fine(on_ranks(2, work))
    assert not torch.equal(one[0], again[0])  # private noise is never the same


def test_a_seeded_run_is_the_same_again_and_its_ranks_draw_different_noise(drawn):
    p = a_plan(sample_rate=1e-9)  # nobody takes part: what a rank adds is its noise
    fine(on_ranks(2, lambda g: run(a_training(g, p, randomness=seeded(7)))[0]))
    assert len(set(drawn)) == len(drawn) == 2 * 6
    one = fine(on_ranks(2, lambda g: run(a_training(g, randomness=seeded(7)))[0]))
    two = fine(on_ranks(2, lambda g: run(a_training(g, randomness=seeded(7)))[0]))
    assert torch.equal(one[0], two[1])


@pytest.mark.parametrize("world", [2, 3, 5, 7, 48, 1000, 12345])
@pytest.mark.parametrize("std", [0.1, 1.0, 1 / 3, 7e-5, 2e9])
def test_shares_of_noise_add_up_to_all_of_it_and_hardly_more(world, std):
    whole = Fraction(std_per_rank(std, world)) ** 2 * world
    assert Fraction(std) ** 2 <= whole <= Fraction(std) ** 2 * (1 + Fraction(1, 10**14))


def test_a_part_that_is_lent_is_alone_in_its_piece_and_every_record_is_in_one_part():
    class Whole:
        def __iter__(self):
            return iter([torch.arange(n) for n in range(20)])

        def split(self, indices, most):
            return torch.split(indices, most)

    for size in (2, 3, 5):
        for most in (None, 1, 2, 3):
            parts = [distributed.RankShard(on, most).rebind(Whole()) for on in on_ranks(size, lambda g: g)]
            for n, pieces in enumerate(zip(*parts, strict=True)):
                cut = [piece.split(most) if most else (piece,) for piece in pieces]
                assert len({len(c) for c in cut}) == 1
                lent = [part.next_turn(is_last=True) for part in parts]
                assert len({turn.sample for turn in lent}) == 1
                kept = [c[:-1] if turn.is_padding else c for c, turn in zip(cut, lent, strict=True)]
                assert all(len(c[-1]) == 1 for c, turn in zip(cut, lent, strict=True) if turn.is_padding)
                assert sorted(i for c in kept for piece in c for i in piece.tolist()) == list(range(n))


# --- one ledger -------------------------------------------------------------------------------------


def test_a_step_is_charged_once_and_before_any_rank_draws(tmp_path, monkeypatch, drawn):
    sync = _files.sync
    monkeypatch.setattr(_files, "sync", lambda *a: (sync(*a), drawn.append("charge"))[0])

    def work(g):
        with a_training(g, out=tmp_path / "a") as training:
            drawn.clear()
            g.any(False)
            run(training)
            return training.steps_done, training.spent(), training.position is None

    one, other = fine(on_ranks(2, work))
    said = ["charge" if word == "charge" else "draw" for word in drawn]
    assert said == ["charge", *["charge", "draw", "draw"] * 6, "charge"]  # first and last: what is known of the loop
    assert one[:2] == other[:2]
    assert (one[0], replace(one[1], assumptions=())) == (6, PLAN.guarantee)
    assert "checked in 6 of 6 steps" in one[1].assumptions[0]
    assert (one[2], other[2]) == (False, True)
    assert read_ledger(tmp_path / "a").ledger.steps == 6


def test_reserved_steps_are_told_to_all_ranks(tmp_path):
    def work(g):
        with a_training(g, out=tmp_path / "a", steps_per_line=4) as training:
            run(training, most=1)
            return training.steps_done, training.spent().epsilon

    one, other = fine(on_ranks(2, work))
    assert one == other
    assert one[1] > fine(on_ranks(2, lambda g: (t := a_training(g), run(t, most=1), t.spent().epsilon)[2]))[0]


def test_a_line_that_cannot_be_written_stops_every_rank_before_noise(tmp_path, monkeypatch, drawn):
    def full(*_):
        raise OSError(28, "No space left on device")

    write_all = _files.write_all

    def work(g):
        with a_training(g, out=tmp_path / "a") as training:
            run(training, most=2)
            before = weights(training)
            if g.is_first:
                monkeypatch.setattr(_files, "write_all", full)
            with pytest.raises(InvalidValue, match="No space left") as told:
                run(training)
            if g.is_first:
                monkeypatch.setattr(_files, "write_all", write_all)
            return str(told.value), torch.equal(weights(training), before)

    one, other = fine(on_ranks(2, work))
    assert other == (f"rank 0: {one[0]}".rstrip("."), True)
    assert one[1]
    assert len(drawn) == 2 * 2


def test_the_budget_ends_on_every_rank(tmp_path):
    def work(g):
        training = a_training(g)
        run(training)
        assert run(training)[1] == 0
        with pytest.raises(BudgetExceeded, match="beyond the plan's 6"):
            training.step(LOSS(training.model(X), Y))
        with pytest.raises(BudgetExceeded, match="beyond the plan's 6"):
            training._account.charge(6)
        return training.steps_done

    assert fine(on_ranks(2, work)) == [6, 6]


def test_a_folder_that_has_a_ledger_is_refused_on_every_rank(tmp_path):
    fine(on_ranks(2, lambda g: a_training(g, out=tmp_path / "a").close()))
    told = on_ranks(2, lambda g: a_training(g, out=tmp_path / "a"))
    assert all(isinstance(error, InvalidValue) and "is there already" in str(error) for error in told)
    assert str(told[1]).startswith("rank 0: ")


# --- ranks that come apart --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("plan", lambda r: {"planned": a_plan(noise_multiplier=0.7 + 0.1 * r)}),
        ("dataset", lambda r: {"dataset": (X.roll(r, 0), Y)}),
        ("dataset", lambda r: {"dataset": (X, Y.roll(r, 0))}),
        ("optimizer", lambda r: {"lr": 0.1 * (r + 1)}),
        ("randomness", lambda r: {"randomness": seeded(r)}),
        ("settings", lambda r: {"max_physical_batch_size": 2 + r}),
        ("settings", lambda r: {"secure_noise": bool(r)}),
        ("settings", lambda r: {"non_private_preprocessing": "counted" * r, "uncertified": True}),
        ("settings", lambda r: {"planned": a_plan(unit="user", dataset_size=30), "users": USERS[r:] + USERS[:r]}),
    ],
)
def test_ranks_that_begin_differently_are_refused_before_there_is_a_ledger(tmp_path, name, given):
    told = on_ranks(2, lambda g: a_training(g, out=tmp_path / "a", **given(g.rank)))
    assert all(isinstance(error, InvalidValue) and str(error).startswith(f"{name} is not the same") for error in told)
    assert not (tmp_path / "a").exists()


def test_another_model_on_one_rank_is_refused():
    def work(g):
        model = nn.Linear(4, 3).double() if g.rank else nn.Linear(4, 3, bias=False).double()
        return Training(model, adam(model), (X, Y), PLAN, group=g)

    assert all("model is not the same" in str(error) for error in on_ranks(2, work))


def test_weights_that_come_apart_stop_every_rank(monkeypatch):
    monkeypatch.setattr(distributed, "EVERY", 2)

    def work(g):
        training = a_training(g)
        for x, y in training:
            training.step(LOSS(training.model(x), y))
            if g.rank:
                training.optimizer.param_groups[0]["lr"] *= 0.5  # a scheduler on one rank only
        return training.steps_done

    told = on_ranks(2, work)
    assert all("model is not the same on all ranks at step 2" in str(error) for error in told)


def test_samples_that_come_apart_stop_every_rank_before_noise(monkeypatch, drawn):
    original = distributed.sampling_randomness
    monkeypatch.setattr(distributed, "sampling_randomness", lambda r, g, n: (original(r, g, n), seeded(g.rank))[1])
    told = on_ranks(2, lambda g: run(a_training(g)))
    assert all("sample is not the same on all ranks at step 0" in str(error) for error in told)
    assert not drawn


def test_what_fails_on_one_rank_fails_on_all_in_its_own_words():
    def work(g):
        def do():
            if g.rank == 1:
                raise Unsupported("x=1 cannot be. Why. What to do.")
            return [g.rank]

        return g.run_on_first(do, 1)

    told = on_ranks(3, work)
    assert all(type(error) is Unsupported for error in told)
    assert [str(error).startswith("rank 1: x=1 cannot be") for error in told] == [True, False, True]

    def other(g):
        return g.run_on_first(lambda: [][0] if g.rank == 0 else [1], 1)

    told = on_ranks(2, other)
    assert type(told[0]) is IndexError
    assert isinstance(told[1], InvalidValue)
    assert "rank 0 failed: IndexError: list index out of range" in str(told[1])


@pytest.mark.parametrize(("is_checked", "told_first"), [(False, "gone"), (True, "rank 1: losses=(1,) must be one for")])
def test_a_rank_that_fails_alone_takes_the_others_with_it(monkeypatch, is_checked, told_first):
    monkeypatch.setattr(LoopGuard, "wants_check", lambda _: is_checked)

    def work(g):
        training = a_training(g)
        for x, y in training:
            training.step(LOSS(training.model(x), y)[: None if g.is_first else 1])
        return training.steps_done

    told = on_ranks(2, work)
    assert isinstance(told[0], InvalidValue)
    assert told_first in str(told[0])
    assert "one for each of the" in str(told[1])


def test_ranks_can_agree_to_stop():
    assert fine(on_ranks(3, lambda g: (g.any(g.rank == 2), g.any(False)))) == [(True, False)] * 3


# --- stopping and going on --------------------------------------------------------------------------


def parts(seed=1):
    model = a_model(seed)
    optimizer = adam(model)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (1, 2), (3, 1)])
def test_a_run_goes_on_with_as_many_ranks_as_there_are(tmp_path, no_noise, before, after):
    """Without noise and with full batches, the weights of an unbroken run."""
    p = a_plan(sample_rate=1.0, rule="quantile")

    def begin(g):
        model, optimizer, scheduler = parts()
        with Training(model, optimizer, (X, Y), p, out=tmp_path / "a", group=g, ema_decay=0.9) as training:
            for x, y in training:
                training.step(LOSS(model(x), y))
                scheduler.step()
                if training.steps_done == 3:
                    break
            return save(training, scheduler=scheduler)

    def go_on(g):
        model, optimizer, scheduler = parts(seed=5 + (g.rank if g else 0))
        out = tmp_path / "a" if g is None or g.is_first else "/nowhere"  # only rank 0 needs to see the folder
        given = {"out": out, "scheduler": scheduler, "group": g, "ema_decay": 0.9}
        with resume(model, optimizer, (X, Y), p, **given) as training:
            assert training.steps_done == 3
            for x, y in training:
                training.step(LOSS(model(x), y))
                scheduler.step()
            return weights(training), training.steps_done, training.rule.state_dict(), scheduler.get_last_lr()

    def on(count, work):
        return fine(on_ranks(count, work)) if count > 1 else [work(None)]

    saved = on(before, begin)
    assert len(saved[0]) == 64
    assert set(saved[1:]) <= {""}
    found = on(after, go_on)
    assert all(torch.equal(found[0][0], one[0]) and found[0][1:] == one[1:] for one in found)
    model, optimizer, scheduler = parts()
    whole = Training(model, optimizer, (X, Y), p)
    for x, y in whole:
        whole.step(LOSS(model(x), y))
        scheduler.step()
    torch.testing.assert_close(found[0][0], weights(whole), rtol=1e-11, atol=1e-11)
    assert read_ledger(tmp_path / "a").ledger.steps == 6


def test_a_damaged_ledger_is_refused_on_every_rank(tmp_path):
    fine(on_ranks(2, lambda g: (t := a_training(g, out=tmp_path / "a"), run(t, most=3), save(t), t.close())))
    lines = (tmp_path / "a" / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / "a" / NAME).write_bytes(b"".join(lines[:2]))

    def work(g):
        model, optimizer, _ = parts()
        return resume(model, optimizer, (X, Y), PLAN, out=tmp_path / "a", group=g)

    told = on_ranks(2, work)
    assert all(isinstance(error, InvalidValue) and NAME in str(error) for error in told)
    model, optimizer, _ = parts()
    with pytest.raises(InvalidValue, match=NAME):
        resume(model, optimizer, (X, Y), PLAN, out=tmp_path / "a")


# --- joining, and what is refused -------------------------------------------------------------------


def test_unsound_rules_are_refused():
    own = plan(
        delta=1e-3, dataset_size=SIZE, batch_size=12, steps=3, epsilon=2.0, method="auto-linear", uncertified=True
    )
    told = on_ranks(2, lambda g: a_training(g, own, uncertified=True))
    assert all(isinstance(error, Unsupported) and "Train it in one process" in str(error) for error in told)


def test_one_of_many_processes_must_be_in_the_group(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidValue, match="the budget would be spent once for each"):
        a_training()
    monkeypatch.setenv("WORLD_SIZE", "1")
    a_training()


def test_a_process_that_is_alone_has_a_group_of_one(monkeypatch):
    assert group().size == 1
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert group().size == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' must be a whole number"),
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT is not set"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{free}"}, "group: another rank"),
    ],
)
def test_an_environment_that_is_half_there_or_a_silent_peer_is_one_line(monkeypatch, given, match):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name, value in given.items():
        monkeypatch.setenv(name, value.replace("{free}", port))
    with pytest.raises(InvalidValue, match=match) as told:
        group(timeout=1.0)
    assert "\n" not in str(told.value)
    assert os.environ["WORLD_SIZE"]


def test_checksums_tell_tensors_apart():
    one = torch.arange(6.0)
    assert checksum([one]) == checksum([one.clone()]) == checksum([one[:3], one[3:]])
    assert checksum([one]) != checksum([one.flip(0)])
    assert checksum([torch.zeros(2, 3).T]) == checksum([torch.zeros(3, 2)])
    assert checksum([torch.ones(3, dtype=torch.bfloat16), torch.tensor(2), torch.zeros(0, 3)])


def test_a_sum_over_ranks_that_overflows_is_refused(monkeypatch):
    monkeypatch.setattr(engine_release, "add_noise", lambda *_, **__: {"w": torch.tensor([3e38])})
    rule, step = bounded(clipping_rule("flat")), PLAN.steps[0]
    total = ClippedSum(
        grads={"w": torch.zeros(1)}, l2_bound=step.clipping_norm, raw_norms=torch.zeros(0), raw_batch_size=0
    )

    def work(g):
        releaser = engine_release.releaser_for(rule, total.grads, randomness=seeded(1), adjacency="zero-out", ranks=g)
        return releaser.release(total, issue_uncharged(step), batch_size=1.0)

    assert all("not finite" in str(error) for error in on_ranks(2, work))
