"""One purchase is of at most 64 nodes."""

import pytest

from longshore.models.buying_policy import BuyingRule
from longshore.models.purchase import MOST_NODES
from longshore.models.topology import Gang
from tests.support.buying import a_job, decided, exchange

BOOK = exchange(("2.00", 8 * 300))


@pytest.mark.parametrize("rule", list(BuyingRule))
def test_a_gang_that_needs_more_keeps_nobody_from_being_bought_for_and_says_why(rule: BuyingRule):
    gang = a_job("gang", 8 * (MOST_NODES + 1), gang=Gang())
    decision = decided([gang, a_job("small")], BOOK, rule=rule)
    assert [plan.serves for plan in decision.plans] == [("small",)]
    assert decision.in_vain["gang"] == (
        "it needs 65 machines at least, and a purchase is of 64 at most"
    )
    assert decision.in_vain["gang"] in decided([gang], BOOK, rule=rule).reason
    at_most = decided([a_job("gang", 8 * MOST_NODES, gang=Gang())], BOOK, rule=rule)
    assert [plan.nodes for plan in at_most.plans] == [MOST_NODES]


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("rule", list(BuyingRule))
def test_of_a_long_queue_and_a_large_target_it_buys_what_one_purchase_holds(rule: BuyingRule):
    jobs = [a_job(f"a{number:02}", 8) for number in range(40)]
    decision = decided(jobs, BOOK, rule=rule, fast_warm_gpus=8 * 100)
    assert decision.plans
    assert all(plan.nodes <= MOST_NODES for plan in decision.plans)
