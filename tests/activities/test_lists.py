"""Lists of jobs, on PostgreSQL: filters, and pages that come one after the other."""

import pytest
from sqlalchemy import text

from longshore.activities.view_queries import POOLS, of_jobs
from longshore.activities.views import Views
from longshore.models.errors import StoredError
from longshore.models.job_status import JobState
from longshore.models.views import JobView
from tests.support.ledger import Ledger

LIVE = frozenset({JobState.QUEUED, JobState.HELD, JobState.RUNNING, JobState.RETRYING})
ASKED = [
    frozenset[JobState](), LIVE, frozenset(JobState) - LIVE,
    *(frozenset({state}) for state in JobState),
    frozenset({JobState.RUNNING, JobState.SUCCEEDED}), frozenset({JobState.HELD, JobState.QUEUED}),
]  # fmt: skip


@pytest.mark.parametrize("states", ASKED, ids=lambda states: "-".join(sorted(states)) or "all")
async def test_pages_of_a_filter_are_what_the_whole_list_has_of_it(
    ledger: Ledger, states: frozenset[JobState]
):
    views = Views(ledger.database)
    await _jobs_of_each_state(ledger)
    whole = await views.jobs()
    assert {job.state for job in whole} == LIVE | {JobState.SUCCEEDED}
    assert list(whole) == sorted(whole, key=lambda job: (-job.submitted_at.timestamp(), job.id))
    paged: list[JobView] = []
    while page := await views.jobs(states=states, limit=2, after=paged[-1].id if paged else None):
        paged += page
    assert paged == [job for job in whole if not states or job.state in states]


async def test_a_pool_counts_who_waits_who_is_held_and_who_is_set_aside(ledger: Ledger):
    for job in "abc":
        await ledger.enqueue(job)
    for job in "de":
        await ledger.enqueue(job, held=True)
    await ledger.rows("UPDATE queue SET decision = '{\"kind\": \"SET_ASIDE\"}'"
                      " WHERE job_id IN ('a', 'd')")  # fmt: skip
    (pool,) = [each for each in await Views(ledger.database).pools()
               if each.spec.name == ledger.pool]  # fmt: skip
    assert (pool.queued, pool.held, pool.set_aside) == (3, 2, 1)


async def test_pools_read_nothing_of_jobs_that_merely_wait(ledger: Ledger):
    async with ledger.database.transaction() as connection:
        # A small table is read whole where that is allowed.
        await connection.execute(text("SET LOCAL enable_seqscan = off"))
        steps = "\n".join((await connection.execute(text(f"EXPLAIN {POOLS}"))).scalars())
    assert "queue_held" in steps
    assert "queue_set_aside" in steps
    assert "Filter: ((decision" not in steps


@pytest.mark.parametrize("asked", [{}, {"pool": "p"}, {"tenant": "t"}])
async def test_the_newest_jobs_are_read_and_not_all(ledger: Ledger, asked: dict[str, str]):
    async with ledger.database.transaction() as connection:
        # A small table is read whole, and sorted, where that is allowed.
        await connection.execute(text("SET LOCAL enable_seqscan = off"))
        await connection.execute(text("SET LOCAL enable_sort = off"))
        query = f"EXPLAIN {of_jobs(asked, ())}"
        steps = "\n".join((await connection.execute(text(query), asked | {"limit": 9})).scalars())
    assert "jobs_by_submission" in steps
    assert "Sort Key: j.submitted_at" not in steps


async def test_the_newest_of_a_name_is_found_and_an_id_comes_before_a_name(ledger: Ledger):
    views = Views(ledger.database)
    await _jobs_of_each_state(ledger)
    await ledger.rows("UPDATE jobs SET name = 'a' WHERE id = 'd'")
    await ledger.rows("UPDATE jobs SET name = 'z' WHERE id IN ('e', 'f', 'i')")
    assert await views.id_of("a") == (await views.job("a")).id == "a"
    newest = [job.id for job in await views.jobs() if job.name == "z"]
    assert newest == ["i", "f", "e"]
    assert await views.id_of("z") == (await views.job("z")).id == "i"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{}", "tier"),
        ('"none"', "must be a mapping"),
        ('{"tier": "NOW", "priority": "high", "gpus": {}, "gpu_type": 7}', "priority"),
        ('{"tier": "FAST", "priority": 1.5, "gpus": 1}', "priority"),
    ],
)
async def test_a_row_that_somebody_wrote_by_hand_is_shown_beside_the_others(
    ledger: Ledger, spec: str, said: str
):
    views = Views(ledger.database)
    await _jobs_of_each_state(ledger)
    await ledger.rows("UPDATE jobs SET spec = CAST(:spec AS jsonb) WHERE id = 'b'", spec=spec)
    wrong = '{"counted_as": "x", "estimated_start": "soon", "reason": "waits"}'
    await ledger.rows(
        "UPDATE queue SET decision = CAST(:wrong AS jsonb) WHERE job_id = 'e'", wrong=wrong
    )
    found = {job.id: job.reason for job in await views.jobs()}
    assert sorted(found) == list("abcdefghijkl")
    unreadable = [job for job, reason in found.items() if "cannot be read: " in reason]
    assert sorted(unreadable) == ["b", "e"]
    assert said in found["b"]
    assert {"estimated_start", "counted_as"} <= {word.strip(":") for word in found["e"].split()}
    assert (await views.job("b")).reason == found["b"]
    with pytest.raises(StoredError, match="job b"):
        await views.spec("b")


async def test_one_node_that_somebody_wrote_into_by_hand_stops_neither_list_nor_cycle(
    ledger: Ledger,
):
    await ledger.register("node-a", gpus=2)
    await ledger.register("node-b", gpus=2)
    await ledger.rows(
        "UPDATE nodes SET labels = '{\"a\": 1}', topology = '{\"x\": 1}' WHERE id = 'node-a'"
    )
    await ledger.rows("UPDATE gpus SET mig = '[5]' WHERE node_id = 'node-a' AND index = 1")
    await ledger.rows("UPDATE nodes SET firmware = '{\"x\": 1}' WHERE id = 'node-b'")
    first, second = await Views(ledger.database).nodes(pool=ledger.pool)
    assert (first.labels, second.firmware) == ({}, ())
    assert second.state_reason == "what its firmware is cannot be read as it is stored"
    assert "labels cannot be read" in first.state_reason
    async with ledger.listening("one", "two"):
        await ledger.enqueue("one", gpus=1)
        await ledger.enqueue("two", gpus=2)
        assert (await ledger.cycle("one")).placed == 2
    found = {job.id: (job.node_id, job.gpu_indices) for job in await Views(ledger.database).jobs()}
    assert found == {"one": ("node-a", (0,)), "two": ("node-b", (0, 1))}


async def _jobs_of_each_state(ledger: Ledger) -> None:
    """Twelve jobs; three at a time were submitted at the same moment."""
    await ledger.register(gpus=4)
    async with ledger.listening(*"abcd"):
        for name in "abcd":
            await ledger.enqueue(name, gpus=1)
        for name in "efghijkl":
            await ledger.enqueue(name, gpus=8, held=name in "gk")
        assert (await ledger.cycle("one")).placed == 4
    await ledger.finish("a")
    await ledger.release("c")
    await ledger.rows(
        "UPDATE jobs SET submitted_at = submitted_at + interval '1 hour' * (ascii(id) / 3)"
    )
