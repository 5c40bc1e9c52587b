"""The steps of a DAG: onto the record, and from the ends of its jobs to what follows.

Every activity here may run twice. What is to be submitted is on record before it is, and a job's
id is of one submission: a repeat starts what is missing and nothing twice.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError

from longshore.activities.admission import why_no_dag
from longshore.activities.dag_ends import of_dag
from longshore.activities.dag_rows import (
    ANOTHER,
    jobs_of,
    lock_dag,
    record_dag,
    reopen,
    spec_and_version,
    spec_of,
    starting,
    state_of,
    store_plan,
    version_of,
)
from longshore.activities.database import Database, clock
from longshore.activities.durations import learnt_in_dag
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.job_ends import ask_to_end
from longshore.activities.job_runs import is_job_over
from longshore.activities.job_starts import digest_of, start_job
from longshore.activities.mutexes import (
    Standing,
    ask_for_mutexes,
    free_mutexes,
    standing_of,
    wake_next,
)
from longshore.activities.outputs import given_to
from longshore.activities.partners import elements_of, settle_by_ends
from longshore.activities.signals import Signals
from longshore.models.base import JOB_ID
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import AdvanceDag, DagProgress, OpenDag, OpenedDag
from longshore.models.dag_view import DagState, StepState
from longshore.models.durations import Learnt
from longshore.models.messages import JobInput, job_workflow_id
from longshore.models.problems import bounded
from longshore.models.visible import shown
from longshore.scheduling.dag import DagPlan, Graph, decide, why_stopped
from longshore.scheduling.dag_changes import changes
from longshore.scheduling.dag_inputs import input_problems, with_outputs
from longshore.scheduling.dag_paths import expected_seconds, paths_behind
from longshore.scheduling.dag_problems import corresponding_problems, problems
from longshore.scheduling.dag_progress import progress

_AT_ONCE = 200
"""Jobs that one look submits; the workflow looks again for the others."""
_IN_FLIGHT = 25
_MOST_READ = 20
"""DAGs that are kept as they were read: a few megabytes each where they are large."""
UNRECORDED_AFTER = timedelta(minutes=1)
"""A job that was submitted so long ago is in the queue, or its workflow tells why not."""
_NOT_ENDED = "it has not ended: a retry with another file is for a DAG that has"
_UNRECORDED = "its workflow ended before the job came into a queue"


class _Read(NamedTuple):
    """A DAG as it is stored, and what follows from that alone."""

    version: tuple[object, ...]
    spec: DagSpec
    graph: Graph
    behind: Mapping[str, float]
    """For each job the path behind it."""
    needed: frozenset[str]
    """Jobs whose output others get."""

    @classmethod
    def of(
        cls, spec: DagSpec, version: tuple[object, ...], learnt: Mapping[str, Learnt]
    ) -> "_Read":
        graph = Graph.of(spec)
        behind = paths_behind(graph, expected_seconds(spec, learnt))
        needed = frozenset(up for job in spec.jobs.values() for up in job.inputs)
        return cls(version, spec, graph, behind, needed)


class DagActivities:
    """Activities of `DagWorkflow`."""

    def __init__(self, database: Database, temporal: Client, most_jobs: int) -> None:
        """Of a DAG with more than `most_jobs` none is submitted."""
        self._database = database
        self._most_jobs = most_jobs
        self._temporal = temporal
        self._signals = Signals(temporal)
        self._read: dict[str, _Read] = {}
        """The DAGs that were read last, the newest last."""

    @activity.defn
    @reports_errors
    async def open_dag(self, request: OpenDag) -> OpenedDag:
        """Put a DAG on record; or of one that is, open what a retry runs again, with the spec that
        it may bring.

        A repeat changes nothing. Raises NotFoundError where none is on record to go on with.
        """
        dag_id, spec = request.dag_id, request.spec
        if spec is not None and (why := self._why_not(dag_id, spec)):
            return OpenedDag(refusal=why)
        async with self._database.transaction() as connection:
            if spec is not None and not request.retry:
                if wrong := await why_no_dag(connection, dag_id, spec, request.submitted_at):
                    return OpenedDag(refusal="\n".join(wrong))
                await record_dag(connection, dag_id, spec, request)
            row = await lock_dag(connection, dag_id)
            stored = await spec_of(connection, dag_id)
            if row["submitted_at"] != request.submitted_at and not request.retry:
                why = f"a DAG {dag_id} is on record already: give this one another id"
                return OpenedDag(refusal=why)
            changed = changes(stored, spec) if request.retry and spec is not None else None
            if changed is not None and changed.refused:
                return OpenedDag(refusal="\n".join(bounded(changed.refused)))
            if request.retry and row["state"] != DagState.RUNNING:
                new = spec or stored
                await reopen(connection, dag_id, new, row["generation"] + 1, changed)
            elif changed is not None and stored != spec:
                return OpenedDag(refusal=_NOT_ENDED)
            await failpoint("open_dag.before-commit")
        await failpoint("open_dag.after-commit")
        return OpenedDag()

    def _why_not(self, dag_id: str, spec: DagSpec) -> str:
        """Return what is wrong with a DAG; any SDK may have started it."""
        longest = f"{dag_id}.{max(spec.jobs, key=len)}.r999"
        if not JOB_ID.fullmatch(longest):
            return (
                f"the workflow id must be dag- and letters, digits, dots, dashes and underscores, "
                f"and leave room for the ids of its jobs such as {shown(longest)}"
            )
        edges = {name: job.after for name, job in spec.jobs.items()}
        inputs = {name: job.inputs for name, job in spec.jobs.items()}
        data = {name: job.data_jobs for name, job in spec.jobs.items()}
        arrays = [name for name, job in spec.jobs.items() if job.array is not None]
        mutexes = {name: job.mutex for name, job in spec.jobs.items()}
        wrong = (
            *problems(edges, self._most_jobs),
            *input_problems(edges, inputs, data),
            *corresponding_problems(edges, arrays, mutexes),
        )
        found = [f"{'.'.join(each.place)}: {each.message}" for each in wrong]
        return "\n".join(bounded(found))

    @activity.defn
    @reports_errors
    async def advance_dag(self, request: AdvanceDag) -> DagProgress:
        """Look at how the jobs of a DAG ended, and submit, skip and cancel what follows."""
        dag_id = request.dag_id
        if request.check:
            await self._find_unrecorded(dag_id)
        # Before the lock, for which the ends of jobs wait, and with them their pools.
        if dag_id not in self._read:
            async with self._database.transaction() as connection:
                await self._read_anew(connection, dag_id)
        async with self._database.transaction() as connection:
            row = await lock_dag(connection, dag_id)
            read = self._read.get(dag_id)
            if read is None or read.version != version_of(row):
                read = await self._read_anew(connection, dag_id)
            spec, graph = read.spec, read.graph
            jobs = {each["name"]: each for each in await jobs_of(connection, dag_id)}
            known = {name: state_of(job) for name, job in jobs.items()}
            more = False
            if row["state"] == DagState.RUNNING:
                plan = decide(
                    graph, known, spec.on_failure, held=request.held,
                    stopped_by=row["stopped_by"], cancelled=row["cancelled"] or request.cancelled,
                    withdrawn=request.withdrawn,
                    elements=await elements_of(connection, dag_id, spec, graph, jobs),
                )  # fmt: skip
                ready = await self._without_excluded(connection, row, spec, plan.start)
                # What is intended is submitted in this look: a hold or a cancel finds no rest.
                begun = sum(job["state"] == "SUBMITTING" for job in jobs.values())
                start = ready[: max(_AT_ONCE - begun, 0)]
                more = len(start) < len(ready)
                plan = replace(plan, start=start)
                takes = any(spec.jobs[name].mutex for name in start)
                more = await store_plan(connection, request, row, plan, takes=takes) or more
            else:
                plan = DagPlan(DagState(row["state"]), known, reason=row["message"])
            standing = Standing()
            if any(job.mutex for job in spec.jobs.values()):
                standing = await standing_of(connection, dag_id, row["tenant"])
            to_submit = await starting(connection, dag_id)
            submitting = [name for name, _ in to_submit]
            given, refused = await given_to(connection, dag_id, spec, known, submitting)
            ran = {
                name: jobs[name]["job_id"]
                for name, state in known.items()
                # One that was never placed has failed too, as at a queue timeout.
                if state.ran and jobs[name]["state"] != "LOST" and jobs[name]["attempts"]
            }
            ended_at = None
            if plan.state.ended:
                ended_at = await connection.scalar(
                    text("SELECT ended_at FROM dags WHERE id = :id"), {"id": dag_id}
                )
            await failpoint("advance_dag.before-commit")
        await failpoint("advance_dag.after-commit")
        await settle_by_ends(self._database, self._signals, dag_id, graph)
        again = activity.in_activity() and activity.info().attempt > 1
        names = _given_up(jobs, plan, newly_held=request.held and not row["held"], again=again)
        await wake_next(self._database, self._signals, row["tenant"], names, again=again)
        lost = await self._submit(dag_id, read, to_submit, given, refused, ran)
        to_cancel = [jobs[name] for name in plan.cancel if not jobs[name]["cancel_sent"]]
        await self._cancel(dag_id, to_cancel, plan.reason or why_stopped(plan.stopped_by or ""))
        await self._cancel_single(dag_id, jobs, request.withdrawn)
        told = standing.waits(dag_id)
        return progress(graph, plan, told, held=request.held, more=more or lost, ended_at=ended_at)

    async def _read_anew(self, connection: AsyncConnection, dag_id: str) -> "_Read":
        """Read a DAG as it is stored, and keep it: 1,000 jobs take a twentieth of a second, and
        only a retry changes them."""
        spec, version = await spec_and_version(connection, dag_id)
        read = _Read.of(spec, version, await learnt_in_dag(connection, spec))
        self._read.pop(dag_id, None)
        while len(self._read) >= _MOST_READ:
            del self._read[next(iter(self._read))]
        self._read[dag_id] = read
        return read

    async def _without_excluded(
        self, connection: AsyncConnection, row: RowMapping, spec: DagSpec, ready: Sequence[str]
    ) -> tuple[str, ...]:
        """Return those of the jobs whose conditions hold that take all their mutexes."""
        asking = {name: spec.jobs[name] for name in ready if spec.jobs[name].mutex}
        if not asking:
            return tuple(ready)
        now = await clock(connection)
        granted = await ask_for_mutexes(connection, row["id"], row["tenant"], asking, now)
        return tuple(name for name in ready if name not in asking or name in granted)

    async def _submit(
        self,
        dag_id: str,
        read: "_Read",
        to_submit: Sequence[tuple[str, str]],
        given: Mapping[str, Mapping[str, str]],
        refused: Mapping[str, str],
        ran: Mapping[str, str],
    ) -> bool:
        """Start the workflows of jobs (name, job id), but for those `refused`, with the variables
        `given` to them and the files of those that `ran`; record which are there, and return
        whether some are not."""
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def submit(name: str, job_id: str) -> str:
            """Return why it is not there; empty where it is."""
            if name in refused:
                return refused[name]
            job = with_outputs(read.spec.jobs[name], given.get(name, {}), ran)
            # What it is given may be more by the time of another try, which finds it there.
            digests = (digest_of(read.spec.jobs[name].spec), digest_of(job))
            start = JobInput(
                spec=job, needs_output=name in read.needed, path_behind=read.behind[name]
            )
            async with gate:
                try:
                    await start_job(self._temporal, job_id, start, digests[0], dag_id)
                except WorkflowAlreadyStartedError:
                    # By the try before this one, or by somebody else.
                    handle = self._temporal.get_workflow_handle(job_workflow_id(job_id))
                    if (await (await handle.describe()).memo()).get("digest") not in digests:
                        return ANOTHER
            await failpoint("advance_dag.after-first-start")
            return ""

        if not to_submit:
            return False
        whys = await asyncio.gather(*(submit(name, job_id) for name, job_id in to_submit))
        async with self._database.transaction() as connection:
            names = [name for name, _ in to_submit]
            await connection.execute(
                text(_SUBMITTED), {"id": dag_id, "names": names, "whys": list(whys)}
            )
        lost = [job_id for (_, job_id), why in zip(to_submit, whys, strict=True) if why]
        if lost:
            await self._give_back(lost)
        return bool(lost)

    async def _give_back(self, job_ids: Sequence[str]) -> None:
        """Give back the mutexes of jobs whose end nobody records."""
        async with self._database.transaction() as connection:
            gone = [job for job_id in job_ids if (job := await of_dag(connection, job_id))]
            await free_mutexes(connection, job_ids)
        for job in gone:
            await wake_next(self._database, self._signals, job.tenant, job.mutexes, again=True)

    async def _cancel(self, dag_id: str, jobs: Sequence[RowMapping], why: str) -> None:
        """Ask jobs to end; one that has just ended is left as it ended."""
        if not jobs:
            return
        await ask_to_end(self._temporal, {job["job_id"]: why for job in jobs})
        async with self._database.transaction() as connection:
            await connection.execute(
                text(
                    "UPDATE dag_jobs SET cancel_sent = true"
                    " WHERE dag_id = :id AND name = ANY (:names)"
                ),
                {"id": dag_id, "names": [job["name"] for job in jobs]},
            )

    async def _cancel_single(
        self, dag_id: str, jobs: Mapping[str, RowMapping], withdrawn: Mapping[str, str]
    ) -> None:
        """Ask those of the jobs to end that had been submitted before somebody cancelled them."""
        for name, why in withdrawn.items():
            if name in jobs and state_of(jobs[name]) is StepState.SUBMITTED:
                await self._cancel(dag_id, [jobs[name]], why)

    async def _find_unrecorded(self, dag_id: str) -> None:
        """Note jobs whose workflow is over and that have no record: no end of theirs comes."""
        async with self._database.transaction() as connection:
            since = await clock(connection) - UNRECORDED_AFTER
            rows = await connection.execute(
                text(_WITHOUT_RECORD), {"id": dag_id, "since": since, "most": _AT_ONCE}
            )
            found = [(row.name, row.job_id) for row in rows]
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def is_over(job_id: str) -> bool:
            async with gate:
                return await is_job_over(self._temporal, job_id)

        over = await asyncio.gather(*(is_over(job_id) for _, job_id in found))
        gone = [name for (name, _), ended in zip(found, over, strict=True) if ended]
        if gone:
            async with self._database.transaction() as connection:
                await connection.execute(
                    text(_LOSE), {"id": dag_id, "names": gone, "why": _UNRECORDED}
                )
            await self._give_back([job_id for name, job_id in found if name in gone])


def _given_up(
    jobs: Mapping[str, RowMapping], plan: DagPlan, *, newly_held: bool, again: bool
) -> frozenset[str]:
    """Return the mutexes for which jobs of the DAG wait no more, and that they have not taken.

    A repeat returns all for which they may have waited before it.
    """
    return frozenset(
        mutex
        for name, job in jobs.items()
        if job["ready_at"] is not None and name not in plan.start
        if again or (job["state"] == "WAITING" and (newly_held or name in plan.skip))
        for mutex in job["mutexes"]
    )


_SUBMITTED = """
    UPDATE dag_jobs d
       SET state = CASE l.why WHEN '' THEN 'SUBMITTED' ELSE 'LOST' END,
           reason = CASE l.why WHEN '' THEN d.reason ELSE l.why END,
           ended_at = CASE l.why WHEN '' THEN d.ended_at ELSE clock_timestamp() END
      FROM unnest(CAST(:names AS text[]), CAST(:whys AS text[])) AS l (name, why)
     WHERE d.dag_id = :id AND d.state = 'SUBMITTING' AND d.name = l.name
"""

_WITHOUT_RECORD = """
    SELECT d.name, d.job_id
      FROM dag_jobs d LEFT JOIN jobs j ON j.id = d.job_id
     WHERE d.dag_id = :id AND d.state = 'SUBMITTED' AND j.id IS NULL AND d.submitted_at < :since
     ORDER BY d.submitted_at LIMIT :most
"""

_LOSE = """
    UPDATE dag_jobs d SET state = 'LOST', reason = :why, ended_at = clock_timestamp()
     WHERE dag_id = :id AND name = ANY (:names)
       AND NOT EXISTS (SELECT FROM jobs WHERE id = d.job_id)
"""
