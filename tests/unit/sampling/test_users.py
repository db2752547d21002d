"""Users with several records: how many are kept, who they belong to, and which plan may use them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from privet.errors import InvalidValue
from privet.noise.randomness import seeded
from privet.planning import plan
from privet.planning.planned_steps import PlannedSteps
from privet.sampling.loading import physical_batches
from privet.sampling.users import bound_contributions, number_users, user_sampler

IDS = ["ann", "bob", "ann", "cat", "ann", "cat", "ann", "dan"]
PLAN = plan(epsilon=3.0, delta=1e-2, dataset_size=4, sample_rate=0.5, steps=40, unit="user")
ALL = replace(PLAN, steps=PlannedSteps(length=40, sample_rate=1.0))  # what it costs does not matter here


@given(ids=st.lists(st.integers(-3, 8), max_size=60), most=st.integers(1, 5), seed=st.integers(0, 999))
def test_at_most_so_many_are_kept_and_all_who_have_fewer(ids, most, seed):
    kept = bound_contributions(np.array(ids, dtype=np.int64), most=most, randomness=seeded(seed)).tolist()
    assert kept == sorted(set(kept))
    had = Counter(ids)
    assert Counter(ids[index] for index in kept) == {user: min(most, count) for user, count in had.items()}


def test_any_ids_do():
    kinds = [IDS, np.array(IDS), np.array(IDS, dtype=object), [hash(user) for user in IDS], [(user, 1) for user in IDS]]
    for ids in [*kinds, torch.tensor([0, 1, 0, 2, 0, 2, 0, 3]), np.array([9, 8, 9, -7, 9, -7, 9, 0], dtype=np.int32)]:
        codes = number_users(ids)
        assert sorted(Counter(codes.tolist()).values()) == [1, 1, 2, 4]
        assert set(codes.tolist()) == {0, 1, 2, 3}
        assert len(bound_contributions(ids, most=2)) == 6


@pytest.mark.parametrize("ids", [[None, "ann"], [float("nan"), 1.0], [["ann"], ["bob"]], np.ones((2, 2), int), 5])
def test_a_record_without_an_owner_is_refused(ids):
    with pytest.raises(InvalidValue, match="users"):
        number_users(ids)


def test_other_users_do_not_decide_what_is_kept_of_one():
    """Every choice of 1 of ann's 4 records occurs, whoever else is there; 200 draws miss one once in 1e24."""
    for ids in (IDS, [user if user == "ann" else "bob" for user in IDS]):
        mine = {i for seed in range(200) for i in bound_contributions(ids, most=1, randomness=seeded(seed)).tolist()}
        assert {0, 2, 4, 6} <= mine


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_a_chosen_user_gives_up_to_so_many_records_next_to_each_other(most):
    sampler = user_sampler(PLAN, users=IDS, most=most, randomness=seeded(0))
    found = list(sampler)
    assert len(found) == len(sampler) == 40
    users = [[IDS[i] for i in batch.tolist()] for batch in found]
    for batch, names in zip(found, users, strict=True):
        counts = Counter(names)
        assert counts == {name: min(most, IDS.count(name)) for name in counts}
        assert len(set(batch.tolist())) == len(batch)
        owners = sampler.owners(batch).tolist()
        assert owners == sorted(owners)
        assert len(set(owners)) == len(counts)
        assert len(set(zip(owners, names, strict=True))) == len(counts)
    assert len({tuple(sorted(set(names))) for names in users}) > 5  # users come and go
    assert set().union(*(batch.tolist() for batch in found)) == set(range(8))  # all their records are used in time


def test_the_bound_is_that_of_a_whole_user():
    assert user_sampler(PLAN, users=IDS, most=3).l2_bound(0.5) == 1.5
    assert user_sampler(PLAN, users=IDS).l2_bound(0.5) == 0.5


@pytest.mark.parametrize("physical", [2, 3, 5, 100])
def test_pieces_never_part_a_user(physical):
    sampler = user_sampler(ALL, users=IDS, most=2, randomness=seeded(0))
    records, owned = torch.arange(8), [set()]
    for piece in physical_batches(records, sampler, physical=physical):
        names = {IDS[i] for i in piece.indices.tolist()}
        assert len(piece.indices) <= physical
        assert not owned[-1] & names
        owned[-1] |= names
        if piece.is_last:
            assert owned.pop() == set(IDS)
            owned.append(set())
    with pytest.raises(InvalidValue, match="physical=1 must be at least 2"):
        list(physical_batches(records, sampler, physical=1))


def test_nobody_chosen_is_a_step():
    rare = replace(PLAN, steps=PlannedSteps(length=3, sample_rate=1e-6))
    pieces = list(
        physical_batches(torch.arange(8), user_sampler(rare, users=IDS, most=2, randomness=seeded(0)), physical=2)
    )
    assert [(len(piece.data), piece.is_last) for piece in pieces] == [(0, True)] * 3


def test_the_plan_must_be_for_so_many_users():
    user_sampler(PLAN, users=IDS).check(PLAN)
    with pytest.raises(InvalidValue, match=r"users=3 must be the plan's dataset_size=4.*users is public"):
        user_sampler(PLAN, users=IDS[:-1])
    examples = replace(PLAN, recipe=replace(PLAN.recipe, budget=replace(PLAN.recipe.budget, unit="example")))
    with pytest.raises(InvalidValue, match="unit='example' protects records"):
        user_sampler(examples, users=IDS)
    with pytest.raises(InvalidValue, match="not the plan's"):
        user_sampler(PLAN, users=IDS).check(ALL)
    with pytest.raises(InvalidValue, match="most=0"):
        user_sampler(PLAN, users=IDS, most=0)
