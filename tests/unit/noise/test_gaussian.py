"""How much noise, where it goes, and when it is refused. tests/statistical has its law."""

import math

import pytest
import torch

from privet.accounting import Step
from privet.errors import InvalidValue, Unsupported
from privet.noise.gaussian import add_noise, draw, noise_std, sensitivity, std_per_rank
from privet.noise.randomness import os_randomness, seeded


@pytest.mark.parametrize(("adjacency", "factor"), [("zero-out", 1), ("add-remove", 1), ("replace-one", 2)])
def test_a_replaced_record_moves_the_sum_twice_as_far(adjacency, factor):
    assert sensitivity(0.7, adjacency) == factor * 0.7
    std = noise_std(Step(noise_multiplier=3.0), l2_bound=0.7, adjacency=adjacency)
    assert factor * 2.1 <= std <= factor * 2.1 * (1 + 1e-15)


def test_the_step_gives_the_multiplier_and_the_engine_the_bound():
    """Not the clip of the step: a rule may bound a share by less or more."""
    assert noise_std(Step(noise_multiplier=2.0, sample_rate=0.1, clipping_norm=9.0), l2_bound=0.5) == pytest.approx(1.0)


def test_replace_below_rate_one_has_a_theorem_for_fixed_sizes_only():
    with pytest.raises(Unsupported, match=r"adjacency='replace-one' at sample_rate=0.5 has no theorem with poisson"):
        noise_std(Step(noise_multiplier=1.0, sample_rate=0.5), l2_bound=1.0, adjacency="replace-one")
    fixed = Step(noise_multiplier=1.0, sample_rate=0.5, sampling="fixed-size")
    assert noise_std(fixed, l2_bound=1.0, adjacency="replace-one") == pytest.approx(2.0)


@pytest.mark.parametrize("world", [1, 2, 3, 7, 1000])
def test_the_shares_of_all_ranks_are_never_short(world):
    part = std_per_rank(0.3, world)
    assert math.sqrt(world) * part * (1 + 1e-15) >= 0.3
    assert part <= 0.3 / math.sqrt(world) * (1 + 1e-15)


GRADS = {"a": torch.full((2, 3), 5.0), "b": torch.tensor(-1.0), "c": torch.ones(0, 4), "d": torch.ones(17)}


def test_noise_goes_on_top_of_the_sum_and_both_are_divided():
    zeros = {name: torch.zeros_like(grad) for name, grad in GRADS.items()}
    before = {name: grad.clone() for name, grad in GRADS.items()}
    noised = add_noise(GRADS, std=2.0, randomness=seeded(0), divisor=4.0)
    alone = add_noise(zeros, std=2.0, randomness=seeded(0))
    assert list(noised) == list(GRADS)
    for name, grad in GRADS.items():
        assert torch.allclose(noised[name], (grad + alone[name]) / 4)
        assert torch.equal(grad, before[name])


def neighbours() -> dict[str, torch.Tensor]:
    """As clipped_sum gives them: views of one buffer, one after the other."""
    pieces = torch.split(torch.arange(100_001.0), [6, 1, 0, 99_994])
    return {
        name: piece.view(shape) for name, piece, shape in zip("abcd", pieces, [(2, 3), (), (0, 4), -1], strict=True)
    }


def test_noise_in_place_is_the_same_and_takes_no_other_buffer():
    sums = neighbours()
    before = {name: grad.clone() for name, grad in sums.items()}
    noised = add_noise(sums, std=2.0, randomness=seeded(0), divisor=4.0, in_place=True)
    assert all(noised[name].data_ptr() == grad.data_ptr() for name, grad in sums.items())
    again = add_noise(before, std=2.0, randomness=seeded(0), divisor=4.0)
    assert all(torch.equal(noised[name], grad) for name, grad in again.items())


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda g: {"b": g["b"], "a": g["a"], "c": g["c"], "d": g["d"]},
        lambda g: {"a": g["a"], "d": g["d"]},
        lambda g: g | {"b": torch.tensor(6.0)},
        lambda g: g | {"a": g["a"].T},
        lambda g: g | {"e": torch.ones(2, dtype=torch.float16)},
    ],
    ids=["order", "gap", "elsewhere", "transposed", "another type"],
)
def test_sums_that_do_not_fill_one_buffer_are_copied(spoilt):
    sums = spoilt(neighbours())
    before = {name: grad.clone() for name, grad in sums.items()}
    noised = add_noise(sums, std=2.0, randomness=seeded(0), in_place=True)
    assert all(torch.equal(grad, before[name]) for name, grad in sums.items())
    again = add_noise(before, std=2.0, randomness=seeded(0))
    assert all(torch.equal(noised[name], grad) for name, grad in again.items())


def test_all_tensors_share_one_buffer():
    noised = add_noise(GRADS, std=1.0, randomness=os_randomness())
    assert len({noised[name].untyped_storage().data_ptr() for name in "abd"}) == 1
    assert noised["a"].is_contiguous()


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_noise_is_float32_or_better_whatever_the_model(low):
    grads = {"low": torch.ones(1000, dtype=low), "high": torch.ones(5, dtype=torch.float64), "mid": torch.ones(5)}
    noised = add_noise(grads, std=1e-3, randomness=os_randomness())
    assert [grad.dtype for grad in noised.values()] == [torch.float32, torch.float64, torch.float32]
    assert len(noised["low"].unique()) > 900  # in half precision a few values would be all


def test_nothing_to_noise_is_nothing():
    assert add_noise({}, std=1.0, randomness=os_randomness()) == {}
    assert add_noise({"a": torch.zeros(0)}, std=1.0, randomness=os_randomness())["a"].shape == (0,)


def test_gradients_that_are_tracked_are_let_go():
    grads = {"a": torch.ones(3, requires_grad=True)}
    assert not add_noise(grads, std=1.0, randomness=os_randomness())["a"].requires_grad


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-46, 1e38, "1", True])
def test_noise_that_would_be_nothing_or_not_finite_is_refused(std):
    with pytest.raises(InvalidValue, match="std="):
        add_noise({"a": torch.ones(3)}, std=std, randomness=os_randomness())


def test_a_divisor_cannot_make_the_noise_vanish():
    with pytest.raises(InvalidValue, match=r"out of the range of torch.float32"):
        add_noise({"a": torch.ones(3)}, std=1.0, randomness=os_randomness(), divisor=1e39)
    with pytest.raises(InvalidValue, match="divisor=0"):
        add_noise({"a": torch.ones(3)}, std=1.0, randomness=os_randomness(), divisor=0)


@pytest.mark.parametrize("grad", [torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.complex64)])
def test_what_is_not_real_is_refused(grad):
    with pytest.raises(Unsupported, match="grads\\['a'\\]"):
        add_noise({"a": grad}, std=1.0, randomness=os_randomness())


def test_a_sparse_sum_is_refused():
    with pytest.raises(Unsupported, match="sparse"):
        add_noise({"a": torch.eye(3).to_sparse()}, std=1.0, randomness=os_randomness())


@pytest.mark.parametrize("flat", [torch.empty(4, dtype=torch.float16), torch.empty(4, 4).T[:, 1:]])
def test_a_buffer_is_contiguous_and_precise(flat):
    with pytest.raises(InvalidValue, match="contiguous"):
        draw(flat, std=1.0, generator=os_randomness())


def test_values_that_are_refused_name_themselves():
    with pytest.raises(InvalidValue, match="l2_bound=0"):
        sensitivity(0.0)
    with pytest.raises(InvalidValue, match="Did you mean 'replace-one'"):
        sensitivity(1.0, "replaced")
    with pytest.raises(InvalidValue, match="world=0"):
        std_per_rank(1.0, 0)
