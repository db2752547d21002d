"""The networks under measurement: seven small ones, a to g, and the same ones growing in one direction.

Each workload is the user's own model, as PyTorch has it: no layer is chosen to please a library. There is no dropout,
so that every contender computes the same thing, and inputs are random: only their shapes cost time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

SIZE = 2048  # examples in the dataset a batch is gathered from

Inputs = Callable[[int], Tensor]  # so many examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, how its inputs look, and the batch; `name` is what the table shows."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Inputs
    classes: int
    batch: int

    def data(self) -> tuple[Tensor, Tensor]:
        """A dataset of SIZE random examples with their labels."""
        return self.inputs(SIZE), torch.randint(self.classes, (SIZE,))


def cnn() -> nn.Module:
    """The convolutional network of the TensorFlow Privacy tutorial for MNIST: 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def lenet() -> nn.Module:
    """Like LeNet-5, with ReLU and max pooling: 61,706 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def mlp(width: int = 128) -> nn.Module:
    """Three linear layers on 600 features, as for purchase records."""
    return nn.Sequential(
        nn.Linear(600, width), nn.ReLU(), nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 10)
    )


class Bag(nn.Module):
    """The mean of word vectors, then two linear layers, as for IMDb: 160,306 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10_000, 16)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


class Letters(nn.Module):
    """A name, one-hot letter by letter, through one LSTM; the last output gives the language: 98,066 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(57, 128, batch_first=True)
        self.head = nn.Linear(128, 18)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Block(nn.Module):
    """Two 3x3 convolutions with group norm, added to the input, which a 1x1 convolution fits where shapes differ."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False), nn.GroupNorm(8, after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.GroupNorm(8, after),
        )  # fmt: skip
        same = before == after and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.path(x) + self.skip(x))


def resnet() -> nn.Module:
    """A residual network of eight layers for 32x32 colour images: 78,042 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(8, 16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class Encoder(nn.Module):
    """Two layers of PyTorch's own transformer encoder over 1,000 tokens, then the mean: 526,090 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, dim_feedforward=512, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x)).mean(1))


def _floats(*shape: int) -> Inputs:
    return lambda count: torch.randn(count, *shape)


def _tokens(vocabulary: int, length: int) -> Inputs:
    return lambda count: torch.randint(vocabulary, (count, length))


def _letters(length: int) -> Inputs:
    return lambda count: nn.functional.one_hot(torch.randint(57, (count, length)), 57).float()


def _images(batch: int, model: Callable[[], nn.Module], name: str) -> Workload:
    return Workload(name=name, model=model, inputs=_floats(1, 28, 28), classes=10, batch=batch)


def _records(name: str, width: int) -> Workload:
    return Workload(name=name, model=partial(mlp, width), inputs=_floats(600), classes=10, batch=100)


def _reviews(name: str, length: int) -> Workload:
    return Workload(name=name, model=Bag, inputs=_tokens(10_000, length), classes=2, batch=512)


def _names(name: str, length: int) -> Workload:
    return Workload(name=name, model=Letters, inputs=_letters(length), classes=18, batch=256)


def _texts(name: str, length: int, batch: int) -> Workload:
    return Workload(name=name, model=Encoder, inputs=_tokens(1000, length), classes=10, batch=batch)


WORKLOADS = {
    "a256": _images(256, cnn, "CNN of the tutorial, batch 256"),
    "a600": _images(600, cnn, "CNN of the tutorial, batch 600"),
    "b": _images(256, lenet, "LeNet-like, batch 256"),
    "c": _records("MLP 600-128-64-10, batch 100", 128),
    "d": _reviews("embedding mean, batch 512, length 256", 256),
    "e": _names("LSTM 128, batch 256, length 10", 10),
    "f": Workload(name="ResNet + group norm, batch 64", model=resnet, inputs=_floats(3, 32, 32), classes=10, batch=64),
    "g": _texts("transformer 128 x 2, batch 64, length 64", 64, 64),
}

GROWTH = {
    **{f"batch {n}": _images(n, cnn, f"a: batch {n}") for n in (16, 64, 256, 1024)},
    **{f"width {n}": _records(f"c: width {n}", n) for n in (64, 256, 1024, 4096)},
    **{f"words {n}": _reviews(f"d: length {n}", n) for n in (16, 64, 256, 1024)},
    **{f"letters {n}": _names(f"e: length {n}", n) for n in (5, 20, 80)},
    **{f"tokens {n}": _texts(f"g: length {n}, batch 16", n, 16) for n in (16, 64, 256)},
}
