"""Which waiting jobs are to start on what was bought and is no node yet, and when."""

from datetime import timedelta
from typing import Any

from longshore.models.buying import CapacityUnderWay, Coming
from longshore.models.job import Tier
from longshore.models.spending import PurchaseUnderWay
from longshore.models.topology import Gang
from longshore.scheduling.buying.incoming_capacity import with_bought
from longshore.scheduling.buying.words import under_way
from tests.support.buying import NOW, a_job, a_release, decided, exchange

SOON = NOW + timedelta(minutes=10)
HOUR = timedelta(hours=1)
BOOK = exchange(("2.00", 64))


def test_a_machine_that_is_refused_has_no_time_that_anybody_could_promise():
    purchase = PurchaseUnderWay(
        id="p-1", nodes=1, instance_type="8xH100", provider="cloud", ready_at=SOON,
        committed_micro_usd=12_000_000,
    )  # fmt: skip
    at = f"{SOON:%H:%M} UTC"
    assert under_way([purchase]).endswith(f"is under way, ready about {at}")
    late = purchase.model_copy(update={"late": True})
    assert under_way([late]).endswith(f"late: it was to be ready about {at}")
    refused = purchase.model_copy(update={"refused": "403"})
    assert under_way([refused]).endswith(
        f"ready after {at} at best: a machine is asked for again, after: 403"
    )


def coming(name: str = "p1", nodes: int = 1, **fields: Any) -> CapacityUnderWay:
    defaults = {"id": name, "instance_type": "8xH100-80GB", "nodes": nodes, "expected_at": SOON,
                "provider": "cloud"}  # fmt: skip
    return CapacityUnderWay.model_validate({**defaults, **fields})


def test_a_job_starts_when_its_purchase_is_there_and_the_next_when_it_has_ended():
    jobs = [a_job("a", 8, 2), a_job("b", 8, 1)]
    found = decided(jobs, under_way=[coming()]).coming
    assert found == {
        "a": Coming(purchases=("p1",), start=SOON),
        "b": Coming(purchases=("p1",), start=SOON + 2 * HOUR),
    }


def test_two_purchases_serve_a_job_each_and_a_gang_may_have_both():
    under_way = [coming("p1", place="a"), coming("p2", place="a", expected_at=SOON + HOUR)]
    apart = decided([a_job("a", 8, 2), a_job("b", 8, 2)], under_way=under_way).coming
    assert {name: (c.purchases, c.start) for name, c in apart.items()} == {
        "a": (("p1",), SOON), "b": (("p2",), SOON + HOUR),
    }  # fmt: skip
    gang = a_job("g", 16, 2, gang=Gang(group_gpus=8))
    together = decided([gang], under_way=under_way).coming["g"]
    assert sorted(together.purchases) == ["p1", "p2"]
    assert together.start == SOON + HOUR


def test_a_job_that_a_node_holds_waits_for_no_purchase():
    jobs = [a_job("a", 8, 1)]
    assert decided(jobs, under_way=[coming()], releases=[a_release()]).coming == {}
    other = [a_job("a", 8, 1, tier=Tier.FLEX)]
    assert decided(other, under_way=[coming()]).coming == {}


def test_what_is_under_way_is_known_also_where_nothing_may_be_bought():
    stopped = decided([a_job("a", 8)], under_way=[coming()], policy={"enabled": False})
    assert stopped.reason == "buying is off for this pool"
    assert stopped.coming["a"].purchases == ("p1",)


def test_what_is_decided_now_is_on_its_way_once_it_is_stored():
    decision = decided([a_job("a", 8, 2), a_job("b", 8, 2, tier=Tier.FLEX)], BOOK,
                       policy={"flex_price": 3_000_000})  # fmt: skip
    assert [plan.serves for plan in decision.plans] == [("a",), ("b",)]
    first = decision.plans[0].ready_at
    assert with_bought(decision, {0: "p-1", 1: "p-2"}) == {
        "a": Coming(purchases=("p-1",), start=first),
        "b": Coming(purchases=("p-2",), start=decision.plans[1].ready_at),
    }
    # The second was refused by a cap of the database.
    assert with_bought(decision, {0: "p-1"}).keys() == {"a"}
    assert decision.coming == {}
