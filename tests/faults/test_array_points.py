"""The control worker, the servers and an agent are killed at each step of an array: each element
runs at most once per attempt, and none is lost. Only a lost node costs an attempt.

One case runs always, the others with `make faults`.
"""

import asyncio
from typing import get_args

import pytest

from longshore.activities.failpoints import ArrayPoint
from longshore.workers.stack import agent_process
from tests.faults import scenes
from tests.faults.cases import cases_of
from tests.faults.chaos.many import ManyAsOne
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet
from tests.faults.invariants import check
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)

AGENT = "agent"
FIRST, LATER = "first", "later"
"""Whether it is the first time that an array comes to a point, or once an element has begun: then
a claim brings the results of the batch before it, and a look may find the end."""
COMES_AGAIN = ("claim_elements", "advance_array.before-commit", "advance_array.after-commit")
ALWAYS = {
    ("claim_elements.after-commit", LATER, CONTROL),
}
CANCELLED = {4, 5}
"""The last two elements: nothing has begun of them when the first begins."""

LOST = """
    SELECT index, attempt, job_id, message FROM elements e
     WHERE array_id = %s AND NOT newest
       AND NOT EXISTS (SELECT FROM placements p
                        WHERE p.job_id = e.job_id AND p.attempt = e.job_attempt
                          AND p.end_reason = 'node-lost')
"""
"""Attempts that failed, although their node was there: it may be lost where a server is away long.
"""


def _cases() -> list[object]:
    cases: list[tuple[str, str, str]] = []
    for point in get_args(ArrayPoint):
        is_claim = point.startswith("claim_elements")
        cases += [(point, FIRST, each) for each in (CONTROL, TEMPORAL, POSTGRES)]
        if point.startswith(COMES_AGAIN):
            victims = (CONTROL, TEMPORAL, POSTGRES, *([AGENT] if is_claim else []))
            cases += [(point, LATER, each) for each in victims]
    return cases_of(cases, ALWAYS)


@pytest.fixture(scope="module")
def many(fleet: Fleet) -> ManyAsOne:
    return ManyAsOne(fleet)


@pytest.mark.parametrize(("point", "when", "victim"), _cases())
async def test_each_element_runs_once_per_attempt(
    fleet: Fleet, many: ManyAsOne, point: ArrayPoint, when: str, victim: str
) -> None:
    if when == FIRST:
        fleet.arm(point)
    running = asyncio.create_task(_run(fleet, many, point, when))
    try:
        await fleet.reached(point)
        await asyncio.to_thread(_kill, fleet, victim)
        fleet.let_go(point)
        await asyncio.to_thread(fleet.start_what_is_missing)
        async with asyncio.timeout(PATIENCE):
            array_id = await running
    finally:
        fleet.let_go(point)
        running.cancel()
        await asyncio.to_thread(fleet.start_what_is_missing)
    jobs, problems = await many.to_check()
    assert not problems, "\n".join(problems)
    assert victim == AGENT or not fleet.rows(LOST, array_id)
    await check(fleet, jobs)


async def _run(fleet: Fleet, many: ManyAsOne, point: ArrayPoint, when: str) -> str:
    """Submit an array once, however often that takes, and wait for its end; return its id."""
    array_id = await many.submit_elements("sweep", 0.5, "0-5%2")
    if when == LATER:
        await eventually(lambda: many.has_begun(array_id), timeout=PATIENCE)
        fleet.arm(point)
    if point.startswith("cancel_elements"):
        await eventually(lambda: many.has_begun(array_id), timeout=PATIENCE)
        many.cancelled[array_id] |= CANCELLED
        indices = ",".join(map(str, sorted(CANCELLED)))
        reply = await scenes.until_answered(
            lambda: fleet.longshore.cancel_elements(array_id, indices)
        )
        assert reply.waiting + reply.running + reply.ended == len(CANCELLED)
        ended = "SELECT index FROM elements WHERE array_id = %s AND state = 'CANCELLED'"
        assert len(fleet.rows(ended, array_id)) >= reply.waiting
    await many.wait()
    return array_id


def _kill(fleet: Fleet, victim: str) -> None:
    """Kill a process of the control plane, or the agent of the array's newest slot."""
    fleet.kill(agent_process(fleet.live_placements()[-1]) if victim == AGENT else victim)
