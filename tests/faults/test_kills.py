"""Forty kill -9 under load, ten each of two control workers, PostgreSQL, Temporal and an agent.

What runs when its agent is killed is killed too, and begins anew: it may have written its last
line by then. What had exited by itself does not, if its agent starts anew before its node is lost.

The seed that is printed with a failure chooses jobs and moments again: `LONGSHORE_SEED=...`.
"""

import asyncio
import os
import random
import uuid
from datetime import timedelta
from itertools import cycle

import pytest

from longshore.client.reconcile import reconcile
from longshore.models.reconcile import ReconcileRequest
from tests.faults import scenes
from tests.faults.fleet import GPUS_PER_NODE, PATIENCE, Fleet
from tests.faults.invariants import check
from tests.faults.kills import PARTS, kill_now_and_then, planned_in_turn
from tests.support.marks import marked

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]
JOBS, KILLS = 300, 40
LINES_BETWEEN = 2 * JOBS // (KILLS + 1)
"""Lines of the journal: a job writes two, or more where it is repeated."""
AT_REST = ReconcileRequest(
    margin=timedelta(seconds=5), missing_margin=timedelta(seconds=5), dry_run=True
)


async def test_each_job_ends_and_again_only_where_nobody_heard_it(large_fleet: Fleet) -> None:
    seed = int(os.environ.get("LONGSHORE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"the seed is LONGSHORE_SEED={seed}")
    mark = uuid.uuid4().hex
    submitting = asyncio.create_task(_submit(large_fleet, random.Random(seed), mark))
    kills = zip(range(LINES_BETWEEN, 2 * JOBS, LINES_BETWEEN), cycle(PARTS), strict=False)
    try:
        await kill_now_and_then(large_fleet, random.Random(seed + 1), list(kills)[:KILLS])
        async with asyncio.timeout(PATIENCE):
            submitted = await submitting
        await check(large_fleet, submitted)
        assert await planned_in_turn(large_fleet, "default")
    finally:
        submitting.cancel()
    journal = large_fleet.journal.by_job()
    starts = sum(line.word == "start" for line in large_fleet.journal.lines())
    print(f"{starts} starts of {len(submitted)} jobs")
    lost = {(row["job_id"], row["attempt"]) for row in large_fleet.rows(_WITH_THEIR_NODE)}
    for job in submitted:
        *earlier, _last = [line.attempt for line in journal[job] if line.word == "end"]
        unheard = [attempt for attempt in earlier if (job, attempt) in lost]
        assert earlier == unheard, journal[job]
    assert not marked(mark)
    report = await reconcile(large_fleet.longshore, AT_REST)
    assert report.findings == ()


_WITH_THEIR_NODE = "SELECT job_id, attempt FROM placements WHERE end_reason = 'node-lost'"


async def _submit(fleet: Fleet, chance: random.Random, mark: str) -> list[str]:
    """Submit the jobs; return their ids."""
    specs = [
        fleet.journal.job(
            f"job-{number}",
            round(chance.uniform(0.3, 3), 2),
            gpus=chance.randint(1, GPUS_PER_NODE),
            env={"MARK": mark},
        )
        for number in range(JOBS)
    ]
    return [await scenes.submit(fleet, spec) for spec in specs]
