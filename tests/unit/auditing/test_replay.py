"""Replay: what each check sees, on mechanisms with one mistake each, and that it is silent without one."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from privet import plan
from privet.accounting import Ledger, Step
from privet.auditing.broken_mechanisms import (
    CLIP,
    NOISE,
    ChosenBatch,
    Control,
    RawStep,
    add_gaussian_noise,
    clip_rows,
    sample_steps,
)
from privet.auditing.distinguishing import distinguish
from privet.auditing.mechanism import EngineStep, FrozenRandomness, MechanismClaim, flatten_releases, mechanism_claim
from privet.auditing.neighbours import (
    BATCHES,
    CANARIES,
    SIZE,
    Sliced,
    logistic_gradients,
    logistic_losses,
    neighbouring_pairs,
)
from privet.auditing.replay import COINS, RARE, most_unlike_pairs, replay
from privet.clipping.clipped_sum import clipped_sum
from privet.errors import InvalidValue, Unsupported
from privet.noise.randomness import Randomness
from training_steps import TrainingSteps

SOME = neighbouring_pairs()[:6]


class Right(Control):
    """The controls' own sound mechanism: nothing is wrong with it."""

    def release(self, grads, there, randomness):
        return {"sum": add_gaussian_noise(clip_rows(grads[there]).sum(0), NOISE * CLIP, randomness) / SIZE}


def reasons(mechanism, given=SOME):
    found = replay(mechanism, given)
    assert (found.verdict == "violation") == bool(found.reasons)
    return " / ".join(found.reasons)


def test_a_sound_mechanism_is_left_alone():
    assert reasons(Right(), neighbouring_pairs()) == ""


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_engine_is_left_alone(adjacency, rate):
    step = Step(noise_multiplier=1.3, sample_rate=rate, clipping_norm=0.7)
    mechanism = EngineStep(rule="flat", step=step, batch=SIZE * rate, adjacency=adjacency)
    found = replay(mechanism, neighbouring_pairs(adjacency=adjacency, clip=0.7)[::3])
    assert found.verdict == "consistent", found
    assert found.numbers["furthest"] == pytest.approx(1.0, abs=1e-3)  # the canaries reach the whole sensitivity


def test_an_unclipped_record_is_seen():
    class Unclipped(Right):
        def release(self, grads, there, randomness):
            return {"sum": add_gaussian_noise(grads[there].sum(0), NOISE * CLIP, randomness) / SIZE}

    assert "times the declared sensitivity" in reasons(Unclipped())


def test_noise_that_follows_the_record_is_seen():
    class Follows(Right):
        def release(self, grads, there, randomness):
            std = NOISE * (1 + 0.05 * float((grads[there].norm(dim=1) > 5).any()))
            return {"sum": add_gaussian_noise(clip_rows(grads[there]).sum(0), std, randomness) / SIZE}

    assert "the record changes the noise" in reasons(Follows())


def test_a_draw_more_is_seen():
    class Draws(Right):
        def release(self, grads, there, randomness):
            found = super().release(grads, there, randomness)
            if int(there.sum()) == SIZE:
                randomness.numpy_generator()
            return found

    assert "changes how often something is drawn" in reasons(Draws())
    # More than privacy asks: nothing of that draw is released, and samples see no difference.
    assert distinguish(Draws(), SOME[:1], samples=1000, randomness=Randomness(3)).verdict == "consistent"


def test_a_result_that_is_not_a_number_is_seen():
    class Spoilt(Right):
        def prepare(self, records):
            return lambda randomness: {"sum": records[0].sum(0)}

    assert "not finite" in reasons(Spoilt(), [s for s in neighbouring_pairs() if "nan canary" in s.name])


@pytest.mark.parametrize(("factor", "seen"), [(0.7, True), (1.0, False), (1.4, False)])
def test_noise_below_the_declared_is_seen_and_more_is_no_mistake(factor, seen):
    class Other(Right):
        def release(self, grads, there, randomness):
            return {"sum": add_gaussian_noise(clip_rows(grads[there]).sum(0), factor * NOISE, randomness) / SIZE}

    assert ("times what is declared" in reasons(Other())) == seen


@pytest.mark.parametrize(("kept", "seen"), [(0.0, False), (1.0, True)])
def test_noise_used_again_is_seen(kept, seen):
    class Again(Right):
        claim = MechanismClaim(steps=(Step(noise_multiplier=NOISE),) * 2, std=NOISE, step_of={"a": 0, "b": 1})

        def release(self, grads, there, randomness):
            total = clip_rows(grads[there]).sum(0)
            one, two = (add_gaussian_noise(torch.zeros_like(total), NOISE, randomness) for _ in range(2))
            return {"a": total + one, "b": total + kept * one + (1 - kept) * two}

    assert ("the noise of two steps is the same" in reasons(Again())) == seen


@pytest.mark.parametrize(("charged", "seen"), [(0.2, True), (0.5, False), (0.9, False)])
def test_a_rate_above_the_charged_is_seen(charged, seen):
    class Sampled(Right):
        claim = MechanismClaim(steps=(Step(noise_multiplier=NOISE, sample_rate=charged),), std=NOISE)

        def release(self, grads, there, randomness):
            some = next(sample_steps(there, randomness, rate=0.5, steps=1))
            return {"sum": add_gaussian_noise(clip_rows(grads[some]).sum(0), NOISE, randomness)}

    assert ("takes part" in reasons(Sampled())) == seen


def test_a_rare_record_is_waited_for():
    mechanism = EngineStep(rule="flat", step=Step(noise_multiplier=1.0, sample_rate=0.01), batch=SIZE * 0.01)
    assert replay(mechanism, SOME).numbers["furthest"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.slow
def test_training_itself_is_left_alone_and_a_wrong_claim_is_not():
    """Sampling, clipping, charging, noise and optimizer of a real run of two steps."""
    given = {"delta": 1e-3, "dataset_size": SIZE, "batch_size": 6, "steps": 2, "solve": "epsilon"}
    honest = TrainingSteps(plan=plan(**given, noise_multiplier=1.0))
    assert reasons(honest, SOME[:1]) == ""

    class Cheat(TrainingSteps):
        @property
        def claim(self):
            return honest.claim

    assert "times what is declared" in reasons(Cheat(plan=plan(**given, noise_multiplier=0.25)), SOME[:1])


def test_scenes_are_all_pairs_of_canary_and_batch():
    names = [scene.name for scene in neighbouring_pairs()]
    assert names == [f"{canary} canary, {batch} batch" for canary in CANARIES for batch in BATCHES]
    for scene in neighbouring_pairs():
        assert torch.equal(scene.with_[0][:-1], scene.without[0][:-1])
        assert scene.without[1][-1] == 0
    for scene in neighbouring_pairs(adjacency="add-remove"):
        assert len(scene.without[1]) == len(scene.with_[1]) - 1
    with pytest.raises(Unsupported, match="replace-one"):
        neighbouring_pairs(adjacency="replace-one")


def test_the_closed_form_gradients_are_autograds():
    x, y = neighbouring_pairs()[0].with_
    model = Sliced()
    for k in range(len(y)):
        model.zero_grad()
        logistic_losses(model(x[k : k + 1]), y[k : k + 1]).sum().backward()
        whole = torch.cat([p.grad.view(-1) for p in model.parameters()])
        assert torch.allclose(whole.double(), logistic_gradients((x, y))[k], atol=1e-6)
    norms = clipped_sum(model, logistic_losses, (x, y)).raw_norms
    assert torch.allclose(norms.double(), logistic_gradients((x, y)).norm(dim=1), atol=1e-5)


def test_quiet_records_are_quiet_and_canaries_loud():
    by_name = {scene.name: logistic_gradients(scene.with_).norm(dim=1) for scene in neighbouring_pairs()}
    assert float(by_name["dirac canary, quiet batch"][:-1].max()) < 2e-3
    assert all(float(norms[-1]) > 2 for name, norms in by_name.items() if not name.startswith("nan"))


def test_frozen_randomness_can_be_had_again():
    one, other = FrozenRandomness(1, 2), FrozenRandomness(1, 3)
    assert one.numpy_generator().random() == other.numpy_generator().random()
    assert (
        torch.rand(3, generator=one.torch_generator()).tolist()
        != torch.rand(3, generator=other.torch_generator()).tolist()
    )
    assert one.draws == ["coins", "noise"]
    assert not one.noise_is_secret


def test_what_is_declared():
    one = mechanism_claim(Step(noise_multiplier=2.0), l2_bound=0.5, divisor=10)
    assert one.std == pytest.approx(0.1)
    assert one.curve.mu == pytest.approx(0.5)
    two = replace(
        one, steps=(Step(noise_multiplier=2.0), Step(noise_multiplier=2.0)), std={"a": 0.1, "b": 0.2}, step_of={"b": 1}
    )
    assert two.curve.mu == pytest.approx(math.sqrt(0.5))
    seen = flatten_releases({"a": torch.ones(2), "b": torch.ones(3)}, two)
    assert np.allclose(seen, [[10, 10, 0], [5, 5, 5]])
    for bad in ({"steps": ()}, {"std": -1.0}):
        with pytest.raises(InvalidValue):
            replace(one, **bad)


def test_the_worst_scenes_come_first():
    mechanism = EngineStep(rule="l2_max", step=Step(noise_multiplier=1.0), uncertified=True)
    found = most_unlike_pairs(mechanism, neighbouring_pairs(), 3)
    assert len(found) == 3
    assert all("quiet" in scene.name or "empty" in scene.name for scene in found)
    assert mechanism(found[0].with_, Randomness(1)).keys() == dict(Sliced().named_parameters()).keys()


# --- one tensor among several ---------------------------------------------------------------------------


class Layers(Right):
    """The sum in four tensors, with noise of its own for each unless `noise` says otherwise."""

    def noise(self, layer, randomness):
        return add_gaussian_noise(torch.zeros(32, dtype=torch.float64), NOISE * CLIP, randomness)

    def release(self, grads, there, randomness):
        parts = torch.split(clip_rows(grads[there]).sum(0), 32)
        return {str(k): (part + self.noise(k, randomness)) / SIZE for k, part in enumerate(parts)}


def test_a_layer_with_noise_of_its_own_is_left_alone():
    assert reasons(Layers()) == ""


def seen_by_samples(mechanism):
    return distinguish(mechanism, SOME[:1], samples=200, randomness=Randomness(1)).verdict == "violation"


@pytest.mark.parametrize(("std", "said"), [(0.0, "some of '3' has no noise"), (0.1, "the noise of '3' spreads by 0.")])
def test_one_layer_without_its_noise_is_seen(std, said):
    """Three of four layers are as declared: over all entries together the noise looks large enough."""

    class Bare(Layers):
        def noise(self, layer, randomness):
            return super().noise(layer, randomness) * (std if layer == 3 else 1.0)

    assert said in reasons(Bare())
    assert seen_by_samples(Bare())


def test_one_entry_without_noise_is_seen():
    class Entry(Layers):
        def noise(self, layer, randomness):
            return super().noise(layer, randomness) * (torch.arange(32) != 5 * layer)

    assert "has no noise" in reasons(Entry())
    assert seen_by_samples(Entry())
    assert not seen_by_samples(Layers())


def test_one_noise_for_all_layers_is_seen():
    """As where a randomness is seeded anew for each: the difference of two layers has no noise at all."""

    class Again(Layers):
        def noise(self, layer, randomness):
            return super().noise(layer, FrozenRandomness(0, randomness.seed))

    assert "the noise of two tensors is the same" in reasons(Again())


def test_one_number_for_all_entries_is_seen():
    class Flat(Layers):
        def noise(self, layer, randomness):
            return add_gaussian_noise(torch.zeros(1, dtype=torch.float64), NOISE * CLIP, randomness).expand(32)

    assert "spreads by 0 times" in reasons(Flat())


def test_coins_are_enough_to_see_a_shared_coin_whatever_their_seed():
    """Both of two releases at rate 1/4 in a quarter of all draws: seen but for a chance of 1 %."""
    least = next(k for k in range(COINS) if stats.binom.sf(k - 1, COINS, 1 / 16) < RARE / 2)
    assert stats.binom.sf(least - 1, COINS, 1 / 4) > 0.99


# --- loops of one's own --------------------------------------------------------------------------------


class AsItComes(ChosenBatch):
    """The same loop, and no batch is left."""

    def is_wanted(self, chosen, *, target):
        return True


class AtPrivateWeights(RawStep):
    """Nothing between the steps: the weights move by private steps alone."""

    def between(self, loop, chosen):
        pass


def loops():
    """Each mistake, a sound twin, and the plan by which the real `Training` does the same without the mistake."""
    given = {
        "delta": 1e-5,
        "dataset_size": SIZE,
        "steps": 2,
        "noise_multiplier": NOISE,
        "solve": "epsilon",
        "clipping_norm": CLIP,
    }
    return [
        (ChosenBatch(), AsItComes(), plan(batch_size=SIZE / 4, **given)),
        (RawStep(), AtPrivateWeights(), plan(batch_size=SIZE, **given)),
    ]


@pytest.mark.parametrize("pair", loops(), ids=["chosen batch", "raw step"])
def test_a_loop_with_the_mistake_is_seen_and_its_sound_twin_is_not(pair):
    bad, twin, planned = pair
    assert bad.claim == twin.claim
    assert bad.claim.steps == tuple(planned.steps)
    assert reasons(bad) != ""
    assert reasons(twin) == ""
    assert reasons(TrainingSteps(plan=planned), SOME[:2]) == ""
    accused = distinguish(bad, SOME[:1], samples=1000, randomness=Randomness(3))
    assert (accused.verdict, accused.mu > accused.mu_claimed) == ("violation", True)
    assert distinguish(twin, SOME[:1], samples=1000, randomness=Randomness(3)).verdict != "violation"


@pytest.mark.parametrize("mechanism", [ChosenBatch(), RawStep()])
def test_each_loop_is_charged_just_what_it_declares(mechanism):
    seen = []

    class Charged(type(mechanism)):
        def train(self, loop):
            super().train(loop)
            seen.append(loop.ledger)

    Charged()(SOME[0].with_, Randomness(1))
    expected = Ledger()
    for one in mechanism.claim.steps:
        expected.add(one)
    assert seen == [expected]
