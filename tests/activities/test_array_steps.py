"""The steps of an array and of its slots one at a time, as their workflows would ask for them."""

import asyncio
import dataclasses
import uuid
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from longshore.activities import elements
from longshore.activities.array_views import ArrayViews
from longshore.activities.arrays import ArrayActivities
from longshore.activities.database import Database
from longshore.activities.elements import ElementActivities
from longshore.activities.queue_rows import put_into_queue
from longshore.activities.signals import Signals
from longshore.activities.views import Views
from longshore.client.array_view import array_parts
from longshore.client.explainer import Explainer
from longshore.client.job_view import jobs_table
from longshore.console.array_view import bar_html
from longshore.models.array_messages import (
    AdvanceArray,
    ArrayInput,
    CancelElements,
    ClaimReply,
    ClaimRequest,
    OpenArray,
)
from longshore.models.array_view import ArrayView, SlotsAside
from longshore.models.elements import BatchReport, ElementResult, ElementState
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import EnqueueRequest, job_workflow_id
from longshore.models.placement import PlacementKey
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.scheduling.unplannable_jobs import set_aside
from tests.support.ledger import Ledger
from tests.support.screens import drawn

NOW = datetime(2026, 11, 24, tzinfo=UTC)
Row = dict[str, Any]


class Steps:
    """The activities of one array, on record and with slots that nobody runs."""

    def __init__(self, database: Database, temporal: Client, array_id: str) -> None:
        signals = Signals(temporal)
        self.id = array_id
        self.database = database
        self.arrays = ArrayActivities(database, temporal, signals, 1000, 256)
        self.elements = ElementActivities(database, temporal, signals)

    async def claim(
        self, slot: int = 1, batch: int = 1, attempt: int = 1, **fields: Any
    ) -> ClaimReply:
        key = PlacementKey(job_id=f"{self.id}.s{slot}", attempt=attempt)
        return await self.elements.claim_elements(
            ClaimRequest(array_id=self.id, key=key, batch=batch, **fields)
        )

    async def rows(self) -> list[Row]:
        async with self.database.transaction() as connection:
            found = await connection.execute(
                text("SELECT * FROM elements WHERE array_id = :id ORDER BY index, attempt"),
                {"id": self.id},
            )
            return [dict(row) for row in found.mappings()]

    async def states(self) -> Counter[str]:
        return Counter(row["state"] for row in await self.rows() if row["newest"])


class Pokes(Signals):
    """Notes which arrays are poked; the first poke is lost, as at a kill after the commit."""

    def __init__(self, temporal: Client) -> None:
        super().__init__(temporal)
        self.arrays: list[str] = []

    async def poke_array(self, array_id: str) -> None:
        self.arrays.append(array_id)
        if len(self.arrays) == 1:
            raise ConnectionError("killed")


async def an_array(
    database: Database, temporal: Client, pool: str, array: object = "0-9", slots: int = 2,
    **fields: object,
) -> Steps:  # fmt: skip
    """Put an array on record, with slots that are rows alone."""
    array_id = f"a-{uuid.uuid4().hex[:8]}"
    spec = JobSpec.model_validate(
        {"name": "a", "command": "true", "pool": pool, "array": array, **fields}
    )
    steps = Steps(database, temporal, array_id)
    opened = await steps.arrays.open_array(
        OpenArray(array_id=array_id, job=ArrayInput(spec=spec), submitted_at=NOW)
    )
    assert not opened.refusal
    async with database.transaction() as connection:
        await connection.execute(
            text(
                "INSERT INTO array_slots (array_id, number, job_id, generation, state,"
                " submitted_at) SELECT :id, n, :id || '.s' || n, 1, 'SUBMITTED', now()"
                " FROM generate_series(1, :slots) n"
            ),
            {"id": array_id, "slots": slots},
        )
    return steps


def results(reply: ClaimReply, **how: Any) -> BatchReport:
    """Return how all elements of a batch ended."""
    assert reply.batch
    return BatchReport(
        results=tuple(
            ElementResult(
                index=each.index, attempt=each.attempt, exit_code=how.pop("code", 0),
                started_at=NOW, ended_at=NOW, **how,
            )
            for each in reply.batch.elements
        )
    )  # fmt: skip


def indices(reply: ClaimReply) -> list[int]:
    return [each.index for each in reply.batch.elements] if reply.batch else []


async def test_the_first_batch_is_one_element_and_the_next_twice_that_within_its_part(
    control: Database, temporal: Client, pool: str
):
    steps = await an_array(control, temporal, pool, "3-12")
    first = await steps.claim()
    assert indices(first) == [3]
    assert first.batch
    assert (first.batch.slot.first, first.batch.slot.last) == (3, 12)
    batches, reply = list[list[int]](), first
    while reply.batch:
        batches.append(indices(reply))
        reply = await steps.claim(batch=len(batches) + 1, report=results(reply))
    assert batches == [[3], [4, 5], [6, 7, 8, 9], [10, 11], [12]]
    assert await steps.states() == {"SUCCEEDED": 10}


async def test_of_a_batch_one_element_runs_and_the_others_are_claimed(
    control: Database, temporal: Client, pool: str
):
    steps = await an_array(control, temporal, pool, "0-9%2")
    await steps.claim(batch=2, report=results(await steps.claim()))
    await steps.claim(slot=2)
    view, job = await ArrayViews(control).array(steps.id), await Views(control).job(steps.id)
    assert view
    assert (view.counts[ElementState.RUNNING], view.claimed, job.claimed) == (3, 1, 1)
    progress = await steps.arrays.advance_array(AdvanceArray(array_id=steps.id))
    assert progress.claimed == 1
    assert progress.reason == "of 10 elements 1 succeeded, 2 running, 1 claimed, 6 waiting"


async def test_an_array_says_which_of_its_slots_no_cycle_plans(
    control: Database, temporal: Client, pool: str
):
    steps = await an_array(control, temporal, pool, slots=3)
    first, second, third = (f"{steps.id}.s{number}" for number in (1, 2, 3))
    spec = JobSpec.model_validate({"name": "a", "command": "true", "pool": pool})
    async with control.transaction() as connection:
        for job_id in (first, second, third):
            await put_into_queue(
                connection, EnqueueRequest(job_id=job_id, attempt=1, spec=spec, submitted_at=NOW)
            )
    views, why = ArrayViews(control), "set aside: it cannot be planned (<b>)"

    async def told(jobs: list[str]) -> tuple[ArrayView, str, str, str, str]:
        decisions = [
            set_aside(job_id, ValueError()).model_copy(update={"reason": why}).model_dump_json()
            for job_id in jobs
        ]
        async with control.transaction() as connection:
            await connection.execute(
                text("UPDATE queue SET decision = d.decision FROM unnest(CAST(:ids AS text[]),"
                     " CAST(:decisions AS jsonb[])) AS d (id, decision) WHERE job_id = d.id"),
                {"ids": jobs, "decisions": decisions},
            )  # fmt: skip
        view, job = await views.array(steps.id), await Views(control).job(steps.id)
        assert view is not None

        async def nobody() -> None: ...

        explained = await Explainer(control, Settings(), nobody).explanation(job)
        screen = " ".join(" ".join(drawn(part)) for part in array_parts(view))
        listed = drawn(jobs_table([job], NOW, 160), 160)[1]
        return view, explained.headline, " ".join(screen.split()), bar_html(view, None), listed

    view, headline, screen, page, listed = await told([])
    assert "set aside" not in listed
    assert (view.aside, view.waiting_slot) == (None, first)
    assert "not planned" not in headline + screen + page
    view, headline, screen, page, listed = await told([first, second])
    assert "; 2 slots are set aside" in listed
    assert view.aside == SlotsAside(slots=2, first=first, reason=why)
    assert view.waiting_slot == third
    for said in (headline, screen, unescape(page)):
        assert f"2 slots are not planned: {first} is {why}" in said
    assert "<b>" not in page
    view, headline, screen, _, listed = await told([third])
    assert "; 3 slots are set aside" in listed
    assert view.waiting_slot is None
    assert "waits for GPUs" not in headline + screen


async def test_a_repeat_gives_the_same_and_records_nothing_twice(
    control: Database, temporal: Client, pool: str
):
    steps = await an_array(control, temporal, pool)
    first = await steps.claim()
    assert indices(await steps.claim()) == indices(first)
    report = results(first, failure=FailureClass.USER, code=3)
    second = await steps.claim(batch=2, report=report)
    assert indices(await steps.claim(batch=2, report=report)) == indices(second)
    assert [row["state"] for row in await steps.rows() if row["index"] == 0] == ["FAILED"]


async def test_a_repeat_pokes_the_array_that_the_try_before_it_did_not_come_to(
    control: Database, temporal: Client, pool: str
):
    """Its row says that somebody has poked it: nobody else would."""
    steps = await an_array(control, temporal, pool, slots=1)
    pokes = Pokes(temporal)
    elements = ElementActivities(control, temporal, pokes)
    key = PlacementKey(job_id=f"{steps.id}.s1", attempt=1)
    request = ClaimRequest(array_id=steps.id, key=key, batch=1)
    for attempt in (1, 2):
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, attempt=attempt)
        with suppress(ConnectionError):
            assert (await environment.run(elements.claim_elements, request)).batch
    assert pokes.arrays == [steps.id] * 2


async def test_an_old_claim_that_comes_late_gets_nothing(
    control: Database, temporal: Client, pool: str
):
    steps = await an_array(control, temporal, pool, "0-2", slots=1)
    first = await steps.claim()
    second = await steps.claim(batch=2, report=results(first))
    assert (await steps.claim(batch=1)).batch is None
    assert (await steps.claim(batch=1, attempt=2)).batch is None, "all are claimed"
    assert (await steps.states())["RUNNING"] == len(indices(second))


async def test_slots_at_the_same_time_never_get_one_element_twice(
    control: Database, temporal: Client, pool: str
):
    steps = await an_array(control, temporal, pool, "0-299", slots=8)

    async def run(slot: int) -> list[int]:
        taken, report, batch = list[int](), None, 0
        while True:
            batch += 1
            reply = await steps.claim(slot, batch, report=report)
            if reply.batch is None:
                return taken
            taken += indices(reply)
            report = results(reply)

    taken = await asyncio.gather(*(run(slot) for slot in range(1, 9)))
    assert sorted(index for some in taken for index in some) == list(range(300))
    assert await steps.states() == {"SUCCEEDED": 300}


async def test_what_was_not_started_goes_back_and_uses_up_no_attempt(
    control: Database, temporal: Client, pool: str
):
    steps = await an_array(control, temporal, pool, "0-4")
    second = await steps.claim(batch=2, report=results(await steps.claim()))
    ran = ElementResult(index=1, attempt=1, stopped=True, exit_code=143)
    await steps.claim(
        batch=3, report=BatchReport(results=(ran,)), stopped_as=FailureClass.PREEMPTED, want=False
    )
    rows = [(row["index"], row["attempt"], row["state"]) for row in await steps.rows()]
    assert rows[:4] == [
        (0, 1, "SUCCEEDED"),
        (1, 1, "FAILED"),
        (1, 2, "WAITING"),
        (2, 1, "WAITING"),
    ]
    assert {row[1:] for row in rows[3:]} == {(1, "WAITING")}
    again = await steps.claim(slot=2)
    assert [(e.index, e.attempt) for e in again.batch.elements] == [(1, 2)] if again.batch else 0
    assert indices(second) == [1, 2]


async def test_of_a_node_that_is_lost_what_may_have_run_is_a_new_attempt(
    control: Database, temporal: Client, pool: str
):
    retry = {"node": {"max_retries": 1, "backoff": "0s"}}
    steps = await an_array(control, temporal, pool, "0-2", slots=1, retry=retry)
    first = await steps.claim()
    batch = await steps.claim(batch=2, report=results(first))
    said = ElementResult(index=1, attempt=1, exit_code=0, ended_at=NOW)
    lost = BatchReport(results=(said,), complete=False)
    await steps.claim(batch=3, report=lost, stopped_as=FailureClass.NODE, message="x", want=False)
    assert indices(batch) == [1, 2]
    assert await steps.states() == {"SUCCEEDED": 2, "WAITING": 1}
    again = await steps.claim(attempt=2)
    await steps.claim(
        attempt=2, batch=2, report=BatchReport(complete=False), stopped_as=FailureClass.NODE,
        want=False,
    )  # fmt: skip
    assert indices(again) == [2]
    assert await steps.states() == {"SUCCEEDED": 2, "FAILED": 1}, "its retries are used up"
    late = BatchReport(results=(ElementResult(index=2, attempt=1, exit_code=0, ended_at=NOW),))
    await steps.claim(batch=3, report=late, want=False)
    assert await steps.states() == {"SUCCEEDED": 2, "FAILED": 1}, "it counts for its claim alone"


async def test_a_failure_is_tried_again_after_its_wait(
    control: Database, temporal: Client, pool: str
):
    retry = {"user": {"max_retries": 1, "backoff": "1h"}}
    steps = await an_array(control, temporal, pool, "0-1", retry=retry)
    report = results(await steps.claim(), failure=FailureClass.USER, code=3, error="boom")
    assert indices(await steps.claim(batch=2, report=report)) == [1]
    failed, again, _ = await steps.rows()
    assert (failed["newest"], failed["exit_code"], failed["message"]) == (False, 3, "boom")
    assert (again["attempt"], again["state"]) == (2, "WAITING")
    progress = await steps.arrays.advance_array(AdvanceArray(array_id=steps.id))
    assert progress.wake_at == again["not_before"]


async def test_a_row_of_a_table_goes_with_its_element_through_retries(
    control: Database, temporal: Client, pool: str
):
    table = {"columns": ["LR"], "rows": [["0.1"], ["0.2"]]}
    retry = {"user": {"max_retries": 1}}
    steps = await an_array(control, temporal, pool, table, retry=retry)
    first = await steps.claim()
    assert first.batch
    assert first.batch.elements[0].variables == {"LR": "0.1"}
    second = await steps.claim(batch=2, report=results(first, failure=FailureClass.USER, code=1))
    assert second.batch
    assert [(e.index, e.attempt, e.variables) for e in second.batch.elements] == [
        (0, 2, {"LR": "0.1"})
    ]


async def test_a_batch_is_bounded_by_the_bytes_of_its_variables_with_their_names(
    control: Database, temporal: Client, pool: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(elements, "_MOST_BYTES", 100)
    table = {"columns": ["LR"], "rows": [["é" * 20]] * 7}
    steps = await an_array(control, temporal, pool, table)
    second = await steps.claim(batch=2, report=results(await steps.claim()))
    third = await steps.claim(batch=3, report=results(second))
    assert indices(third) == [3, 4]  # of 49 bytes each


async def test_elements_are_cancelled_where_they_wait_and_where_they_run(
    control: Database, temporal: Client, pool: str
):
    steps = await an_array(control, temporal, pool)
    before = await steps.claim(batch=2, report=results(await steps.claim()))
    batch = await steps.claim(batch=3, report=results(before))
    assert indices(batch) == [3, 4, 5, 6]
    await steps.claim(
        batch=4, report=BatchReport(results=results(batch).results[:2]), want=False
    )  # 0 to 4 have ended
    running = await steps.claim(slot=2)
    assert indices(running) == [5]
    said = await steps.arrays.cancel_elements(
        CancelElements(array_id=steps.id, indices="1-7:2,6", reason="enough")
    )
    assert (said.ended, said.running, said.waiting) == (2, 1, 2)
    stopped = ElementResult(index=5, attempt=1, stopped=True, exit_code=143)
    await steps.claim(slot=2, batch=2, report=BatchReport(results=(stopped,)), want=False)
    assert await steps.states() == {"SUCCEEDED": 5, "CANCELLED": 3, "WAITING": 2}
    refused = await steps.arrays.cancel_elements(
        CancelElements(array_id=steps.id, indices="70-80")
    )
    assert "has no element 70-80" in refused.refusal


async def test_an_element_whose_slot_alone_was_cancelled_runs_again(
    control: Database, temporal: Client, pool: str
):
    """An array ends slots that wait when nothing is ready; one may claim just then."""
    steps = await an_array(control, temporal, pool, "0-2")
    reply = await steps.claim()
    await steps.claim(
        batch=2, report=results(reply, stopped=True, code=143), cancelled=True, want=False
    )
    told = [(row["index"], row["attempt"], row["state"]) for row in await steps.rows()]
    assert told[:2] == [(0, 1, "FAILED"), (0, 2, "WAITING")]
    reply = await steps.claim(slot=2)
    assert indices(reply) == [0]
    await steps.arrays.advance_array(AdvanceArray(array_id=steps.id, cancelled="enough"))
    await steps.claim(
        slot=2, batch=2, report=results(reply, stopped=True, code=143), cancelled=True, want=False
    )
    assert await steps.states() == {"CANCELLED": 3}


async def test_slots_are_opened_under_ids_of_their_own_and_once(
    control: Database, temporal: Client, pool: str
):
    steps = await an_array(control, temporal, pool, "0-99%3", slots=0)
    for _ in range(2):
        progress = await steps.arrays.advance_array(AdvanceArray(array_id=steps.id))
        assert (progress.state, progress.slots) == (JobState.RUNNING, 3)
    for number in (1, 2, 3):
        found = await temporal.get_workflow_handle(
            job_workflow_id(f"{steps.id}.s{number}")
        ).describe()
        assert found.workflow_type == "JobWorkflow"
    progress = await steps.arrays.advance_array(AdvanceArray(array_id=steps.id, cancelled="over"))
    assert progress.counts == {ElementState.CANCELLED: 100}


async def test_as_many_slots_are_opened_as_a_quota_lets_wait(
    control: Database, temporal: Client, pool: str
):
    """One that was refused all the same, as others came meanwhile, is no slot that failed."""
    tenant = f"t-{uuid.uuid4().hex[:8]}"
    async with control.transaction() as connection:
        await connection.execute(
            text("INSERT INTO tenants (name, quotas) VALUES (:name, '{\"max_queued\": 3}')"),
            {"name": tenant},
        )
    steps = await an_array(control, temporal, pool, "0-99", slots=3, tenant=tenant)
    advance = AdvanceArray(array_id=steps.id)
    progress = await steps.arrays.advance_array(advance)
    assert progress.slots == 3, "they are on their way"
    assert progress.wake_at is not None
    async with control.transaction() as connection:
        await connection.execute(
            text(
                "INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, end_state,"
                " ended_at, failure, message) SELECT :id || '.s' || n, 's', :tenant, :pool,"
                " '{}', now(), 'FAILED', now(), 'unsatisfiable',"
                " 'quota of tenant t: max_queued: 3 + 1 > 3'"
                " FROM generate_series(1, 3) n"
            ),
            {"id": steps.id, "tenant": tenant, "pool": pool},
        )
    progress = await steps.arrays.advance_array(advance)
    assert (progress.state, progress.slots) == (JobState.RUNNING, 3)
    assert progress.counts == {ElementState.WAITING: 100}


async def test_slots_that_start_wait_no_more_and_those_of_other_arrays_do(
    ledger: Ledger, temporal: Client
):
    await ledger.register()
    await ledger.rows(
        "INSERT INTO tenants (name, parent, quotas)"
        " VALUES ('up', NULL, CAST(:quotas AS jsonb)), ('low', 'up', '{}')",
        quotas='{"max_queued": 3}',
    )
    first, other = [
        await an_array(ledger.database, temporal, ledger.pool, "0-99", slots=slots, tenant=tenant)
        for slots, tenant in ((2, "low"), (0, "up"))
    ]
    progress = await other.arrays.advance_array(AdvanceArray(array_id=other.id))
    assert progress.slots == 1, "two of the first are on their way"
    for number, gpu in ((1, 0), (2, 1)):
        slot = f"{first.id}.s{number}"
        await ledger.add_job(slot)
        await ledger.place(slot, (gpu,))
    progress = await first.arrays.advance_array(AdvanceArray(array_id=first.id))
    assert progress.slots == 4, "those that start have left the queue"


async def test_more_elements_than_the_setting_allows_are_refused(
    control: Database, temporal: Client, pool: str
):
    steps = Steps(control, temporal, "many")
    spec = JobSpec.model_validate({"name": "a", "command": "true", "array": "0-1000"})
    opened = await steps.arrays.open_array(
        OpenArray(array_id="many", job=ArrayInput(spec=spec), submitted_at=NOW)
    )
    assert "has 1,001 elements; 1,000 is the most" in opened.refusal


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE elements SET state = 'RUNNING' WHERE index = 0",
        "UPDATE elements SET state = 'SUCCEEDED' WHERE index = 0",
        "UPDATE elements SET newest = false WHERE index = 0",
        "UPDATE elements SET job_id = 'x', job_attempt = 1, batch = 1 WHERE index = 0",
        "INSERT INTO elements (array_id, index, attempt) SELECT array_id, 0, 2 FROM elements",
    ],
)
async def test_the_database_refuses(
    control: Database, temporal: Client, pool: str, statement: str
):
    steps = await an_array(control, temporal, pool, "0")
    only = statement.replace("WHERE", f"WHERE array_id = '{steps.id}' AND").replace(
        "FROM elements", f"FROM elements WHERE array_id = '{steps.id}'"
    )
    with pytest.raises(IntegrityError):
        async with control.transaction() as connection:
            await connection.execute(text(only))
