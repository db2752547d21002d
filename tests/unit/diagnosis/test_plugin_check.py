"""Parts given by their address: what is no such part is refused when planning, and an accountant only claims."""

import sys

import pytest

from outside_parts import Dear
from privet import accounting, plan
from privet.accounting import Ledger, Step, spent
from privet.accounting.accountant import registry as accountants
from privet.attacks import resolve_attack
from privet.clipping.rule import clipping_rule, register
from privet.data import task
from privet.errors import InvalidValue, Unsupported
from privet.models import model
from privet.planning import Recipe
from privet.planning.clipping_rules import registry

for names in (accountants, registry):  # before a test has a copy of them: a module registers but once
    list(map(names.maker, names.names()))
BUDGET = {"epsilon": 2.0, "delta": 1e-5, "dataset_size": 60000, "batch_size": 256, "epochs": 1}


def ledger(noise=1.1, rate=0.01, count=100, **more):
    found = Ledger()
    found.add(Step(noise_multiplier=noise, sample_rate=rate, **more), count)
    return found


# --- what is no such part ------------------------------------------------------------------------------

NOT_A_PART = {
    "os.path:join": "It is a function",
    "math:pi": "It is a float",
    "no.such.module:Thing": "cannot be imported: No module named 'no'",
    "outside_parts:Nothing": "outside_parts has no 'Nothing'",
    "outside_parts:not_a_class": "It is a function",
    ":Thing": "must be an address",
}
WRONG_KIND = {"rule": "Halves", "accountant": "Halves", "noise_multiplier": "NoOp", "clipping_norm": "Cheap"}


@pytest.mark.parametrize("kind", WRONG_KIND)
@pytest.mark.parametrize("address", NOT_A_PART)
def test_an_address_of_nothing_is_refused_when_planning(kind, address):
    with pytest.raises(InvalidValue) as caught:
        plan(**BUDGET, **{kind: address})
    said = str(caught.value)
    assert NOT_A_PART[address] in said
    assert ("schedule" if kind in ("noise", "clip") else kind) in said
    assert "\n" not in said


@pytest.mark.parametrize(("kind", "name"), WRONG_KIND.items())
def test_a_part_of_another_kind_is_refused_by_what_it_lacks(kind, name):
    with pytest.raises(InvalidValue, match=r"must be a class with .*It is a class without"):
        plan(**BUDGET, **{kind: f"outside_parts:{name}"})


@pytest.mark.parametrize("address", ["os.path:join", "no.such.module:Thing", "outside_parts:Halves", "math:pi"])
@pytest.mark.parametrize("make", [task, model, resolve_attack, clipping_rule], ids=["task", "model", "attack", "rule"])
def test_so_are_parts_of_a_run(make, address):
    with pytest.raises(InvalidValue) as caught:
        make(address)
    assert address in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("outside_parts:HalfAdaptive", "current_clip, transform, statistics"),
        ("outside_parts:Fussy", "cannot be made: part must be given"),
        ("outside_parts:NoOp:part=1", "has no option 'part'"),
        ("outside_parts:", "is not known"),
        ("own_rules:OwnNorm", "a rule of ours by another address"),
    ],
)
def test_a_rule_that_could_not_be_used_is_refused_when_planning(rule, says, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_rules", sys.modules["privet.published.clipping"])
    with pytest.raises(InvalidValue, match=says):
        Recipe.of(**BUDGET, rule=rule)


def test_a_rule_of_ones_own_cannot_ask_to_go_past_its_bound():
    with pytest.raises(Unsupported, match="caveat='because'"):
        Recipe.of(**BUDGET, rule="outside_parts:Asks")


def test_a_rule_by_its_name_is_planned_and_held_like_one_by_its_address(monkeypatch):
    monkeypatch.setattr(registry, "_makers", dict(registry._makers))
    from outside_parts import NoOp

    assert plan(**BUDGET, rule="outside_parts:NoOp").guarantee.label == "certified"
    register("no-op")(NoOp)
    found = plan(**BUDGET, rule="no-op")
    assert (found.guarantee.label, found.rule, found.is_unsound) == ("certified", "no-op", False)
    assert not registry.is_ours(clipping_rule("no-op"))


@pytest.mark.parametrize("given", ["os.path:join", "outside_parts:NoOp"])
def test_a_sampling_has_a_name_and_no_address(given):
    with pytest.raises(InvalidValue, match=r"sampling=.* is not known\. Known: poisson"):
        plan(**BUDGET, sampling=given)


# --- accountants --------------------------------------------------------------------------------------


def test_all_of_ours_are_known_as_ours():
    assert all(accountants.is_ours(accountants.make(name)) for name in accountants.names())
    assert not accountants.is_ours(Dear())


def test_an_accountant_from_outside_claims_whatever_it_says():
    exact, found = spent(ledger(), 1e-5), spent(ledger(), 1e-5, accountant="outside_parts:Dear")
    assert (found.label, found.method) == ("claimed", "outside_parts:Dear")
    assert found.epsilon == 1.5 * exact.epsilon
    assert found.epsilon_lower is None, "its lower bound is no more proven than its upper one"
    assert "certified" not in str(found)


def test_it_claims_by_its_name_too(monkeypatch):
    monkeypatch.setattr(accountants, "_makers", dict(accountants._makers))
    accounting.register("dear")(Dear)
    assert spent(ledger(), 1e-5, accountant="dear").label == "claimed"


def test_what_is_below_the_proven_lower_bound_is_refused():
    with pytest.raises(InvalidValue, match=r"outside_parts:Cheap' gives epsilon=0.001, but 'pld' proves that 0\.549"):
        spent(ledger(), 1e-5, accountant="outside_parts:Cheap")
    with pytest.raises(InvalidValue, match="An upper bound cannot be below it"):
        plan(**BUDGET, accountant="outside_parts:Cheap")


def test_where_pld_has_no_theorem_it_is_a_claim_that_nobody_contradicts():
    found = spent(ledger(sampling="fixed-size"), 1e-5, accountant="outside_parts:Cheap")
    assert (found.label, found.epsilon) == ("claimed", 1e-3)


@pytest.mark.parametrize(("name", "says"), [("Torn", "fails on this ledger"), ("Unnamed", "label='proven'")])
def test_an_answer_that_is_none_is_refused(name, says):
    with pytest.raises(InvalidValue, match=says):
        spent(ledger(), 1e-5, accountant=f"outside_parts:{name}")


def test_a_plan_by_such_an_accountant_shows_what_is_proven_beside_it(tmp_path):
    found = plan(**BUDGET, accountant="outside_parts:Dear")
    assert found.guarantee.label == "claimed"
    assert found.certified is not None
    assert (found.certified.label, found.certified.method) == ("certified", "pld")
    found.save(tmp_path / "plan.json")
    assert type(found).load(tmp_path / "plan.json").guarantee == found.guarantee
