"""What was decided of a job, and what it asks for, with all that somebody may write there by hand:
`why` goes on without it, or says that the job is set aside."""

from datetime import UTC, datetime
from typing import Any

import pytest

from longshore.activities.placements import load_placement
from longshore.activities.queue_views import QueueViews
from longshore.activities.views import Views
from longshore.client.explainer import Explainer
from longshore.client.why_view import explanation_screen
from longshore.models.explanation import Explanation
from longshore.models.placement import PlacementKey, PlacementKind
from longshore.models.settings import Settings
from tests.support.ledger import Ledger
from tests.support.screens import drawn

ANY_VALUE = (
    "null",
    "7",
    '"x"',
    "[]",
    "[1]",
    "{}",
    '{"kind": ["x"], "reason": [1]}',
    '[{"job_id": 7}]',
)
PLAN = '{"job_id": "waits", "at": "2026-11-20T12:00:00Z", "reason": "costs less"}'
READS = {"queue.decision": "waits", "queue.spared": "waits", "preemptions.plan": "waits",
         "placements.decision": "runs", "checkpoint_decisions.decision": "runs"}  # fmt: skip
"""Whose `why` reads what."""


@pytest.mark.parametrize("place", READS)
async def test_a_decision_that_cannot_be_read_counts_as_none(ledger: Ledger, place: str):
    await _fill(ledger)
    table, column = place.split(".")
    if table == "placements":  # the database rewrites none: here it is as if it were new
        await ledger.rows("ALTER TABLE placements DISABLE TRIGGER USER")
    for value in ANY_VALUE:
        await ledger.rows(
            f"UPDATE {table} SET {column} = CAST(:value AS jsonb) WHERE job_id = :job",
            value=value, job="runs" if table == "preemptions" else READS[place],
        )  # fmt: skip
        try:
            for job in ("waits", "runs"):
                told = await _why(ledger, job)
                assert told.spared == () or table != "queue"
                if place == "queue.decision" and job == "waits":
                    assert told.last_decision is None
            await QueueViews(ledger.database).queue(ledger.pool)
            async with ledger.database.transaction() as connection:
                key = PlacementKey(job_id="runs", attempt=1)
                assert await load_placement(connection, key)  # for its workflow
        except Exception as error:
            raise AssertionError(f"{place} = {value}: {error!r}") from error


@pytest.mark.parametrize("looked", [False, True], ids=["before-a-cycle", "after-it"])
@pytest.mark.parametrize("nodes", [0, 1])
@pytest.mark.parametrize("stored", ["[]", '{"gpus": "many"}'])
async def test_a_job_whose_request_cannot_be_read_is_said_to_be_set_aside(
    ledger: Ledger, stored: str, nodes: int, looked: bool
):
    if nodes:
        await ledger.register(gpus=2)
    await ledger.enqueue("waits", gpus=4)
    async with ledger.listening("waits"):
        await ledger.cycle("before")
        await ledger.rows("UPDATE queue SET request = CAST(:stored AS jsonb)", stored=stored)
        if looked:
            await ledger.rows("UPDATE queue SET decision = NULL")
            await ledger.cycle("anew")
    told = await _why(ledger, "waits")
    assert told.headline.startswith("is set aside: its stored form cannot be read (")
    assert told.last_decision is not None
    assert told.last_decision.kind is PlacementKind.SET_ASIDE
    assert (told.position, told.hints) == (None, ())
    shown = "\n".join(drawn(explanation_screen(told, datetime.now(UTC))))
    assert "waits since" in shown
    assert " place " not in shown


async def _why(ledger: Ledger, job_id: str) -> Explanation:
    job = await Views(ledger.database).job(job_id)
    return await Explainer(ledger.database, Settings(), _no_temporal).explanation(job)


async def _fill(ledger: Ledger) -> None:
    """Have one job make room for another that waits."""
    await ledger.rows('UPDATE pools SET spec = spec || \'{"preemption": {"enabled": true}}\'')
    await ledger.register(gpus=2)
    asks: dict[str, Any] = {"gpus": 2}
    await ledger.enqueue("runs", **asks)
    async with ledger.listening("runs", "waits"):
        assert (await ledger.cycle("first")).placed == 1
        await ledger.enqueue("waits", **asks)
        await ledger.cycle("second")
    await ledger.rows(
        "INSERT INTO preemptions (job_id, attempt, pool, cycle_id, for_job, for_attempt, priority,"
        " for_priority, plan, frees_by) VALUES ('runs', 1, :pool, 'first', 'waits', 1, 0, 7,"
        " CAST(:plan AS jsonb), now() + interval '1 minute')",
        pool=ledger.pool, plan=PLAN,
    )  # fmt: skip
    await ledger.rows(
        "INSERT INTO checkpoint_decisions (job_id, attempt, decision, decided_at)"
        " VALUES ('runs', 1, '{}', now())"
    )


async def _no_temporal() -> None:
    return None
