"""Signals to workflows that take none any more."""

from typing import Any

import pytest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.signals import Signals
from longshore.models.messages import EnqueueRequest, LeaseEnd, ReleaseRequest
from longshore.models.placement import PlacementKey
from tests.support.ledger import SUBMITTED_AT, Ledger
from tests.support.recorded_service import ENGINE

_TOO_MANY = "exceeded workflow execution limit for signal events"


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has Temporal refuse signals to job a, as it does after 10,000 of them."""
    tell = WorkflowHandle[Any, Any].signal

    async def signal(self: WorkflowHandle[Any, Any], *args: Any, **how: Any) -> None:
        if self.id == "job-a":
            raise RPCError(_TOO_MANY, RPCStatusCode.INVALID_ARGUMENT, b"")
        await tell(self, *args, **how)

    monkeypatch.setattr(WorkflowHandle, "signal", signal)


@pytest.mark.usefixtures("full")
async def test_a_job_that_takes_no_more_signals_keeps_no_other_from_its_placement(ledger: Ledger):
    await ledger.register()
    async with ledger.listening("a", "b"):
        for job in ("a", "b"):
            await ledger.enqueue(job)
        reply = await ledger.cycle("1")
        assert (reply.placed, reply.withdrawn) == (2, 1)
        assert await ledger.told("b", "placed") == 1
        ended = "SELECT job_id, end_message FROM placements WHERE end_reason = 'withdrawn'"
        assert await ledger.rows(ended) == [
            {"job_id": "a", "end_message": "its workflow takes no more signals"}
        ]


@pytest.mark.usefixtures("full")
async def test_an_array_that_takes_no_more_signals_keeps_no_slot_from_its_end(ledger: Ledger):
    async with ledger.listening("a"):
        await Signals(ledger.temporal).poke_array("a")


async def test_a_service_is_told_that_a_replica_is_in_the_queue_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    told = list[str]()

    async def poke(_signals: Signals, service: str) -> None:
        told.append(service)

    monkeypatch.setattr(Signals, "poke_service", poke)
    engine = ENGINE.model_copy(update={"service": "chat"}).model_dump(mode="json")
    await ledger.register()
    await ledger.enqueue("c", command=None, engine=engine)
    assert told == [], "it has started the job itself"
    await ledger.cycle("1")
    await ledger.release("c")
    await ledger.enqueue("c", attempt=2, command=None, engine=engine)
    assert told == ["chat"], "after a failure"
    await ledger.cycle("2")
    then = EnqueueRequest(
        job_id="c", attempt=3, spec=ledger.spec(command=None, engine=engine),
        submitted_at=SUBMITTED_AT,
    )  # fmt: skip
    key = PlacementKey(job_id="c", attempt=2)
    moved = ReleaseRequest(key=key, reason=LeaseEnd.MOVED, then=then)
    assert await ledger.run(ledger.queue.release, moved)
    assert told == ["chat", "chat"], "after a move"
