"""Privacy for users who own several records: what one user can do to a step, and which accounting covers it.

The unit is the user: neighbours differ in all records of one user. Plan with unit="user" and size = number of users.

- `bounded(users, most=1)` keeps one record of each user for good. A user is then an example.
- `user_sampler(plan, users=...)` tosses the plan's coins for users, anew at each step. A chosen user gives up to `most`
  records, chosen anew. If the engine averages or sums the gradients of one owner and clips the result to C, the user is
  the example and the norm bound is C. If every record is clipped to C by itself, it is `most` * C.

In both, noise goes by that norm bound, and the plan's accounting holds word for word with "user" for "record". To keep
k records of each user with `bounded(most=k)` and then sample records one by one is another mechanism: a user is there
in part, with a chance near k * rate, and no accountant here prices it. That is why `sampler` refuses a plan for users.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet import _check
from privet.errors import InvalidValue
from privet.noise.randomness import Randomness
from privet.planning import Plan
from privet.sampling.samplers import Indices, Sampler

UserIds = Sequence[Hashable] | NDArray[np.generic] | Tensor


def bound_contributions(users: UserIds, *, most: int, randomness: Randomness | None = None) -> Tensor:
    """Indices of the records that are kept: at most `most` of each user, chosen uniformly, in increasing order.

    What is kept of one user does not depend on any other, so neighbours differ in the records of one user, at most
    `most` of them, after it as before.

    >>> len(bound_contributions(["ann", "bob", "ann", "ann"], most=2))
    3
    """
    _check.whole(most=most)
    codes = number_users(users)
    everyone, numbers = np.arange(len(codes)), (randomness or Randomness()).numpy_generator()
    return torch.from_numpy(np.sort(_limit_per_owner(everyone, codes, most, numbers)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserSampler:
    """Users by the coins of `over`; of each chosen user up to `most` records, chosen uniformly at this step.

    Gives one tensor of record indices for each step, the records of one user next to each other. `codes` numbers the
    user of each record; `order` and `begins` list the records user by user.
    """

    over: Sampler
    most: int
    codes: Indices
    order: Indices
    begins: Indices

    def __iter__(self) -> Iterator[Tensor]:
        for users in self.over:
            yield torch.from_numpy(self._draw_records(users.numpy()))

    def __len__(self) -> int:
        return len(self.over)

    @property
    def noise_is_secret(self) -> bool:
        return self.over.noise_is_secret

    def check(self, plan: Plan) -> None:
        """Raise unless these are the batches that `plan` was priced for."""
        self.over.check(plan)

    def owners(self, indices: Tensor) -> Tensor:
        """For each record of a batch or piece, the number of its user there: 0, 0, 1, 2, 2, ..."""
        codes = torch.from_numpy(self.codes)[indices]
        positions: Tensor = torch.unique_consecutive(codes, return_inverse=True)[1]
        return positions

    def l2_bound(self, clip: float) -> float:
        """How far one user moves the sum if every record is clipped to `clip` by itself: most * clip."""
        _check.positive(clip=clip)
        return self.most * clip

    def split(self, indices: Tensor, most: int) -> tuple[Tensor, ...]:
        """The batch in pieces of at most `most` records that never part the records of one user."""
        if most < self.most:
            raise InvalidValue(
                f"physical={most} must be at least {self.most}, the records of one user. They are clipped together. "
                "Use larger pieces, or fewer records per user."
            )
        sizes, held = [], 0
        for count in torch.unique_consecutive(self.owners(indices), return_counts=True)[1].tolist():
            if held + count > most:
                sizes.append(held)
                held = 0
            held += count
        return tuple(torch.split(indices, [*sizes, held]))

    def _draw_records(self, users: Indices) -> Indices:
        counts = self.begins[users + 1] - self.begins[users]
        owner = np.repeat(np.arange(len(users)), counts)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        records = self.order[np.repeat(self.begins[users], counts) + within]
        return _limit_per_owner(records, owner, self.most, self.over.randomness.numpy_generator())


def user_sampler(
    plan: Plan, *, users: UserIds, most: int = 1, start: int = 0, randomness: Randomness | None = None
) -> UserSampler:
    """The sampler of a plan for users; `users` holds the owner of each record.

    >>> from privet.planning import plan
    >>> p = plan(epsilon=2.0, delta=1e-2, unit="user", dataset_size=3, sample_rate=1.0, steps=5)
    >>> found = user_sampler(p, users=["ann", "bob", "ann", "eve"])
    >>> [len(batch) for batch in found]
    [3, 3, 3, 3, 3]
    """
    _check.whole(most=most)
    if plan.recipe.budget.unit == "example":
        raise InvalidValue(
            "unit='example' protects records, here users are sampled. Plan with unit='user', size = number of users."
        )
    codes = number_users(users)
    begins = np.concatenate(([0], np.cumsum(np.bincount(codes)))).astype(np.int64)
    over = Sampler(dataset_size=len(begins) - 1, steps=plan.steps, start=start, randomness=randomness or Randomness())
    over.check(plan)
    order = np.argsort(codes, kind="stable")
    return UserSampler(over=over, most=most, codes=codes, order=order, begins=begins)


def number_users(users: UserIds) -> Indices:
    """The users as 0, 1, 2, ...: one number for each record."""
    given = users.numpy(force=True) if isinstance(users, Tensor) else users
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iu":
        return np.unique(given, return_inverse=True)[1].astype(np.int64)
    codes: dict[Hashable, int] = {}
    try:
        found = [codes.setdefault(user, len(codes)) for user in given]
    except TypeError:
        raise InvalidValue("users must be one id for each record: numbers or words. Give a list of ids.") from None
    if None in codes or any(user != user for user in codes):
        raise InvalidValue(
            "users has a record without an owner. Its owner would not be protected. Name one, or drop it."
        )
    return np.array(found, dtype=np.int64)


def _limit_per_owner(records: Indices, owner: Indices, most: int, numbers: np.random.Generator) -> Indices:
    shuffled = numbers.permutation(len(records))
    by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
    sorted_owner = owner[by_owner]
    first = np.searchsorted(sorted_owner, sorted_owner)  # where this owner's records begin
    return records[by_owner[np.arange(len(records)) - first < most]]
