"""Scattering features against a slow oracle in space; what one image becomes depends on no other; the file on disk."""

import math

import numpy as np
import pytest
import torch

from privet.data.task import task
from privet.errors import InvalidValue
from privet_papers.datasets import features
from privet_papers.datasets.features import mirror_features
from privet_papers.datasets.scattering import PEAK, SLANT, WIDTH, Scattering, normalise_channels, wavelet

SIDE = 16


def images(count=3, colours=1, side=SIDE):
    return torch.rand(count, colours, side, side, generator=torch.Generator().manual_seed(1))


# --- the oracle: sums over pixels in float64, no spectrum anywhere --------------------------------------


def morlet_in_space(side, scale, angle):
    """psi(u) on a torus: a Gaussian envelope times (a wave less a constant), so that it sums to 0."""
    spread, peak = WIDTH * 2**scale, PEAK / 2**scale
    envelope, waves = np.zeros((side, side)), np.zeros((side, side), dtype=complex)
    for down in range(-3 * side, 3 * side):
        for right in range(-3 * side, 3 * side):
            along = right * math.cos(angle) + down * math.sin(angle)
            across = down * math.cos(angle) - right * math.sin(angle)
            height = SLANT / (2 * math.pi * spread**2) * math.exp(-(along**2 + (SLANT * across) ** 2) / (2 * spread**2))
            envelope[down % side, right % side] += height
            waves[down % side, right % side] += height * np.exp(1j * peak * along)
    return waves - envelope * waves.sum() / envelope.sum()


def convolved(x, kernel):
    """sum_v x(u - v) kernel(v) on a torus, by shifting."""
    found = np.zeros(x.shape, dtype=complex)
    for (down, right), weight in np.ndenumerate(kernel):
        found += weight * np.roll(x, (down, right), (0, 1))
    return found


def smoothed(x, *, scales, halved):
    """Gaussian means around every 2^scales-th pixel inside the mirrored border."""
    spread, border, step = WIDTH * 2 ** (scales - 1), 2**scales, 2**halved
    kept = range(border, SIDE + border, 2**scales)
    found = np.zeros((len(kept), len(kept)))
    for a, i in enumerate(kept):
        for b, k in enumerate(kept):
            down = np.exp(-((np.arange(len(x)) * step - i) ** 2) / (2 * spread**2))
            right = np.exp(-((np.arange(len(x)) * step - k) ** 2) / (2 * spread**2))
            weights = np.outer(down, right)
            found[a, b] = (weights * x).sum() / weights.sum()
    return found


def slow_scattering(image, scales, directions):
    """The docstring of Scattering, word for word."""
    x = np.pad(image, 2**scales, mode="reflect")
    angles = [math.pi * k / directions for k in range(directions)]
    first, second = [smoothed(x, scales=scales, halved=0)], []
    for a in range(scales):
        moduli = [abs(convolved(x, morlet_in_space(len(x), a, angle)))[:: 2**a, :: 2**a] for angle in angles]
        first += [smoothed(one, scales=scales, halved=a) for one in moduli]
        for b in range(a + 1, scales):
            kernels = [morlet_in_space(len(moduli[0]), b - a, angle) for angle in angles]
            for one in moduli:
                again = [abs(convolved(one, kernel))[:: 2 ** (b - a), :: 2 ** (b - a)] for kernel in kernels]
                second += [smoothed(two, scales=scales, halved=b) for two in again]
    return np.stack(first + second)


def test_spectra_are_those_of_morlet_wavelets_in_space():
    for scale, angle in ((0, 0.0), (1, 0.7), (1, math.pi / 2)):
        spectrum = np.fft.fft2(morlet_in_space(24, scale, angle))
        assert np.abs(spectrum.imag).max() < 1e-9
        assert wavelet(24, scale, angle).numpy() == pytest.approx(spectrum.real, abs=2e-5)
        assert float(wavelet(24, scale, angle)[0, 0]) == 0  # flat areas give nothing


@pytest.mark.slow
def test_the_transform_agrees_with_sums_over_pixels():
    x = images(2)
    fast = Scattering(side=SIDE, directions=2)(x)
    assert fast.shape == (2, 9, 4, 4)
    for image, found in zip(x, fast, strict=True):
        assert found.numpy() == pytest.approx(slow_scattering(image[0].double().numpy(), 2, 2), abs=1e-5)


# --- what features must be for a guarantee to hold ------------------------------------------------------


def test_what_an_image_becomes_depends_on_no_other():
    x = images(40, colours=3)
    transform = Scattering(side=SIDE)
    whole = normalise_channels(transform(x))
    assert whole.shape == (40, 3 * 81, 4, 4)
    other = x.clone()
    other[7:] = 0
    assert torch.allclose(normalise_channels(transform(other))[:7], whole[:7], atol=1e-4)
    assert torch.allclose(normalise_channels(transform(x[5:6])), whole[5:6], atol=1e-4)


def test_normalised_examples_are_centred_and_bounded():
    """Three channels have mean 0 and at most variance 1: less where they are nearly flat, so noise is not blown up."""
    groups = normalise_channels(Scattering(side=SIDE)(images(5))).reshape(5, 27, -1)
    assert groups.mean(-1).abs().max() < 1e-5
    assert groups.square().mean(-1).max() <= 1 + 1e-5
    assert torch.equal(normalise_channels(torch.zeros(1, 81, 4, 4)), torch.zeros(1, 81, 4, 4))


def test_a_side_that_cannot_be_halved_is_refused():
    with pytest.raises(InvalidValue, match=r"side=30 must be a multiple of 4"):
        Scattering(side=30)


def test_centred_places_lie_in_the_middle_of_their_pixels():
    """Means of a slope that rises by 1 a pixel: 1.5 more in the middle of four pixels than at the first of them."""
    slope = torch.arange(32.0).expand(1, 1, 32, 32)
    first, middle = (Scattering(side=32, centred=centred)(slope)[0, 0, 4] for centred in (False, True))
    assert (middle - first)[2:-2].tolist() == pytest.approx([1.5] * 4, abs=1e-3)


@pytest.mark.parametrize("colours", [1, 3])
def test_mirrored_features_are_those_of_the_mirror_image_and_of_no_other(colours):
    x = images(4, colours)
    transform = Scattering(side=SIDE, centred=True)
    found = mirror_features(x, transform)
    assert found.shape == (4, 81 * colours, 4, 2)
    size = found.square().mean().sqrt()
    assert (mirror_features(x.flip(-1), transform) - found).square().mean().sqrt() < 0.1 * size
    assert (mirror_features(x.flip(-2), transform) - found).square().mean().sqrt() > 0.5 * size
    assert torch.allclose(mirror_features(x[2:3], transform), found[2:3], atol=1e-3)


def test_a_colour_is_seen_by_its_own_channels():
    """Grey pictures have no red-green and no yellow-blue: those channels are 0."""
    grey = images(2).expand(2, 3, SIDE, SIDE)
    light, *others = mirror_features(grey, Scattering(side=SIDE, centred=True)).split(81, 1)
    assert light.abs().max() > 1
    assert max(float(part.abs().max()) for part in others) < 1e-2


# --- kept on disk ---------------------------------------------------------------------------------------


@pytest.fixture
def counted():
    calls = []

    def made(x):
        calls.append(len(x))
        return (x.flatten(1) * 2).half()

    return made, calls


def test_features_are_made_once_and_read_again(tmp_path, counted):
    made, calls = counted
    x = images()
    first = features.compute_cached(x, made, said="twice", folder=tmp_path, name="a")
    again = features.compute_cached(x, made, said="twice", folder=tmp_path, name="a")
    assert torch.equal(first, again)
    assert first.dtype == torch.float32
    assert calls == [3]


def test_other_images_and_other_transforms_are_other_files(tmp_path, counted):
    made, calls = counted
    x = images()
    for said, inputs in (("twice", x), ("twice, but otherwise", x), ("twice", x + 1), ("twice", x[:2])):
        features.compute_cached(inputs, made, said=said, folder=tmp_path, name="a")
    assert len(calls) == len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b[:-1] + bytes([b[-1] ^ 1]),
        lambda b: b"",
        lambda b: b"{}",
        lambda b: bytes([b[0] + 1]) + b[1:].replace(b'"F16"', b'"BF16"'),  # a type that numpy has not
    ],
)
def test_a_damaged_file_is_made_again(tmp_path, counted, damage):
    made, calls = counted
    x = images()
    whole = features.compute_cached(x, made, said="twice", folder=tmp_path, name="a")
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert torch.equal(features.compute_cached(x, made, said="twice", folder=tmp_path, name="a"), whole)
    assert calls == [3, 3]


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, counted):
    made, calls = counted
    (tmp_path / "file").write_text("")
    for _ in range(2):
        features.compute_cached(images(), made, said="twice", folder=tmp_path / "file" / "below", name="a")
    assert calls == [3, 3]


def test_a_task_by_its_features(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small = task("digits:features=scattering,size=20")
    assert small.facts == {"shape": (81, 7, 7), "classes": 10}
    assert small.model == "linear"
    assert small.network()(small.train[0]).shape == (20, 10)
    assert "scattering" in small.source
    assert len(list((tmp_path / "privet" / "features").iterdir())) == 2
    with pytest.raises(InvalidValue, match=r"features='wavelets' must be one of .*pixels, scattering"):
        task("digits:features=wavelets")
    assert task("digits:features=mirrored,size=20").facts == {"shape": (81, 7, 4), "classes": 10}
