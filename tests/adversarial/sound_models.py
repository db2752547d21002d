"""Sound loops: models, options of Training, and what may happen between two steps."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from adversarial.replay import BATCH, SIZE, STEPS, Loops, Scene, a_plan
from adversarial.unsound_inputs import each

LOOPS = Loops()


def network(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), *more, nn.Linear(5, 3))


# --- models -----------------------------------------------------------------------------------------


@LOOPS.body(model=lambda: network(nn.Dropout(0.3)), is_drawn=True)
def dropout(m, x, y):
    return each(m(x), y)


@LOOPS.body(model=lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.ReLU(),
                                        nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(27, 3)))  # fmt: skip
def convolution(m, x, y):
    return each(m(x), y)


@LOOPS.body(is_exact=False)
def mixed_precision(m, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = m(x)
    return each(out.float(), y)


@LOOPS.body(model=network, is_exact=False)
def mixed_precision_of_losses_too(m, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return each(m(x), y)


def tokens(x, y):
    """Eight tokens of ten for each record; no padding."""
    return (x.repeat(1, 2) * 3).round().long().clamp(0, 9), y


class Words(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.places = nn.Parameter(torch.zeros(8, 4)) if kind == "attention" else None
        self.body = {
            "mean": nn.Identity(), "lstm": nn.LSTM(4, 4, batch_first=True),
            "attention": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        }[kind]  # fmt: skip
        self.out = nn.Linear(4, 3)

    def forward(self, words):
        found = self.body(self.embedding(words) + (0 if self.places is None else self.places))
        return self.out((found[0] if isinstance(found, tuple) else found).mean(1))


@LOOPS.body(model=lambda: Words("mean"), dataset=tokens)
def text_by_a_mean_of_words(m, x, y):
    return each(m(x), y)


@LOOPS.body(model=lambda: Words("lstm"), dataset=tokens)
def text_by_a_recurrent_network(m, x, y):
    return each(m(x), y)


@LOOPS.body(model=lambda: Words("attention"), dataset=tokens)
def text_by_attention(m, x, y):
    return each(m(x), y)


@LOOPS.body(model=lambda: Words("mean"), dataset=tokens, is_drawn=True)
def text_with_words_left_out(m, x, y):
    return each(m(torch.where(torch.rand(x.shape) < 0.2, 0, x)), y)


class LowRank(nn.Module):
    """A frozen layer and a trained correction of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 3).requires_grad_(False)
        self.a, self.b = nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x):
        return self.base(x) + 2.0 * self.b(self.a(x))


class WithLoss(nn.Module):
    """Gives its logits and its losses, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, inputs, labels):
        logits = self.out(inputs)
        return {"logits": logits, "loss": each(logits, labels)}


@LOOPS.body(model=WithLoss)
def losses_of_the_model(m, x, y):
    return m(inputs=x, labels=y)["loss"]


@LOOPS.body(model=WithLoss)
def losses_and_logits_of_the_model(m, x, y):
    found = m(inputs=x, labels=y)
    return found["loss"] + 0.1 * found["logits"].square().sum(1)


@LOOPS.body(model=LowRank)
def low_rank_layers(m, x, y):
    return each(m(x), y)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 6), nn.SiLU(), nn.Linear(6, 4))

    def forward(self, x, time):
        return self.net(torch.cat([x, time[:, None]], 1))


@LOOPS.body(model=Denoiser, is_drawn=True)
def diffusion(m, x, y):
    time, noise = torch.rand(len(x)), torch.randn_like(x)
    mixed = (1 - time)[:, None] * x + time[:, None] * noise
    return (m(mixed, time) - noise).square().mean(1)


@LOOPS.body(model=Denoiser, is_drawn=True)
def diffusion_by_a_table(m, x, y):
    table = torch.linspace(0.99, 0.01, 10)
    time = torch.randint(10, (x.shape[0],))
    kept, noise = table[time][:, None], torch.randn(x.shape)
    return F.mse_loss(m(kept.sqrt() * x + (1 - kept).sqrt() * noise, time.float() / 10), noise, reduction="none").sum(1)


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(2, 4)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)  # two outputs in one memory
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


@LOOPS.body(model=Variational, is_drawn=True)
def variational_autoencoder(m, x, y):
    found, mean, log_variance = m(x)
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
    return F.mse_loss(found, x, reduction="none").sum(1) + divergence


@LOOPS.body(model=lambda: spectral_norm(nn.Linear(4, 3)))
def spectral_normalisation(m, x, y):
    return each(m(x), y)


@LOOPS.body(model=lambda: weight_norm(nn.Linear(4, 3)))
def weight_normalisation(m, x, y):
    return each(m(x), y)


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).requires_grad_(False)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        with torch.no_grad():
            x = self.features(x)
        return self.head(x)


@LOOPS.body(model=Headed)
def frozen_features(m, x, y):
    return each(m(x), y)


@LOOPS.body(model=lambda: nn.Linear(6, 3), dataset=lambda x, y: (x, y))
def frozen_features_outside(m, x, y):
    with torch.no_grad():
        features = FEATURES(x)
    return each(m(features), y)


torch.manual_seed(0)
FEATURES = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).requires_grad_(False)
TEACHER = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()


@LOOPS.body()
def distillation(m, x, y):
    with torch.no_grad():
        target = TEACHER(x).softmax(1)
    return F.kl_div(m(x).log_softmax(1), target, reduction="none").sum(1)


# --- options ----------------------------------------------------------------------------------------


@LOOPS.body(options={"max_physical_batch_size": 5})
def physical_batches(m, x, y):
    return each(m(x), y)


@LOOPS.body(options={"workers": 1, "max_physical_batch_size": 8})
def workers(m, x, y):
    return each(m(x), y)


@LOOPS.body(options={"augmentations": 2}, is_drawn=True)
def two_views(m, x, y):
    return each(m(x + 0.1 * torch.randn_like(x)), y)


@LOOPS.body(
    options={"users": [k // 2 for k in range(SIZE)]},
    plan=a_plan(dataset_size=SIZE // 2, batch_size=BATCH // 2, unit="user"),
)  # fmt: skip
def users(m, x, y):
    return each(m(x), y)


@LOOPS.whole(options={"ema_decay": 0.9})
def moving_average(s: Scene) -> None:
    for number, (x, y) in enumerate(s.training):
        s.training.step(each(s.model(x), y))
        if number == 3:
            with s.training.ema_weights(), torch.no_grad():
                s.model(s.x[:5])


@LOOPS.body(optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=0.1), model=network)
def adam(m, x, y):
    return each(m(x), y)


# --- between two steps ------------------------------------------------------------------------------


@LOOPS.whole()
def a_schedule_of_learning_rates(s: Scene) -> None:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(s.optimizer, STEPS)
    for x, y in s.training:
        s.optimizer.zero_grad()
        s.training.step(each(s.model(x), y))
        schedule.step()


@LOOPS.whole(model=lambda: network(nn.Dropout(0.2)), is_drawn=True)
def evaluation_between_the_steps(s: Scene) -> None:
    held_out = torch.linspace(-1, 1, 20).reshape(5, 4)
    for x, y in s.training:
        s.training.step(each(s.model(x), y))
        s.model.eval()
        with torch.no_grad():
            assert s.model(held_out).shape == (5, 3)
        s.model.train()


@LOOPS.whole()
def in_epochs(s: Scene) -> None:
    for end in range(3, STEPS + 1, 3):
        for x, y in s.training.until(end):
            s.training.step(each(s.model(x), y))


@LOOPS.whole()
def weights_projected(s: Scene) -> None:
    for x, y in s.training:
        s.training.step(each(s.model(x), y))
        with s.training.post_processing("weights are projected to a ball"), torch.no_grad():
            s.model.weight.mul_(1 / s.model.weight.norm().clamp(min=1))


@LOOPS.whole()
def looking_ahead(s: Scene) -> None:
    slow = copy.deepcopy(s.model.state_dict())
    for number, (x, y) in enumerate(s.training):
        s.training.step(each(s.model(x), y))
        if number % 3 == 2:
            with s.training.post_processing("lookahead"):
                for name, value in s.model.state_dict().items():
                    slow[name].lerp_(value, 0.5)
                s.model.load_state_dict(slow)


@LOOPS.whole()
def averages_put_in_place(s: Scene) -> None:
    """Stochastic weight averaging: the mean of the weights so far is evaluated, and they go on."""
    mean = copy.deepcopy(s.model)
    for number, (x, y) in enumerate(s.training):
        s.training.step(each(s.model(x), y))
        with torch.no_grad():
            for average, p in zip(mean.parameters(), s.model.parameters(), strict=True):
                average.lerp_(p, 1 / (number + 1))
        if number % 4 == 3:
            own = copy.deepcopy(s.model.state_dict())
            with s.training.post_processing("the mean of the weights is put in place, and taken out again"):
                s.model.load_state_dict(mean.state_dict())
                s.model(s.x[:2])
                s.model.load_state_dict(own)


@LOOPS.whole()
def another_model_beside(s: Scene) -> None:
    """A second model is trained on numbers that are not records."""
    other = nn.Linear(4, 1)
    raw = torch.optim.SGD(other.parameters(), lr=0.1)
    for x, y in s.training:
        s.training.step(each(s.model(x), y))
        other(torch.ones(2, 4)).sum().backward()
        raw.step()
        raw.zero_grad()
