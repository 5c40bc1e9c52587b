"""What cycles write of jobs that wait: what has changed, and nothing else."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from longshore.activities.database import clock
from longshore.activities.explanations import STORED_COLUMNS, explain_waiting, stored_of
from longshore.models.messages import Waiting
from longshore.models.placement import CyclePlan, Decision, PlacementKind
from longshore.scheduling.reason_updates import Stored
from tests.support.ledger import Ledger

_VERSIONS = (
    "SELECT job_id, CAST(xmin AS text) AS version, told_at, decided_at FROM queue ORDER BY 1"
)


async def test_a_cycle_without_a_change_writes_nothing_of_the_queue(ledger: Ledger):
    await _wait(ledger, 60)
    for cycle in ("one", "two"):  # 50 jobs are told at a time
        await ledger.cycle(cycle)
    before = await ledger.rows(_VERSIONS)
    assert all(row["told_at"] and row["decided_at"] for row in before)
    await ledger.rows("UPDATE queue SET told_at = told_at - interval '1 hour'")
    before = await ledger.rows(_VERSIONS)
    assert (await ledger.cycle("three")).queued == 60
    assert await ledger.rows(_VERSIONS) == before


async def test_numbers_in_words_are_written_for_a_few_and_told_to_nobody(ledger: Ledger):
    await _wait(ledger, 60)
    for cycle in ("one", "two"):
        await ledger.cycle(cycle)
    await ledger.rows("UPDATE queue SET told_at = told_at - interval '1 hour'")
    before = await ledger.rows(_VERSIONS)
    await ledger.register("node-b")
    await ledger.cycle("three")
    assert await ledger.rows(_VERSIONS) == before  # said a moment ago
    await ledger.rows("UPDATE queue SET decided_at = decided_at - interval '1 hour'")
    await ledger.cycle("four")
    counts = "SELECT decision->'rejected'->>'not-enough-gpus' AS n, count(*) FROM queue GROUP BY 1"
    assert {row["n"]: row["count"] for row in await ledger.rows(counts)} == {"1": 10, "2": 50}
    lately = "SELECT count(*) FROM queue WHERE told_at > clock_timestamp() - interval '1 min'"
    assert await ledger.value(lately) == 0
    unheard = "SELECT count(*) FROM queue WHERE told_reason <> decision->>'reason'"
    assert await ledger.value(unheard) == 0
    await ledger.cycle("five")
    assert await ledger.value("SELECT count(*) FROM queue WHERE decision->'rejected'"
                              "->>'not-enough-gpus' = '2'") == 60  # fmt: skip


async def test_another_constraint_is_written_and_told_of_every_job(ledger: Ledger):
    await ledger.register("node-a")
    async with ledger.listening("a"):
        await ledger.enqueue("a", gpus=2)
        await ledger.cycle("one")
        await ledger.enqueue("b", gpus=2)
        await ledger.cycle("two")
        assert await _said(ledger, "b") == (1, ["gpus-busy"], True)
        await ledger.rows("UPDATE queue SET told_at = told_at - interval '1 hour'")
        await ledger.rows("UPDATE nodes SET state = 'DRAINING'")
        await ledger.cycle("three")
        assert await _said(ledger, "b") == (1, ["node-not-ready"], True)
        heard = await ledger.value("SELECT told_reason = decision->>'reason' FROM queue")
        assert heard


async def test_an_attempt_that_came_meanwhile_is_not_told_of_the_one_before(ledger: Ledger):
    await _wait(ledger, 1)
    await ledger.release("job-00")
    await ledger.enqueue("job-00", attempt=2, gpus=3)
    assert await _explain_as_planned(ledger) == []
    row = await ledger.rows("SELECT attempt, decision, told_at FROM queue")
    assert row == [{"attempt": 2, "decision": None, "told_at": None}]


def test_the_start_that_was_news_last_is_stored_beside_the_estimate():
    start, told = (
        datetime(2026, 11, 20, 13, 0, 40, tzinfo=UTC),
        datetime(2026, 11, 20, 13, tzinfo=UTC),
    )
    said = Decision(job_id="a", kind=PlacementKind.REQUEST_MORE_CAPACITY, estimated_start=start)
    row = {"attempt": 1, "decided_at": start, "told_reason": None, "told_at": None}
    for start_told in (None, told):
        made = said.model_copy(update={"start_told": start_told}).model_dump(mode="json")
        assert ("start_told" in made) == (start_told is not None)
        stored = stored_of({**row, "decision": made})
        assert (stored.start, stored.start_told) == (start, start_told)


async def test_what_another_version_stored_is_written_anew(ledger: Ledger):
    await _wait(ledger, 1)
    await ledger.cycle("one")
    for odd in ('{"kind": "TOMORROW"}', "{}", "[]", '{"kind": "SET_ASIDE", "rejected": 1}'):
        await ledger.rows("UPDATE queue SET decision = CAST(:odd AS jsonb),"
                          " decided_at = decided_at - interval '1 hour'", odd=odd)  # fmt: skip
        await ledger.cycle(f"after {odd}")
        assert await _said(ledger, "job-00") == (1, ["not-enough-gpus"], True)


async def test_a_job_that_is_held_while_its_cycle_plans_hears_nothing(ledger: Ledger):
    await _wait(ledger, 1)
    await ledger.rows("UPDATE queue SET held = true")
    assert await _explain_as_planned(ledger) == []
    row = await ledger.rows("SELECT attempt, decision, told_at FROM queue")
    assert row == [{"attempt": 1, "decision": None, "told_at": None}]


async def _explain_as_planned(ledger: Ledger) -> list[tuple[str, Waiting]]:
    """Explain what was planned of the first attempt, when it stood in the queue."""
    said = Decision(job_id="job-00", kind=PlacementKind.REQUEST_MORE_CAPACITY, reason="no room")
    async with ledger.database.transaction() as connection:
        plan, stored = CyclePlan(decisions=(said,)), {"job-00": Stored(attempt=1)}
        return await explain_waiting(connection, plan, stored, await clock(connection))


async def _said(ledger: Ledger, job: str) -> tuple[int, list[str], bool]:
    async with ledger.database.transaction() as connection:
        query = text(f"SELECT {STORED_COLUMNS}, clock_timestamp() AS now FROM queue"
                     " WHERE job_id = :job")  # fmt: skip
        row = (await connection.execute(query, {"job": job})).mappings().one()
    stored = stored_of(row)
    lately = stored.at is not None and row["now"] - stored.at < timedelta(minutes=1)
    return stored.attempt, sorted(stored.codes), lately


async def _wait(ledger: Ledger, jobs: int) -> None:
    """Let so many jobs wait for more GPUs than the node has."""
    await ledger.register("node-a")
    for number in range(jobs):
        await ledger.enqueue(f"job-{number:02}", gpus=3)
