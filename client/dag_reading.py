"""What the capacity database says of DAGs, and Temporal of whether a workflow follows them."""

from functools import partial
from typing import TYPE_CHECKING

from longshore.activities.dag_views import DagViews
from longshore.activities.database import Database
from longshore.client.no_record import not_submitted
from longshore.client.outside_ends import as_not_followed, not_followed, why_not_followed
from longshore.models.dag_view import DagJobView, DagState, DagSummary, DagView
from longshore.models.errors import NotSubmittedError

if TYPE_CHECKING:
    from temporalio.client import Client


class DagReading:
    """Reads DAGs and their jobs, and changes nothing."""

    async def dags(
        self,
        *,
        tenant: str | None = None,
        states: frozenset[DagState] = frozenset(),
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[DagSummary, ...]:
        """Return DAGs, newest first, those after the one with the id `after`, and whether a
        workflow follows those that have not ended."""
        read = partial(
            DagViews(self._db()).dags, tenant=tenant, states=states, after=after, limit=limit
        )
        found = await read()
        is_open = any(not dag.state.ended for dag in found)
        temporal = await self._temporal() if is_open else None
        alone = await not_followed(temporal, found) if temporal else frozenset[str]()
        if not alone:
            return found
        # One that ends at this moment is followed by none, either.
        return tuple(
            as_not_followed(dag) if dag.id in alone and not dag.state.ended else dag
            for dag in await read()
        )

    async def dag(self, ref: str) -> DagView:
        """Return a DAG in full, by its id or the newest of a name, and whether a workflow follows
        it. Raises NotFoundError."""
        return await self._as_followed(await self._recorded_dag(ref))

    async def step(self, ref: str) -> DagJobView | None:
        """Return the job of a DAG that `DAG.JOB` names, submitted or not; None where none is."""
        found = await self._step_of(ref)
        return None if found is None else found[1]

    async def _not_submitted(self, ref: str) -> NotSubmittedError | str | None:
        """Return what to say of a job of a DAG that is in no queue, or the id of the job that
        `DAG.JOB` stands for; None where it names no job of a DAG."""
        found = await self._step_of(ref) if "." in ref else None
        if found is None:
            return None
        dag, step = found
        return step.job_id or not_submitted(dag.id, step)

    async def output(self, ref: str) -> str:
        """Return the JSON that a job of a DAG put out, by `DAG.JOB`. Raises NotFoundError."""
        return await DagViews(self._db()).output(ref)

    async def _step_of(self, ref: str) -> tuple[DagView, DagJobView] | None:
        """Return a DAG and its job; of one that waits also that no workflow follows its DAG."""
        found = await DagViews(self._db()).step_of(ref)
        if found is None or found[1].job_id or found[1].step.ended:
            return found
        dag = await self._as_followed(found[0])
        step = next(each for each in dag.steps if each.name == found[1].name)
        if dag.followed:
            return dag, step
        reason = f"{step.reason}; {why_not_followed(dag.id, 'its DAG')}"
        return dag, step.model_copy(update={"reason": reason})

    async def _as_followed(self, dag: DagView) -> DagView:
        temporal = None if dag.state.ended else await self._temporal()
        if temporal is None or not await not_followed(temporal, [dag]):
            return dag
        dag = await self._recorded_dag(dag.id)  # it may have ended meanwhile
        return dag if dag.state.ended else as_not_followed(dag)

    async def _recorded_dag(self, ref: str) -> DagView:
        """Return a DAG as the database has it."""
        return await DagViews(self._db()).dag(ref)

    def _db(self) -> Database:
        raise NotImplementedError

    async def _temporal(self) -> "Client | None":
        """Return who says which workflows are over; None where nobody does."""
        return None
