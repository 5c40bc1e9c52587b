"""Elements of an array on their node, without an agent: how they are stopped, what they write."""

import shlex
import sys
import threading

import pytest

from longshore.activities.node.supervision import Supervised
from longshore.models.array_messages import StopElements
from longshore.models.placement import PlacementKey
from tests.agent.conftest import LocalNode
from tests.support.programs import COUNTS_STOPS


async def test_what_an_element_started_in_a_group_of_its_own_gets_the_signal_once(
    box: LocalNode,
) -> None:
    program = shlex.join(["setsid", sys.executable, "-c", COUNTS_STOPS])
    run = box.start_batch(f"trap : TERM; {program} & wait; wait", 2)
    await box.says(run, "ready")
    batch = (await box.stop(run, grace=30)).batch
    assert batch
    assert [(each.index, each.stopped) for each in batch.results] == [(0, True)]
    assert box.output(run.record.key) == "ready\nheard 1\n"


async def test_elements_are_cancelled_where_their_supervisor_may_be_told(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe to it belongs to the event loop."""
    told_in, signal = list[int](), Supervised.signal

    def tell(self: Supervised, signal_number: int) -> None:
        told_in.append(threading.get_ident())
        signal(self, signal_number)

    monkeypatch.setattr(Supervised, "signal", tell)
    run = box.start_batch("echo ready; sleep 300", 2, job="slot")
    await box.says(run, "ready")
    slot = PlacementKey(job_id="slot", attempt=1)
    await box.processes.stop_elements(StopElements(key=slot, batch=1, indices=(0, 1)))
    batch = (await run.done).batch
    assert batch
    assert [(each.index, each.cancelled) for each in batch.results] == [(0, True), (1, True)]
    assert told_in == [threading.get_ident()]
