"""Elements of an array on their node, without an agent: how they are stopped, what they write."""

import shlex
import sys

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
