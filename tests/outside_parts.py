"""Parts as users bring them, by their address: sound ones, careless ones and hostile ones."""

import itertools
import random
from collections.abc import Iterable

import torch

from privet.accounting import spent


class OneGroup:
    """What the rules here share: all parameters together, and a bound of `clip`."""

    def groups(self, names):
        return [list(names)]

    def l2_bound(self, clip, groups):
        return clip


class Careful(OneGroup):
    """A sound rule: half of flat clipping."""

    def scales(self, norms, clip):
        return clip / norms.clamp(min=clip) / 2


class NoOp(OneGroup):
    """Clips nothing."""

    def scales(self, norms, clip):
        return torch.ones_like(norms)


class Louder(OneGroup):
    """The smaller a gradient, the more is made of it: also of those whose squares vanish."""

    def scales(self, norms, clip):
        return torch.full_like(norms, 1e30)


class NotANumber(OneGroup):
    def scales(self, norms, clip):
        return norms * torch.nan


class BatchMedian(OneGroup):
    """Clips to the median norm: of all that it is shown."""

    def scales(self, norms, clip):
        return norms.median() / norms


class Writes(OneGroup):
    """Makes its norms vanish before they could be measured."""

    def scales(self, norms, clip):
        norms.zero_()
        return torch.ones_like(norms)


class TurnsRound(OneGroup):
    def scales(self, norms, clip):
        return torch.full_like(norms, -3.0)


class ByLayer(NoOp):
    """Many groups, none of them clipped."""

    def groups(self, names):
        return [[name] for name in names]


HELD = (Careful, NoOp, Louder, NotANumber, BatchMedian, Writes, TurnsRound, ByLayer)


class Draws(OneGroup):
    def scales(self, norms, clip):
        return torch.rand_like(norms)


class Branches(OneGroup):
    def scales(self, norms, clip):
        return norms if norms[0] > clip else norms / 2


class TakesOut(OneGroup):
    def scales(self, norms, clip):
        return torch.full_like(norms, norms[0].item())


class WrongShape(OneGroup):
    def scales(self, norms, clip):
        return torch.ones(3)


class NoTensor(OneGroup):
    def scales(self, norms, clip):
        return (norms, norms)


class Complex(OneGroup):
    def scales(self, norms, clip):
        return norms * 1j


class Forgets(NoOp):
    """Leaves a parameter out of its groups."""

    def groups(self, names):
        return [list(names)[1:]]


class Endless(NoOp):
    def l2_bound(self, clip, groups):
        return float("inf")


REFUSED = {
    Draws: "random", Branches: "no `if`", TakesOut: "taken out of a tensor", WrongShape: "of shape \\(3,\\)",
    NoTensor: "a tuple for scales", Complex: "complex numbers", Forgets: "into one group",
    Endless: "l2_bound=inf must be finite",
}  # fmt: skip


class Fails(OneGroup):
    """Fails on some records only: a Cholesky factor is there for positive numbers alone."""

    def scales(self, norms, clip):
        torch.linalg.cholesky((5.0 - norms[:1])[None])
        return torch.ones_like(norms)


class Asks(NoOp):
    """Would like to go past its bound, as the papers' rules do."""

    caveat = "because"


class Remembers:
    """A hostile rule with a memory: it moves gradients by the mean of what it is shown, and tells of them loudly."""

    adaptive = True
    statistics_bound = 0.5

    def __init__(self):
        self.count = itertools.count()
        self.heard = []

    def groups(self, names):
        return [list(names)]

    def scales(self, norms, clip):
        return torch.ones_like(norms)

    def l2_bound(self, clip, groups):
        return clip

    def current_clip(self, clip):
        return clip

    def transform(self, name, gradient):
        return 100 * (gradient - gradient.mean(0)) * random.random()  # another answer each time

    def statistics(self, norm, clip):
        return torch.stack([norm * 1000, norm.log()])

    def statistics_noise(self, noise, batch):
        return 10 * noise

    def learn(self, grads, statistics, *, clip, std, batch_size):
        self.heard.append(statistics)
        return dict(grads)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class HalfAdaptive(NoOp):
    adaptive = True
    statistics_bound = 0.0


class Halves:
    """A schedule, not a rule."""

    def values(self, steps):
        return [0.5] * steps


class Cheap:
    """An accountant that is below what is spent."""

    def unsupported_reason(self, step, adjacency):
        return None

    def bounds(self, ledger, delta):
        return 0.0, 1e-3

    def label(self, ledger, delta):
        return "certified"


class Dear(Cheap):
    """One that is above it, and says that it is certified."""

    def bounds(self, ledger, delta):
        found = spent(ledger, delta).epsilon
        return 0.9 * found, 1.5 * found


class Torn(Cheap):
    def bounds(self, ledger, delta):
        return None


class Unnamed(Dear):
    def label(self, ledger, delta):
        return "proven"


class Fussy(NoOp):
    def __init__(self, part=0):
        if not part:
            raise ValueError("part must be given")


def not_a_class(some: Iterable[str]) -> list[str]:
    return list(some)
