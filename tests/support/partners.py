"""A DAG of arrays whose steps a test takes itself: nobody follows it, and no node runs anything.

What a step marks as poked is looked at, and nothing else is: a wake-up that is missing shows as a
DAG in which nothing is left to do, and which has not ended.
"""

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from longshore.activities.arrays import ArrayActivities
from longshore.activities.dag_rows import mark_dag_poked
from longshore.activities.dags import DagActivities
from longshore.activities.database import Database
from longshore.activities.elements import ElementActivities
from longshore.activities.pokes import mark_array_poked
from longshore.activities.signals import Signals
from longshore.models.array_messages import (
    AdvanceArray,
    ArrayInput,
    CancelElements,
    ClaimReply,
    ClaimRequest,
    OpenArray,
)
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import AdvanceDag, OpenDag
from longshore.models.elements import BatchReport, ElementResult
from longshore.models.placement import PlacementKey
from longshore.models.retry import FailureClass

NOW = datetime(2026, 11, 25, tzinfo=UTC)
Row = dict[str, Any]


class PartnerWorld:
    """One DAG on record."""

    def __init__(self, database: Database, temporal: Client, spec: DagSpec) -> None:
        signals = Signals(temporal)
        self.spec = spec
        self.dag_id = f"d-{uuid.uuid4().hex[:8]}"
        self.database = database
        self._dags = DagActivities(database, temporal, most_jobs=1000)
        self._arrays = ArrayActivities(database, temporal, signals, 100_000, 256)
        self._elements = ElementActivities(database, temporal, signals)
        self._batches: Counter[str] = Counter()
        self.looks: Counter[str] = Counter()
        """How often the DAG, and each array, was looked at."""

    async def begin(self, *, retry: bool = False) -> None:
        opening = OpenDag(
            dag_id=self.dag_id, spec=None if retry else self.spec, retry=retry, submitted_at=NOW
        )
        opened = await self._run(self._dags.open_dag, opening)
        assert not opened.refusal
        await self.look()

    async def look(self, **how: Any) -> str:
        """Look at the DAG, and put on record the arrays that it has submitted."""
        self.looks["dag"] += 1
        progress = await self._run(self._dags.advance_dag, AdvanceDag(dag_id=self.dag_id, **how))
        for name, job_id in (await self.submitted()).items():
            array = self.spec.jobs[name].array
            on_record = await self.scalar("SELECT id FROM jobs WHERE id = :id", id=job_id)
            if on_record is None and array is not None:
                await self.open(job_id, name)
                await self.advance(name)
        return progress.state.value

    async def open(self, job_id: str, name: str, attempt: int = 1) -> None:
        job = ArrayInput(spec=self.spec.jobs[name].spec)
        opening = OpenArray(array_id=job_id, job=job, submitted_at=NOW)
        opened = await self._run(self._arrays.open_array, opening, attempt=attempt)
        assert not opened.refusal, opened.refusal

    async def advance(self, name: str, **how: Any) -> str:
        self.looks[name] += 1
        array_id = (await self.submitted())[name]
        progress = await self._run(
            self._arrays.advance_array, AdvanceArray(array_id=array_id, **how)
        )
        return progress.state.value

    async def poked(self) -> list[str]:
        """Return who has to look: names of arrays, and `dag`."""
        ids = {job_id: name for name, job_id in (await self.submitted()).items()}
        async with self.database.transaction() as connection:
            arrays = await connection.scalars(
                text("SELECT a.id FROM arrays a JOIN jobs j ON j.id = a.id"
                     " WHERE a.poked AND j.ended_at IS NULL AND a.id = ANY (:ids)"),
                {"ids": list(ids)},
            )  # fmt: skip
            names = sorted(ids[array_id] for array_id in arrays)
        dag = await self.scalar("SELECT poked FROM dags WHERE id = :id", id=self.dag_id)
        return [*names, *(["dag"] if dag else [])]

    async def slots(self) -> list[tuple[str, str]]:
        """Return the slots (array, job) that have not ended."""
        async with self.database.transaction() as connection:
            rows = await connection.execute(
                text("SELECT d.name, s.job_id FROM dag_jobs d"
                     " JOIN array_slots s ON s.array_id = d.job_id"
                     " LEFT JOIN jobs j ON j.id = s.job_id"
                     " WHERE d.dag_id = :id AND j.ended_at IS NULL ORDER BY 1, s.number"),
                {"id": self.dag_id},
            )  # fmt: skip
            return [(row.name, row.job_id) for row in rows]

    async def claim(
        self, name: str, slot: str, report: BatchReport | None = None, attempt: int = 1
    ) -> ClaimReply:
        """Have a slot give back its batch and take the next; a repeat with `attempt` 2."""
        if attempt == 1:
            self._batches[slot] += 1
        request = ClaimRequest(
            array_id=(await self.submitted())[name],
            key=PlacementKey(job_id=slot, attempt=1), batch=self._batches[slot], report=report,
        )  # fmt: skip
        return await self._run(self._elements.claim_elements, request, attempt=attempt)

    async def end_slot(self, name: str, slot: str) -> None:
        """Record the end of a slot, as `finish` does."""
        await self._end(slot, "SUCCEEDED")
        async with self.database.transaction() as connection:
            await mark_array_poked(connection, (await self.submitted())[name])

    async def end_job(self, name: str, state: str) -> None:
        """Record the end of a job that is no array, as `finish` does."""
        await self._end((await self.submitted())[name], state)
        async with self.database.transaction() as connection:
            await mark_dag_poked(connection, self.dag_id)

    async def cancel(self, name: str, indices: str) -> None:
        array_id = (await self.submitted())[name]
        asked = CancelElements(array_id=array_id, indices=indices)
        await self._run(self._arrays.cancel_elements, asked)
        async with self.database.transaction() as connection:
            await mark_array_poked(connection, array_id)

    async def submitted(self) -> dict[str, str]:
        """Return the ids of the jobs that were submitted."""
        async with self.database.transaction() as connection:
            rows = await connection.execute(
                text("SELECT name, job_id FROM dag_jobs WHERE dag_id = :id AND job_id <> ''"),
                {"id": self.dag_id},
            )
            return {row.name: row.job_id for row in rows}

    async def rows(self, name: str) -> dict[int, Row]:
        """Return the elements of an array by index; none before it is on record."""
        job_id = (await self.submitted()).get(name)
        async with self.database.transaction() as connection:
            found = await connection.execute(
                text("SELECT * FROM elements WHERE array_id = :id AND newest ORDER BY index"),
                {"id": job_id},
            )
            return {row["index"]: dict(row) for row in found.mappings()}

    async def states(self, name: str) -> dict[int, str]:
        return {index: row["state"] for index, row in (await self.rows(name)).items()}

    async def steps(self) -> Mapping[str, str]:
        """Return how each job has ended, or where it is on record."""
        async with self.database.transaction() as connection:
            rows = await connection.execute(
                text("SELECT d.name, coalesce(j.end_state, d.state) AS state FROM dag_jobs d"
                     " LEFT JOIN jobs j ON j.id = d.job_id WHERE d.dag_id = :id"),
                {"id": self.dag_id},
            )  # fmt: skip
            return {row.name: row.state for row in rows}

    async def scalar(self, statement: str, **values: Any) -> Any:
        async with self.database.transaction() as connection:
            return await connection.scalar(text(statement), values)

    async def _end(self, job_id: str, state: str) -> None:
        async with self.database.transaction() as connection:
            await connection.execute(
                text("INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, ended_at,"
                     " end_state, message, attempts)"
                     " VALUES (:id, 'x', 'default', :pool, '{}', now(), now(), :state, '', 1)"),
                {"id": job_id, "state": state, "pool": self.spec.pool},
            )  # fmt: skip

    @staticmethod
    async def _run(step: Any, request: Any, attempt: int = 1) -> Any:
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, attempt=attempt)
        return await environment.run(step, request)


def report_of(reply: ClaimReply, failed: frozenset[int] = frozenset()) -> BatchReport:
    """Return a report of a whole batch, in which these elements failed."""
    assert reply.batch
    return BatchReport(
        results=tuple(
            ElementResult(
                index=each.index, attempt=each.attempt, started_at=NOW, ended_at=NOW,
                exit_code=3 if each.index in failed else 0,
                failure=FailureClass.USER if each.index in failed else None,
            )
            for each in reply.batch.elements
        )
    )  # fmt: skip
