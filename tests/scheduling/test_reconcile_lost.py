"""What of bought time no workflow follows: found where nothing under way explains it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from longshore.models.reconcile import FindingKind, FollowBlock, ReconcileRequest, SettlePurchase
from longshore.models.reconcile_seen import (
    BlockSeen,
    Observed,
    PurchaseSeen,
    WorkflowSeen,
    WorkflowState,
)
from longshore.scheduling.reconcile import compare, to_describe
from longshore.scheduling.reconcile_lost import lost
from longshore.scheduling.reconcile_steps import MANY_TRIES

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
OLD, YOUNG = NOW - timedelta(hours=1), NOW - timedelta(seconds=5)
REQUEST = ReconcileRequest()
RUNNING, CLOSED, MISSING = WorkflowState.RUNNING, WorkflowState.CLOSED, WorkflowState.MISSING


def a_flow(id: str, state: WorkflowState, closed_at: datetime = OLD) -> WorkflowSeen:
    ended_at = closed_at if state is CLOSED else None
    return WorkflowSeen(id=id, state=state, started_at=OLD, closed_at=ended_at)


def seen(*flows: WorkflowSeen, **block: Any) -> Observed:
    values = {"id": "b", "purchase_id": "p", "created_at": OLD, **block}
    return Observed(
        at=NOW, node_lost_after=timedelta(seconds=30), blocks=(BlockSeen(**values),),
        workflows={flow.id: flow for flow in flows},
    )  # fmt: skip


@pytest.mark.parametrize("of_purchase", [RUNNING, CLOSED, MISSING])
def test_a_block_whose_workflow_has_ended_is_followed_again(of_purchase: WorkflowState):
    (found,) = compare(seen(a_flow("block-b", CLOSED), a_flow("purchase-p", of_purchase)), REQUEST)
    assert (found.kind, found.subject) == (FindingKind.BLOCK_NOT_FOLLOWED, "block b")
    assert found.mend
    assert found.mend.follow_block == FollowBlock(block_id="b")


def test_a_block_whose_purchase_ended_before_it_began_one_is_followed():
    (found,) = compare(seen(a_flow("block-b", MISSING), a_flow("purchase-p", CLOSED)), REQUEST)
    assert found.kind is FindingKind.BLOCK_NOT_FOLLOWED


def test_a_purchase_that_runs_starts_the_workflow_of_its_block_itself():
    flows = (a_flow("block-b", MISSING), a_flow("purchase-p", RUNNING))
    assert compare(seen(*flows), REQUEST) == ()


@pytest.mark.parametrize(
    "flows",
    [
        (a_flow("block-b", RUNNING),),
        (a_flow("block-b", CLOSED, YOUNG),),
        (a_flow("block-b", MISSING), a_flow("purchase-p", CLOSED, YOUNG)),
        (a_flow("block-b", MISSING),),  # nobody asked after its purchase
        (),
    ],
)
def test_what_is_followed_young_or_not_known_is_left_alone(flows: tuple[WorkflowSeen, ...]):
    assert compare(seen(*flows), REQUEST) == ()


@pytest.mark.parametrize(
    ("flows", "margin"),
    [
        ((a_flow("block-b", CLOSED, YOUNG),), REQUEST.margin),
        ((a_flow("block-b", MISSING), a_flow("purchase-p", CLOSED, YOUNG)), REQUEST.margin),
        ((a_flow("block-b", MISSING), a_flow("purchase-p", MISSING)), REQUEST.missing_margin),
    ],
)
def test_a_block_that_has_just_lost_its_workflow_waits_to_be_judged(
    flows: tuple[WorkflowSeen, ...], margin: timedelta
):
    young = seen(*flows, created_at=YOUNG)
    assert compare(young, REQUEST) == ()
    (waits,) = lost(young, REQUEST)
    assert (waits.finding.subject, waits.after) == ("block b", YOUNG + margin)
    later = young.model_copy(update={"at": waits.after + timedelta(seconds=1)})
    (found,) = compare(later, REQUEST)
    assert (found.kind, found.subject) == (waits.finding.kind, "block b")


def test_a_block_of_which_temporal_knows_nothing_may_be_of_another_namespace():
    flows = (a_flow("block-b", MISSING), a_flow("purchase-p", MISSING))
    (found,) = compare(seen(*flows), REQUEST)
    assert (found.kind, found.mend) == (FindingKind.WORKFLOW_MISSING, None)
    assert "1 of 1 blocks have no workflow" in found.done
    all_the_same = REQUEST.model_copy(update={"even_most": True})
    (found,) = compare(seen(*flows), all_the_same)
    assert found.mend is not None
    assert compare(seen(*flows, created_at=NOW - timedelta(minutes=10)), all_the_same) == ()


def test_a_step_that_fails_again_and_again_is_told():
    """Of those that run a list does not say it: they are described."""
    runs = a_flow("block-b", RUNNING)
    assert to_describe(seen(runs, purchase_id=None), REQUEST) == {"block-b"}
    for tries, told in ((MANY_TRIES - 1, 0), (MANY_TRIES, 1)):
        trouble = "stop_machines was tried 8 times (prime: it does not answer)"
        fails = runs.model_copy(update={"trouble": trouble, "tries": tries})
        found = compare(seen(fails, purchase_id=None), REQUEST)
        kind, of = FindingKind.STEP_FAILS, [each.subject for each in found]
        assert [each.kind for each in found] == [kind] * told
        assert of == ["block b"] * told
        assert all(each.problem == trouble and each.mend is None for each in found)


def test_a_list_that_lacks_a_workflow_is_not_believed():
    assert to_describe(seen(), REQUEST) == {"block-b", "purchase-p"}
    assert to_describe(seen(purchase_id=None), REQUEST) == {"block-b"}


def buying(*flows: WorkflowSeen, created_at: datetime = OLD) -> Observed:
    return Observed(
        at=NOW, node_lost_after=timedelta(seconds=30),
        purchases=(PurchaseSeen(id="p", created_at=created_at),),
        workflows={flow.id: flow for flow in flows},
    )  # fmt: skip


def test_a_purchase_whose_workflow_has_ended_is_settled():
    (found,) = compare(buying(a_flow("purchase-p", CLOSED)), REQUEST)
    assert (found.kind, found.subject) == (FindingKind.PURCHASE_NOT_FOLLOWED, "purchase p")
    assert found.mend
    assert found.mend.settle_purchase == SettlePurchase(purchase_id="p")


@pytest.mark.parametrize("flows", [(), (a_flow("purchase-p", RUNNING),)])
def test_a_purchase_that_runs_or_is_not_known_is_left_alone(flows: tuple[WorkflowSeen, ...]):
    assert lost(buying(*flows), REQUEST) == ()


@pytest.mark.parametrize(
    ("flow", "created_at", "after"),
    [
        (a_flow("purchase-p", CLOSED, YOUNG), OLD, YOUNG + REQUEST.margin),
        (a_flow("purchase-p", MISSING), YOUNG, YOUNG + REQUEST.missing_margin),
    ],
)
def test_a_purchase_that_has_just_lost_its_workflow_waits_to_be_judged(
    flow: WorkflowSeen, created_at: datetime, after: datetime
):
    young = buying(flow, created_at=created_at)
    assert compare(young, REQUEST) == ()
    (waits,) = lost(young, REQUEST)
    assert (waits.finding.subject, waits.after) == ("purchase p", after)


def test_purchases_of_which_temporal_knows_nothing_may_be_of_another_namespace():
    (found,) = compare(buying(a_flow("purchase-p", MISSING)), REQUEST)
    assert (found.kind, found.mend) == (FindingKind.WORKFLOW_MISSING, None)
    assert "1 of 1 purchases have no workflow" in found.done


def test_the_workflow_of_a_purchase_is_looked_for():
    assert to_describe(buying(), REQUEST) == {"purchase-p"}
    assert to_describe(buying(a_flow("purchase-p", RUNNING)), REQUEST) == {"purchase-p"}
