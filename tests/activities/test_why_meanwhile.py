"""Whoever asks why a job waits holds up nobody else, however long that takes to plan."""

import asyncio
import threading
from typing import Any

import pytest

from longshore.activities import snapshot
from longshore.activities.views import Views
from longshore.client import alone
from longshore.client.explainer import Explainer
from longshore.models.placement import Decision
from longshore.models.settings import Settings
from longshore.scheduling.order import queue_order
from longshore.scheduling.packer import place
from tests.support.ledger import Ledger


async def test_it_is_planned_in_a_thread_once_the_snapshot_is_over(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    await ledger.register(gpus=2)
    await ledger.enqueue("a", gpus=4)
    await ledger.enqueue("b", gpus=4)
    loop, began, goes_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def ordered(*args: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return queue_order(*args)

    def placed(*args: Any, **options: Any) -> Decision:
        assert threading.current_thread() is not threading.main_thread()
        loop.call_soon_threadsafe(began.set)
        assert goes_on.wait(30)
        return place(*args, **options)

    monkeypatch.setattr(snapshot, "queue_order", ordered)
    monkeypatch.setattr(alone, "place", placed)
    (job,) = [each for each in await Views(ledger.database).jobs() if each.id == "b"]
    explainer = Explainer(ledger.database, Settings(), _no_temporal)
    asking = asyncio.create_task(explainer.explanation(job))
    ready = asyncio.create_task(began.wait())
    await asyncio.wait({asking, ready}, return_when=asyncio.FIRST_COMPLETED)
    assert ready.done(), "others go on meanwhile"
    assert not await ledger.rows(
        "SELECT FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'idle in transaction'"
    )
    goes_on.set()
    told = (await asking).decision
    assert told is not None
    assert [each.node_id for each in told.rejections] == ["node-a"]


async def _no_temporal() -> None:
    return None
