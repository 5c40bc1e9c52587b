"""The weights of a queue's score: the seed's profiles, and what is refused."""

import json
from datetime import timedelta

import pytest

from longshore.models.document import Override, load_document
from longshore.models.errors import SpecError
from longshore.models.packing import QueueOrder
from longshore.models.pool import PoolSpec
from longshore.models.score import TERMS, ScorePolicy, ScoreProfile, TermWeights

POOL = '{"name": "default"}'


def pool_with(**packing: object) -> PoolSpec:
    return PoolSpec.model_validate({"packing": packing})


def refused(field: str, value: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_document(POOL, "pool default", PoolSpec, [Override(field, value, "--x")])
    return str(caught.value)


@pytest.mark.parametrize("profile", ScoreProfile)
def test_the_weights_of_each_profile_sum_to_one(profile: ScoreProfile):
    assert sum(weight for _, weight in profile.weights.named()) == pytest.approx(1.0)
    assert [name for name, _ in profile.weights.named()] == list(TERMS)


def test_the_profiles_are_those_of_the_seed():
    """Terms f1 to f9, by the seed's table; balanced is its default of the code."""
    table = {
        "hpc-batch": (0.15, 0.20, 0.20, 0.15, 0.10, 0.05, 0.00, 0.05, 0.10),
        "ml-training": (0.10, 0.10, 0.10, 0.25, 0.15, 0.05, 0.05, 0.10, 0.10),
        "service": (0.15, 0.05, 0.10, 0.05, 0.10, 0.05, 0.10, 0.10, 0.30),
        "sensitive": (0.90, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.10),
        "interactive": (0.10, 0.30, 0.10, 0.00, 0.05, 0.15, 0.00, 0.00, 0.30),
        "balanced": (0.20, 0.20, 0.20, 0.15, 0.10, 0.05, 0.00, 0.00, 0.10),
    }
    seen = {each.value: tuple(w for _, w in each.weights.named()) for each in ScoreProfile}
    assert seen == table


@pytest.mark.parametrize("profile", ScoreProfile)
def test_a_profile_says_how_its_pool_goes_unless_the_pool_does(profile: ScoreProfile):
    stops = profile in ("ml-training", "interactive", "balanced")
    order = QueueOrder.ATTAINED_SERVICE if stops else QueueOrder.AGE
    pool = pool_with(score={"profile": profile})
    assert pool.packing.in_order is order
    by_age = pool_with(score={"profile": profile}, order="age")
    assert by_age.packing.in_order is QueueOrder.AGE
    for one in (pool, by_age):  # also as it is stored
        assert PoolSpec.model_validate(json.loads(one.model_dump_json())) == one


def test_a_pool_without_a_score_is_stored_as_before():
    for pool in (PoolSpec(), pool_with(order="age")):
        stored = pool.packing.model_dump(mode="json")
        assert "score" not in stored
        assert "order" not in stored
    assert pool_with(order="attained-service").packing.model_dump()["order"] == "attained-service"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("packing.score.profile", "balance", "must be hpc-batch, ml-training, service, sensitive, "
         "interactive or balanced, got 'balance'"),
        ("packing.score.weights", "{waiting: .nan}", "weights.waiting: is nan: give a finite "
         "number from 0 to 1"),
        ("packing.score.weights", "{waiting: 1, data: -.1}", "data: is -0.1: give a finite num"),
        ("packing.score.weights", "{waiting: 1e999}", "weights.waiting: is inf"),
        ("packing.score.weights", "{waiting: 0.5, data: 0.4}", "the nine weights sum to 0.9: they "
         "have to sum to 1"),
        ("packing.score.weights", "{wait: 1}", "no such field; did you mean waiting?"),
        ("packing.score", "{profile: service, weights: {waiting: 1}}", "one of the two"),
        ("packing.score", "{half_life: 1d}", "one of the two: profiles are hpc-batch, ml-"),
        ("packing.score", "{profile: service, half_life: 0s}", "must be longer than 0"),
        ("packing.score", "{profile: service, start_above: 1.5}", "must be at most 1, got 1.5"),
        ("packing.score", "{profile: service, shares: {alice: 0}}", "alice has 0: give a"),
        ("packing", "{order: attained-service, score: {profile: sensitive}}", "give waiting a "
         "weight, or the order `age`"),
    ],
)  # fmt: skip
def test_what_is_no_score_is_refused_by_field_and_value(field: str, value: str, says: str):
    assert says in refused(field, value)


def test_weights_may_be_off_one_by_rounding_alone():
    assert TermWeights(waiting=0.3333333, data=0.3333333, topology=0.3333333)
    with pytest.raises(ValueError, match=r"sum to 0\.99999"):
        TermWeights(waiting=0.99999)


def test_a_policy_knows_what_it_has_to_read():
    own = ScorePolicy(weights=TermWeights(waiting=1))
    assert not own.by_share
    assert not own.used.order
    assert own.half_life == timedelta(days=7)
    assert ScorePolicy(profile=ScoreProfile.BALANCED).by_share
    assert not ScorePolicy(profile=ScoreProfile.SENSITIVE).by_share
