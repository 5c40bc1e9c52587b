"""DAGs in the typed client: submit, look, wait, steer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from longshore.activities.dag_views import DagViews
from longshore.activities.job_starts import dag_at_submit, digest_of, summary_of_dag
from longshore.client.code_submit import CodeStorer
from longshore.client.dag_file import array_problems, graph_problems
from longshore.client.data_urls import urls_without_host
from longshore.client.errors import as_ours
from longshore.client.no_record import newest_running
from longshore.client.reconnecting import Reconnecting
from longshore.client.soon import ON_RECORD_WITHIN, soon
from longshore.client.submission import new_id, preflight, refusals_for_good
from longshore.models.dag import DagSpec, in_our_words
from longshore.models.dag_messages import CancelDagJob, DagInput, DagResult, dag_workflow_id
from longshore.models.dag_view import DagRetry, DagSubmission, DagView
from longshore.models.errors import (
    ConflictError,
    NotFoundError,
    RefusedError,
    SpecError,
    UnavailableError,
    UnsatisfiableError,
)
from longshore.models.messages import CONTROL_TASK_QUEUE, CommandReason
from longshore.models.text import count
from longshore.scheduling.arrays import too_many
from longshore.scheduling.dag_changes import changes
from longshore.scheduling.deadline import deadlines_in_vain
from longshore.scheduling.partners import without_partner
from longshore.workflows.dag import DagWorkflow

_MOST_CHECKED = 50
"""Different requests of a DAG that are held against the nodes at its submit."""
_MOST_NAMED = 10
"""Jobs that a warning names."""
_QUIET = 5.0
"""Seconds without a change after which a watch asks whether the workflow runs."""
_NOT_OF_REQUEST = {
    "name", "command", "env", "workdir", "after", "join", "mutex", "inputs", "retry",
    "checkpoint", "labels",
}  # fmt: skip


class DagControl(Reconnecting):
    """What the client can do with DAGs."""

    temporal: Client

    async def submit_dag(
        self, spec: DagSpec, *, key: str | None = None, held: bool = False
    ) -> DagSubmission:
        """Start a DAG. The same tenant, name and `key` again return the one that exists.

        Code that is a folder or a commit is stored first. Raises SpecError with every mistake of
        its edges, or where it is too large or its code is wrong, or with each job that could never
        start for a quota or its sponsors;
        UnsatisfiableError where no node that can ever come could hold one of its jobs;
        ConflictError when the name and key were used for other content; UnavailableError.
        """
        if wrong := self._problems(spec):
            raise SpecError(f"dag {spec.name}", tuple(wrong))
        late = deadlines_in_vain(spec, datetime.now(UTC))
        if late and not (key and await self._stored_spec(new_id(spec.tenant, spec.name, key))):
            raise SpecError(f"dag {spec.name}", late)
        warnings = (*map(str, without_partner(spec)), *await self._preflight(spec))
        spec = await CodeStorer(self.settings, self._db).of_dag(spec)
        dag_id = new_id(spec.tenant, spec.name, key)
        if key is not None and (known := await self._stored_spec(dag_id)) is not None:
            # Temporal forgets it, the database does not.
            return _same(dag_id, same=in_our_words(known) == in_our_words(spec))
        digest = digest_of(spec)
        try:
            await self._start(dag_id, spec, DagInput(spec=spec, held=held), digest)
        except WorkflowAlreadyStartedError:
            memo = await (await self._dag(dag_id).describe()).memo()
            return _same(dag_id, same=memo.get("digest") == digest)
        except RPCError as error:
            raise as_ours(error, f"DAG {dag_id}") from error
        return DagSubmission(dag_id=dag_id, created=True, warnings=warnings)

    async def known_dag(self, ref: str, *, patient: bool = False) -> DagView:
        """Return a DAG in full; one that was submitted this instant is waited for.

        Raises NotFoundError; and UnavailableError where no control worker takes it up, unless who
        asks is `patient`: then that is told, and waited for.
        """
        deadline = asyncio.get_running_loop().time() + ON_RECORD_WITHIN
        runs = True
        while True:
            newest: str | None = None
            try:
                found = await self.dag(ref)
            except NotFoundError:
                if not runs and (newest := await self._not_on_record(ref)) is None:
                    raise
            else:
                newest = await self._not_on_record(ref) if ref != found.id else None
                if newest is None:
                    self.say_back()
                    return found
            ref = newest or ref
            # Where it is over by now, it may have come onto the record meanwhile: look again.
            runs = await self._when_back(f"DAG {ref}", partial(self._runs, ref))
            if runs and asyncio.get_running_loop().time() > deadline:
                why = (
                    f"DAG {ref} is submitted, but no control worker has taken it up yet. Is one "
                    "running? `longshore up` starts one, or `longshore worker`; `longshore "
                    "doctor` looks for one."
                )
                if not patient:
                    raise UnavailableError(why)
                self.say_away(why)
            await asyncio.sleep(0.1)

    async def wait_dag(self, ref: str) -> DagView:
        """Wait until a DAG has ended, however long, also while a server is away.

        Raises RefusedError where its workflow was ended from outside, and the DAG did not end.
        """
        dag_id = (await self.known_dag(ref, patient=True)).id
        try:
            await self._when_back(f"DAG {dag_id}", self._dag(dag_id).result)
        except WorkflowFailureError as error:
            found = await self._recorded_dag(dag_id)
            if not found.state.ended:
                raise _ended_outside(dag_id) from error
            return found
        return await self.dag(dag_id)

    async def watch_dag(self, ref: str, *, every: float = 0.5) -> AsyncIterator[DagView]:
        """Yield a DAG whenever it has changed, until it has ended."""
        last: DagView | None = None
        dag_id, quiet = (await self.known_dag(ref, patient=True)).id, 0.0
        while last is None or not last.state.ended:
            found = await self._recorded_dag(dag_id)
            if last is None or _shape(found) != _shape(last):
                yield found
                quiet = 0.0
            last = found
            if not found.state.ended:
                await asyncio.sleep(every)
                quiet += every
            if quiet >= _QUIET:
                quiet = 0.0
                if (
                    await self._is_over(dag_id)
                    and not (await self._recorded_dag(dag_id)).state.ended
                ):
                    raise _ended_outside(dag_id)

    async def cancel_dag(self, ref: str, reason: str = "") -> str:
        """Ask a DAG to end; return its id. Its jobs get their stop signals and their grace."""
        dag_id = await self._running(ref)
        try:
            if await self._is_over(dag_id):
                raise _ended_outside(dag_id)
            await self._dag(dag_id).cancel(reason=reason or "cancelled by its user")
        except RPCError as error:
            raise as_ours(error, f"DAG {ref}") from error
        return dag_id

    async def hold_dag(self, ref: str, reason: str = "") -> str:
        """Submit no further job of a DAG; what was submitted goes on. Return its id."""
        return await self._signal_dag(ref, DagWorkflow.hold, reason)

    async def release_dag(self, ref: str, reason: str = "") -> str:
        """End a hold; return the DAG's id."""
        return await self._signal_dag(ref, DagWorkflow.release, reason)

    async def cancel_dag_job(self, ref: str, name: str, reason: str = "") -> str:
        """Cancel one job of a DAG, also while it waits for others; return the DAG's id.

        One that waits does not start, and satisfies only the condition `any`. Raises RefusedError
        where the DAG has ended, also from outside.
        """
        dag_id = await self._running(ref)
        try:
            if await self._is_over(dag_id):
                raise _ended_outside(dag_id)
            command = CancelDagJob(name=name, reason=reason)
            await self._dag(dag_id).signal(DagWorkflow.cancel_job, command)
        except RPCError as error:
            raise as_ours(error, f"DAG {ref}") from error
        return dag_id

    async def plan_retry(self, ref: str, spec: DagSpec | None = None) -> DagRetry:
        """Return what `retry_dag` would run again; changes nothing. Raises what that raises."""
        return (await self._planned(ref, spec))[1]

    async def retry_dag(self, ref: str, spec: DagSpec | None = None) -> DagRetry:
        """Run again what did not succeed of a DAG that has ended, and each job for which that
        had been the condition, also where failures were caught; go on with one whose workflow was
        ended from outside.

        With a `spec` also what that changes, and all behind it; it takes the place of the stored
        one. Raises SpecError where it leaves out a job or is wrong, and RefusedError where the
        DAG still runs, or nothing is to run again.
        """
        found, plan = await self._planned(ref, spec)
        run = spec or await DagViews(self._db()).spec(found.id)
        digest = digest_of(run)
        try:
            if found.state.ended:  # on record, and its workflow is over a moment later
                await soon(lambda: self._is_no_more(found.id))
            held = found.held and not found.state.ended
            await self._start(
                found.id, run, DagInput(retry=True, spec=spec, held=held), digest, again=True
            )
        except WorkflowAlreadyStartedError:
            raise RefusedError(
                f"DAG {found.id} still runs: wait for its end, or end it with "
                f"`longshore dag cancel {found.id}`"
            ) from None
        except RPCError as error:
            raise as_ours(error, f"DAG {ref}") from error
        if found.state.ended:  # who waits from now on does not see the end before this
            await soon(lambda: self._is_of_generation(found.id, found.generation + 1))
        return plan

    async def _is_no_more(self, dag_id: str) -> bool:
        return not await self._runs(dag_id)

    async def _is_of_generation(self, dag_id: str, generation: int) -> bool:
        return (await self._recorded_dag(dag_id)).generation >= generation

    async def _planned(self, ref: str, spec: DagSpec | None) -> tuple[DagView, DagRetry]:
        found = await self.known_dag(ref)
        stored = await DagViews(self._db()).spec(found.id)
        made = changes(stored, spec or stored)
        if spec is not None:
            if not found.state.ended:
                raise RefusedError(
                    f"DAG {found.id} has not ended: a retry with another file is for one that has"
                )
            if wrong := [*made.refused, *self._problems(spec)]:
                raise SpecError(f"dag {found.id}", tuple(wrong))
            await self._preflight(spec)
        again: tuple[str, ...] = ()
        if found.state.ended:
            again = await DagViews(self._db()).to_run_again(found.id, spec or stored, made.anew)
            if not again:
                file = ", and the file changes none of its jobs" if spec is not None else ""
                raise RefusedError(
                    f"no job of DAG {found.id} failed or was cancelled{file}: nothing runs again"
                )
        plan = DagRetry(dag_id=found.id, jobs=again, new=made.new, changed=made.changed)
        return found, plan

    def _problems(self, spec: DagSpec) -> list[str]:
        """Return what is wrong with the edges, the arrays and the size of a DAG."""
        edges = {name: job.after for name, job in spec.jobs.items()}
        inputs = {name: job.inputs for name, job in spec.jobs.items()}
        data = {name: job.data_jobs for name, job in spec.jobs.items()}
        found = graph_problems(edges, inputs, data, self.settings.most_dag_jobs)
        mutexes = {name: job.mutex for name, job in spec.jobs.items()}
        known = [name for name, job in spec.jobs.items() if job.array is not None]
        found += array_problems(edges, known, mutexes)
        most = self.settings.most_array_elements
        arrays = [(name, job.array) for name, job in spec.jobs.items() if job.array is not None]
        many = [f"jobs.{name}: {why}" for name, array in arrays if (why := too_many(array, most))]
        return [
            *map(str, found), *many, *urls_without_host(spec), *filter(None, (spec.too_large,)),
        ]  # fmt: skip

    async def _stored_spec(self, dag_id: str) -> DagSpec | None:
        with contextlib.suppress(NotFoundError, UnavailableError):
            return await DagViews(self._db()).spec(dag_id)
        return None

    async def _is_over(self, dag_id: str) -> bool:
        """Return whether no workflow of a DAG runs."""
        found = await self._dag(dag_id).describe()
        return found.status is not WorkflowExecutionStatus.RUNNING

    async def _start(
        self, dag_id: str, spec: DagSpec, given: DagInput, digest: str, *, again: bool = False
    ) -> None:
        once = WorkflowIDReusePolicy.REJECT_DUPLICATE
        await self.temporal.start_workflow(
            DagWorkflow.run,
            given,
            id=dag_workflow_id(dag_id),
            task_queue=CONTROL_TASK_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE if again else once,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            memo={"digest": digest},
            static_summary=summary_of_dag(spec),
            search_attributes=dag_at_submit(spec, held=given.held),
        )

    async def _preflight(self, spec: DagSpec) -> tuple[str, ...]:
        """Hold the different requests of its jobs against the nodes that are there."""
        asked: dict[str, list[str]] = {}
        for name, job in spec.jobs.items():
            asked.setdefault(job.model_dump_json(exclude=_NOT_OF_REQUEST), []).append(name)
        await self._refuse_what_never_starts(spec, list(asked.values()))
        found: dict[str, list[str]] = {}
        for names in list(asked.values())[:_MOST_CHECKED]:
            try:
                for warning in await preflight(self._db, spec.jobs[names[0]].spec):
                    found.setdefault(warning, []).extend(names)
            except UnsatisfiableError as error:
                raise UnsatisfiableError(f"{_jobs(names)}: {error}") from error
        return tuple(f"{_jobs(names)}: {warning}" for warning, names in found.items())

    async def _refuse_what_never_starts(
        self, spec: DagSpec, asked: Sequence[Sequence[str]]
    ) -> None:
        """Raise SpecError with each job of a DAG that its queue would refuse whenever it comes.
        `asked` are the names of those that ask for the same."""
        ones = [spec.jobs[names[0]].spec for names in asked]
        wrong = await refusals_for_good(self._db, ones)
        if any(wrong):
            told = [
                f"{_jobs(names)}: {why}" for names, why in zip(asked, wrong, strict=True) if why
            ]
            raise SpecError(f"dag {spec.name}", tuple(told))

    async def _signal_dag(self, ref: str, signal: Any, reason: str) -> str:
        dag_id = await self._running(ref)
        try:
            await self._dag(dag_id).signal(signal, CommandReason(reason=reason))
        except RPCError as error:
            raise as_ours(error, f"DAG {ref}") from error
        return dag_id

    async def _running(self, ref: str) -> str:
        found = await self.known_dag(ref)
        if found.state.ended:
            raise RefusedError(f"DAG {ref} has ended already ({found.state.value})")
        return found.id

    async def _not_on_record(self, name: str) -> str | None:
        """Return the newest DAG of a name, where Temporal has it and the database not yet."""
        newest = await newest_running(self.temporal, name, dag_workflow_id)
        if newest is None:
            return None
        try:
            await self.dag(newest)
        except NotFoundError:
            return newest
        return None

    async def _runs(self, ref: str) -> bool:
        """Return whether the workflow of a DAG runs. Raises RPCError where Temporal is away."""
        try:
            return not await self._is_over(ref)
        except RPCError as error:
            if not isinstance(as_ours(error, f"DAG {ref}"), NotFoundError):
                raise
            return False

    def _dag(self, dag_id: str) -> WorkflowHandle[DagWorkflow, DagResult]:
        return self.temporal.get_workflow_handle_for(DagWorkflow.run, dag_workflow_id(dag_id))


def _same(dag_id: str, *, same: bool) -> DagSubmission:
    """Return the DAG that has the key. Raises ConflictError where it has other content."""
    if same:
        return DagSubmission(dag_id=dag_id, created=False)
    raise ConflictError(
        f"DAG {dag_id} was submitted before with the same name and key but other content. Give "
        f"this one another key, or look at the first with `longshore dag show {dag_id}`."
    )


def _jobs(names: Sequence[str]) -> str:
    """Return ``job a``, or ``jobs a, b, c and 4 others``."""
    others = len(names) - _MOST_NAMED
    more = f" and {count(others, 'other')}" if others > 0 else ""
    return f"job{'s' * (len(names) > 1)} {', '.join(names[:_MOST_NAMED])}{more}"


def _ended_outside(dag_id: str) -> RefusedError:
    return RefusedError(
        f"the workflow of DAG {dag_id} has ended from outside: no further job is submitted, and "
        f"those that were go on. `longshore dag retry {dag_id}` goes on with it."
    )


def _shape(dag: DagView) -> object:
    """Return what a change of is worth telling: not what holding GPUs costs by the second."""
    steps = tuple((each.name, each.step, each.state, each.job_id) for each in dag.steps)
    return dag.state, dag.held, dag.generation, steps
