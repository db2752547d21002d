"""The promise of every sound rule, for any norms: what is left of one example has norm at most l2_bound."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from privet.clipping.rule import clipping_rule
from privet.errors import InvalidValue
from privet.noise.release import gradient_noise
from privet.planning.clipping_rules import SOUND_RULES

# The engine takes norms above 1e15 in double precision.
LARGEST = {torch.float32: 1e15, torch.float64: 1e150}
ROOM = {torch.float32: 1e-6, torch.float64: 1e-12}


@st.composite
def norms_of_examples(draw):
    dtype = draw(st.sampled_from(list(LARGEST)))
    size = st.one_of(st.just(0.0), st.floats(1e-15, LARGEST[dtype]), st.floats(0.01, 100))
    groups = draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(size, min_size=groups, max_size=groups), min_size=1, max_size=5))
    return torch.tensor(rows, dtype=dtype)


clips = st.floats(1e-6, 1e6)


@pytest.mark.parametrize("name", [*SOUND_RULES, "per_layer_c", "l2_max"])
@given(norms=norms_of_examples(), clip=clips)
def test_what_is_left_of_an_example_is_within_the_bound(name, norms, clip):
    """Also of per_layer_c and l2_max: their l2_bound is the truth, whatever their papers charge."""
    rule = clipping_rule(name, uncertified=True)
    scaled = rule.scales(norms, clip) * norms
    bound = rule.l2_bound(clip, norms.shape[1]) if len(rule.groups(["a.x", "b.x"])) > 1 else None
    if bound is None:  # clipped together: the factor goes by the norm of the whole
        whole = torch.linalg.vector_norm(norms, dim=1, keepdim=True)
        scaled, bound = rule.scales(whole, clip) * whole, rule.l2_bound(clip, 1)
    left = torch.linalg.vector_norm(scaled.double(), dim=1)
    assert (left <= bound * (1 + ROOM[norms.dtype])).all()
    assert (scaled >= 0).all()  # no gradient is turned round


@pytest.mark.parametrize("name", SOUND_RULES)
@given(clip=clips)
def test_an_infinite_norm_leaves_nothing(name, clip):
    assert clipping_rule(name).scales(torch.tensor([[math.inf]]), clip).tolist() == [[0.0]]


@pytest.mark.parametrize("name", SOUND_RULES)
@given(norms=norms_of_examples(), clip=clips)
def test_an_examples_factors_do_not_depend_on_the_others(name, norms, clip):
    rule = clipping_rule(name)
    alone = torch.cat([rule.scales(row[None], clip) for row in norms])
    assert torch.equal(rule.scales(norms, clip), alone)


@given(noise=st.floats(0.01, 100), more=st.floats(1.0001, 1e4))
def test_gradient_and_bits_together_cost_no_more_than_the_step(noise, more):
    """The pair's mu is sqrt(sigma_g^-2 + sigma_b^-2), at most 1 / sigma, and not far below."""
    together = math.hypot(1 / gradient_noise(noise, noise * more), 1 / (noise * more))
    assert (1 - 1e-12) / noise <= together <= (1 + 1e-15) / noise


@given(noise=st.floats(0.01, 100), less=st.floats(0.01, 1.0))
def test_bits_that_alone_cost_more_than_the_step_are_refused(noise, less):
    with pytest.raises(InvalidValue, match=r"count_noise=.* must be above the step's noise"):
        gradient_noise(noise, noise * less)
