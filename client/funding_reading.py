"""What the capacity database says of who holds GPUs, and of who pays for them."""

from datetime import datetime

from longshore.activities.database import clock
from longshore.activities.funding.fund import fund_view
from longshore.activities.funding.use import funding_state, leases_at, usage, with_slots
from longshore.activities.funding.views import why_no_tenant
from longshore.client.budgets import BudgetReading
from longshore.models.errors import NotFoundError, SpecError
from longshore.models.fund_view import FundView
from longshore.models.funding_use import FundingState, Leases, Payers, Usage, UsedBy
from longshore.models.text import format_gpus
from longshore.models.visible import visible

NOT_YET = "at: give a time that has passed"


class FundingReading(BudgetReading):
    """Reads, and changes nothing. Every call may raise UnavailableError."""

    async def funding(self) -> FundingState:
        """Return the tenants and budgets, and who pays for what is in use."""
        async with self._db().snapshot() as connection:
            return await funding_state(connection)

    async def payers(self, ref: str) -> Payers | None:
        """Return who pays for a job, and who has; None where no tenant has a budget. Raises
        NotFoundError."""
        return await self._explainer().payers_of(await self._resolve(ref))

    async def fund(self, ref: str) -> FundView:
        """Return who pays for a job that runs, or would for one that waits, envelope by envelope.

        Raises NotFoundError, and RefusedError for one that has ended.
        """
        job_id = await self._resolve(ref)
        return await fund_view(self._db(), job_id, self.settings.margins)

    async def usage(
        self, since: datetime, *, by: UsedBy = UsedBy.TENANT, tenant: str | None = None
    ) -> Usage:
        """Return the GPU-hours since a time by class and payer, of one tenant or of all.

        Raises NotFoundError for a tenant that there is not.
        """
        async with self._db().snapshot() as connection:
            found = await usage(connection, since, None, by, tenant)
            if tenant and not found.rows and (why := await why_no_tenant(connection, tenant)):
                raise NotFoundError(why)
            return found

    async def leases(
        self,
        at: datetime | None = None,
        *,
        node_id: str | None = None,
        gpu_index: int | None = None,
        job: str | None = None,
    ) -> Leases:
        """Return who held GPUs at a moment, or holds them now, and who paid for them then.

        Raises NotFoundError for a node, a GPU or a job that is not known, SpecError for a moment
        that has not come, by the database's clock: nobody knows yet.
        """
        job_id = await self._resolve(job) if job is not None else None
        if node_id is not None:
            await self._known_gpu(node_id, gpu_index)
        async with self._db().snapshot() as connection:
            now = await clock(connection)
            moment = at or now
            if moment > now:
                raise SpecError("leases", (NOT_YET,))
            job_ids = () if job_id is None else await with_slots(connection, job_id)
            found = await leases_at(
                connection, moment, node_id=node_id, gpu_index=gpu_index, job_ids=job_ids
            )
        return Leases(at=moment, leases=found)

    async def _known_gpu(self, node_id: str, gpu_index: int | None) -> None:
        node = await self.node(node_id)
        indices = [gpu.index for gpu in node.gpus]
        if gpu_index is not None and gpu_index not in indices:
            raise NotFoundError(
                f"node {visible(node_id)} has {format_gpus(indices)}, not GPU {gpu_index}"
            )
