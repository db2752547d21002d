"""Every way to cut a dataset gives each record one owner; skew and owners are what they say."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from privet.data.task import Task
from privet.errors import InvalidValue
from privet.federated.partition import partition, record_labels, registry
from tiny_task import task

WAYS = ("iid", "dirichlet:alpha=0.2", "dirichlet:alpha=50")


def owned(users: list[int]) -> Task:
    x, y = torch.zeros(len(users), 2), torch.zeros(len(users), dtype=torch.int64)
    return Task(
        name="owned", train=(x, y), held_out=(x, y), evaluation="none", model="linear", users=torch.tensor(users)
    )


@pytest.mark.parametrize("way", WAYS)
@given(clients=st.integers(1, 40), seed=st.integers(0, 5))
def test_each_record_has_one_owner(way: str, clients: int, seed: int) -> None:
    parts = partition(task(), clients, way=way, seed=seed)
    assert len(parts) == clients
    assert sorted(torch.cat(parts).tolist()) == list(range(200))


def test_iid_parts_are_of_one_size_and_differ_by_seed() -> None:
    parts = partition(task(), 7)
    assert {len(part) for part in parts} == {28, 29}
    assert not torch.equal(parts[0], partition(task(), 7, seed=1)[0])
    assert torch.equal(parts[0], partition(task(), 7)[0])


def test_a_small_alpha_gives_clients_of_few_classes() -> None:
    """The share of a client's largest class, in the mean over clients: near a half if alike, near 1 if skewed."""

    def largest(alpha: float) -> float:
        labels = record_labels(task())
        parts = [p for p in partition(task(), 10, way=f"dirichlet:alpha={alpha}") if len(p)]
        return float(np.mean([np.bincount(labels[p.numpy()]).max() / len(p) for p in parts]))

    assert largest(100.0) < 0.65 < 0.85 < largest(0.05)


def test_each_user_is_a_client() -> None:
    parts = partition(owned([5, 3, 5, 9, 3, 5]), 3, way="user")
    assert [part.tolist() for part in parts] == [[1, 4], [0, 2, 5], [3]]


@pytest.mark.parametrize(
    ("clients", "way", "says"),
    [
        (2, "user", "clients=2 must be 3"),
        (7, "iid", "clients=7 must be at most 6"),
        (2, "nobody", "nobody"),
        (2, "dirichlet:alpha=0", "alpha=0 must be finite and > 0"),
        (0, "iid", "clients=0 must be a whole number"),
    ],
)
def test_what_cannot_be_cut_is_refused(clients: int, way: str, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        partition(owned([5, 3, 5, 9, 3, 5]), clients, way=way)


def test_users_are_asked_for() -> None:
    with pytest.raises(InvalidValue, match="has none"):
        partition(task(), 3, way="user")


def test_the_ways_are_these() -> None:
    assert sorted(registry.names()) == ["dirichlet", "iid", "user"]
