"""The noise that reaches the weights, through the whole stack. Each test states how often right noise fails it."""

import pytest
import torch
from scipy import stats
from torch import nn

from engine_oracle import slow_sum
from privet import Training, plan
from privet.noise.randomness import seeded

ALARM = 1e-6  # how often one statistic raises a false alarm
FRESH = 1e-9  # the same, where nothing is seeded: it is new in every run of the tests
LOSS = nn.CrossEntropyLoss(reduction="none")
SIZE, STEPS, NOISE, CLIP = 40, 6, 1.3, 0.4
LABELS = torch.zeros(SIZE, dtype=torch.int64)


class Wide(nn.Module):
    """A hundred thousand parameters; an input of zeros moves none of them."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2000, 50, bias=False)

    def forward(self, x):
        return self.inner(x)


def steps_of(*, x, sample_rate=1.0, **given):
    """What each step took off the weights, times the planned batch, by plain SGD with learning rate 1."""
    asked = {key: given.pop(key) for key in ("rule", "adjacency") if key in given}
    planned = plan(
        delta=1e-3, dataset_size=SIZE, sample_rate=sample_rate, steps=STEPS, noise_multiplier=NOISE, clipping_norm=CLIP,
        **asked, solve="epsilon"
    )  # fmt: skip
    torch.manual_seed(0)
    model = Wide()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=1.0), (x, LABELS), planned, **given)
    found, before = [], model.inner.weight.detach().clone()

    def after(*_):
        nonlocal before
        now = model.inner.weight.detach().clone()
        found.append((before - now).double() * sample_rate * SIZE)
        before = now

    training.optimizer.register_step_post_hook(after)
    for inputs, targets in training:
        training.step(LOSS(model(inputs), targets))
    return torch.stack(found)


def right_spread(drawn, std, significance=ALARM):
    """sum (x / std)^2 is chi-square."""
    low, high = stats.chi2(drawn.numel()).ppf([significance / 2, 1 - significance / 2])
    return bool(low <= float((drawn / std).square().sum()) <= high)


ZEROS = torch.zeros(SIZE, 2000)


@pytest.mark.parametrize(
    ("given", "std"),
    [
        ({}, NOISE * CLIP),
        ({"max_physical_batch_size": 3}, NOISE * CLIP),  # one noise for a step, however many pieces
        ({"sample_rate": 0.5}, NOISE * CLIP),
        ({"sample_rate": 0.5, "secure_noise": True}, NOISE * CLIP),  # a thousandth more, which is not seen here
        ({"sample_rate": 1e-9}, NOISE * CLIP),  # empty batches
        ({"sample_rate": 0.5, "augmentations": 2, "max_physical_batch_size": 4}, NOISE * CLIP),
        ({"adjacency": "replace-one"}, 2 * NOISE * CLIP),
        ({"rule": "per_layer"}, NOISE * CLIP),
        ({"rule": "quantile:count_noise=2.6,speed=1e-9"}, NOISE * CLIP / (1 - 0.5**2) ** 0.5),
    ],
    ids=str,
)
def test_the_weights_get_noise_of_the_planned_size(given, std):
    """Right noise fails once in a million; noise that is 1 % off is caught."""
    drawn = steps_of(x=ZEROS, randomness=seeded(11), **given)
    assert right_spread(drawn, std)
    assert not right_spread(drawn, std * 1.01)
    assert not right_spread(drawn, std * 0.99)


def test_the_noise_is_on_top_of_the_clipped_sum():
    """With everyone in the batch, what is left without the oracle's sum is noise of the planned size."""
    torch.manual_seed(5)
    x = torch.randn(1, 2000) + 0.5 * torch.randn(SIZE, 2000)  # alike, so that gradients add up
    torch.manual_seed(0)
    model = Wide()
    total = slow_sum(model, LOSS, (x, LABELS), "flat", CLIP)["inner.weight"]
    drawn = steps_of(x=x, randomness=seeded(11), max_physical_batch_size=7)[0]
    assert right_spread(drawn - total, NOISE * CLIP)
    along = total / total.norm()  # where the sum can be told from noise
    off = stats.norm.isf(ALARM / 2) * NOISE * CLIP
    assert abs(float(((drawn - total) * along).sum())) < off < float(total.norm()) / 2
    assert float((drawn * along).sum()) > off


def test_every_step_and_every_run_has_noise_of_its_own():
    """Correlations of independent noises are normal with deviation 1 / sqrt(n); no two may be the same draw."""
    flat = torch.cat([steps_of(x=ZEROS, sample_rate=0.5).flatten(1), steps_of(x=ZEROS, sample_rate=0.5).flatten(1)])
    assert right_spread(flat, NOISE * CLIP, FRESH)
    correlations = torch.corrcoef(flat)
    pairs = correlations[torch.triu(torch.ones_like(correlations), 1) > 0]
    assert float(pairs.abs().max()) * flat.shape[1] ** 0.5 < stats.norm.isf(FRESH / 2 / len(pairs))


def test_a_small_task_is_learnt():
    """Ten blobs in twenty dimensions; forty runs reached 99.5 % or more."""
    g = torch.Generator().manual_seed(2)
    centres = torch.randn(10, 20, generator=g) * 1.5
    y = torch.randint(10, (4000,), generator=g)
    x = centres[y] + torch.randn(4000, 20, generator=g)
    planned = plan(epsilon=2.0, delta=1e-5, dataset_size=3000, batch_size=300, steps=60)
    model = nn.Linear(20, 10)
    training = Training(
        model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9), (x[:3000], y[:3000]), planned, ema_decay=0.9
    )
    for inputs, targets in training:
        training.step(LOSS(model(inputs), targets))
    assert training.spent().epsilon <= 2.0
    with torch.no_grad(), training.ema_weights():
        assert float((model(x[3000:]).argmax(1) == y[3000:]).float().mean()) > 0.9
