"""Gaussian gridding: within its error of the sum it stands for, wherever the atoms lie."""

import numpy as np
import pytest

from privet.accounting.pld.frequencies import nonuniform_fft

SIZE = 1 << 20  # atoms lie on multiples of period / SIZE, so that the phases of the direct sum are exact


def direct(mass: np.ndarray, number: np.ndarray, j: np.ndarray) -> np.ndarray:
    return np.exp(2j * np.pi * (np.outer(j, number) % SIZE) / SIZE) @ mass


@pytest.mark.parametrize(
    ("atoms", "spread", "last"),
    [(1, 1, 5), (3, SIZE, 1), (200, SIZE // 2, 300), (5000, 3 * SIZE, 2000), (4000, 40, 500), (300, SIZE, 20_000)],
    ids=["one", "one frequency", "few", "three times around", "all in one cell", "many frequencies"],
)
def test_the_error_bounds_the_difference_from_the_direct_sum(atoms, spread, last):
    r = np.random.default_rng(atoms)
    number = np.sort(r.integers(-spread, spread + 1, atoms))
    mass = r.exponential(size=atoms) ** 3
    mass /= mass.sum()
    period = 3.7
    found, error = nonuniform_fft(mass, number * (period / SIZE), period, last)
    j = np.unique(np.linspace(0, last, 60).round().astype(np.int64))
    places = 8 * 2.0**-53 * j * float(mass @ np.abs(number)) / SIZE * 2 * np.pi  # of which the caller takes care
    assert (np.abs(found[j] - direct(mass, number, j)) <= error + places).all()
    assert error <= 1e-12


def test_atoms_in_any_order():
    r = np.random.default_rng(0)
    number, mass = r.integers(0, SIZE, 500), np.full(500, 1 / 500)
    found, error = nonuniform_fft(mass, number / SIZE, 1.0, 100)
    assert (np.abs(found - direct(mass, number, np.arange(101))) <= error + 1e-13).all()
