"""What every clipping rule promises, run over everything registered, on a model with shared, odd and plain layers."""

import dataclasses

import pytest
import torch
from torch import nn

from privet.accounting import Step
from privet.clipping.clipped_sum import clipped_sum
from privet.clipping.rule import clipping_rule, is_adaptive, is_published
from privet.diagnosis.plugin_check import CLIPPING_RULE, batch, network
from privet.errors import Unsupported
from privet.noise.randomness import seeded
from privet.noise.release import release
from privet.planning.clipping_rules import SOUND_RULES, UNSOUND_RULES, registry

STEP = Step(noise_multiplier=1.0, sample_rate=0.1, clipping_norm=0.3)
LOSS = nn.CrossEntropyLoss(reduction="none")
SIZE = 9

every_rule = pytest.mark.parametrize("name", registry.names())
sound_rules = pytest.mark.parametrize("name", SOUND_RULES)


def summed(model, rule, data):
    return clipped_sum(model, LOSS, data, rule=rule, clipping_norm=STEP.clipping_norm, uncertified=True)


def released(model, rule, data, seed=0):
    return release(
        summed(model, rule, data), rule, step=STEP, batch_size=SIZE, randomness=seeded(seed), uncertified=True
    )  # fmt: skip


def used(name, model):
    """The rule after two releases, so that what it has learnt is in force."""
    rule = clipping_rule(name, uncertified=True)
    for seed in (1, 2):
        released(model, rule, batch(seed=seed), seed)
    return rule


def flat(grads):
    return torch.cat([grad.flatten().double() for grad in grads.values()])


def test_the_names_are_those_that_planning_knows():
    assert sorted(registry.names()) == sorted([*SOUND_RULES, *UNSOUND_RULES])
    for name in registry.names():
        assert is_published(clipping_rule(name, uncertified=True)) == (name in UNSOUND_RULES)


@every_rule
@pytest.mark.parametrize("check", CLIPPING_RULE.checks)
def test_it_keeps_the_contract(name, check):
    """Also those without a guarantee: they say the truth of their bound, and their noise is made from less."""
    assert CLIPPING_RULE.checks[check](name) == ""


@every_rule
def test_the_spelling_makes_an_equal_rule(name):
    rule = clipping_rule(name, uncertified=True)
    assert registry.to_spec(rule) == name
    assert clipping_rule(registry.to_spec(rule), uncertified=True) == rule


@every_rule
def test_a_neighbour_is_within_the_bound(name):
    """Leaving out one example moves the sum at most l2_bound; so does any one alone, a loud one too."""
    model = network()
    rule = used(name, model)
    with torch.no_grad():
        model.last.weight.mul_(50)
    x, y = batch()
    whole = summed(model, rule, (x, y))
    assert float(whole.raw_norms.max()) > 3 * STEP.clipping_norm, "nothing was clipped"
    for out in range(SIZE):
        keep = torch.arange(SIZE) != out
        without = summed(model, rule, (x[keep], y[keep]))
        assert without.l2_bound == whole.l2_bound
        moved = float((flat(whole.grads) - flat(without.grads)).norm())
        assert moved <= whole.l2_bound * (1 + 1e-5)
        if whole.raw_statistics is not None and len(whole.raw_statistics):
            assert float((whole.raw_statistics - without.raw_statistics).norm()) <= rule.statistics_bound


@every_rule
def test_pieces_make_the_whole(name):
    model = network()
    rule = used(name, model)
    x, y = batch()
    whole = summed(model, rule, (x, y))
    parts = (
        summed(model, rule, (x[:4], y[:4]))
        + summed(model, rule, (x[4:4], y[4:4]))
        + summed(model, rule, (x[4:], y[4:]))
    )
    torch.testing.assert_close(flat(parts.grads), flat(whole.grads), rtol=1e-4, atol=1e-6)
    if whole.raw_statistics is not None:
        assert torch.equal(parts.raw_statistics, whole.raw_statistics)
    kept = rule.state_dict() if is_adaptive(rule) else None
    both = [release(c, rule, step=STEP, batch_size=SIZE, randomness=seeded(5), uncertified=True) for c in (whole,)]
    if kept is not None:
        rule.load_state_dict(kept)
    both.append(release(parts, rule, step=STEP, batch_size=SIZE, randomness=seeded(5), uncertified=True))
    torch.testing.assert_close(flat(both[0].grads), flat(both[1].grads), rtol=1e-4, atol=1e-5)


@every_rule
def test_an_empty_batch_is_a_step(name):
    model = network()
    rule = used(name, model)
    x, y = batch()
    answer = released(model, rule, (x[:0], y[:0]))
    assert {key: grad.shape for key, grad in answer.grads.items()} == {k: p.shape for k, p in model.named_parameters()}
    quiet = name in ("own_norm", "l2_max")  # as published: no example, no noise, so emptiness is given away
    assert bool((flat(answer.grads) == 0).all()) == quiet


@sound_rules
def test_an_example_that_is_not_finite_changes_nothing_that_matters(name):
    model = network()
    rule = used(name, model)
    x, y = batch()
    with torch.no_grad():
        model.table.weight[6] = torch.inf
    c = summed(model, rule, (x, y))
    hit = (x == 6).any(1)
    assert 0 < int(hit.sum()) < SIZE
    clean = summed(model, rule, (x[~hit], y[~hit]))
    torch.testing.assert_close(flat(c.grads), flat(clean.grads), rtol=1e-4, atol=1e-6)
    assert flat(release(c, rule, step=STEP, batch_size=SIZE, randomness=seeded(0)).grads).isfinite().all()


@every_rule
def test_nothing_raw_is_in_what_is_released(name):
    answer = released(network(), clipping_rule(name, uncertified=True), batch())
    assert {field.name for field in dataclasses.fields(answer)} == {"grads", "clipping_norm", "batch_size", "std"}
    assert (answer.std is None) == (name in UNSOUND_RULES)


@pytest.mark.parametrize("name", UNSOUND_RULES)
def test_an_unsound_rule_is_refused_at_both_doors(name):
    model, rule = network(), clipping_rule(name, uncertified=True)
    with pytest.raises(Unsupported, match="has no guarantee"):
        clipped_sum(model, LOSS, batch(), rule=rule, clipping_norm=STEP.clipping_norm)
    with pytest.raises(Unsupported, match="has no guarantee"):
        release(summed(model, rule, batch()), rule, step=STEP, batch_size=SIZE, randomness=seeded(0))


@sound_rules
def test_a_rule_goes_on_where_its_state_was_saved(name):
    rule = clipping_rule(name)
    if not is_adaptive(rule):
        assert not hasattr(rule, "state_dict")
        return
    model = network()
    fresh = clipping_rule(name)
    fresh.load_state_dict(rule.state_dict())  # before the first release too
    rule = used(name, model)
    other = clipping_rule(name)
    other.load_state_dict(rule.state_dict())
    for seed in (3, 4):
        one, two = (released(model, r, batch(seed=seed), seed) for r in (rule, other))
        assert one.clipping_norm == two.clipping_norm
        assert torch.equal(flat(one.grads), flat(two.grads))
    kept = rule.state_dict()
    released(model, rule, batch(), 6)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(
        kept.values(), other.state_dict().values(), strict=True))  # what was saved is a copy  # fmt: skip
