"""Tenants and budgets in the typed client."""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from temporalio.client import Client

from longshore.activities.failpoints import failpoint
from longshore.activities.funding.checks import apply_with_notes, check_budgets, check_tenant
from longshore.activities.funding.edits import remove_budget, set_tenant
from longshore.activities.funding.hours import with_hours
from longshore.activities.funding.outlasting import ends_sooner, load_ends, notes_of_ends
from longshore.activities.funding.views import budgets_view, tenants_view, why_no_budget
from longshore.activities.signals import Signals
from longshore.client.reading import Reading
from longshore.client.untold import untold
from longshore.models.errors import LongshoreError, NotFoundError
from longshore.models.funding import Budget, Tenant
from longshore.models.funding_views import (
    BudgetChange,
    BudgetEdit,
    BudgetView,
    Edit,
    TenantView,
)


class BudgetReading(Reading):
    """What the capacity database says of tenants and budgets."""

    async def tenants(self) -> tuple[TenantView, ...]:
        """Return the tenants by name: those that somebody has told something about, and those
        that have jobs."""
        async with self._db().snapshot() as connection:
            return await with_hours(connection, await tenants_view(connection))

    async def budgets(self, tenant: str | None = None) -> tuple[BudgetView, ...]:
        """Return the budgets by tenant, or that of one. Raises NotFoundError where it has none."""
        async with self._db().snapshot() as connection:
            found = await budgets_view(connection, tenant)
            if tenant is not None and not found:
                raise NotFoundError(await why_no_budget(connection, tenant))
        return found

    async def check_budgets(self, budgets: Sequence[Budget]) -> BudgetEdit:
        """Return what `apply_budgets` would change, and for which running jobs others would pay
        then. Raises what that would raise."""
        return await check_budgets(self._db(), budgets)

    async def check_tenant(self, tenant: Tenant) -> BudgetEdit:
        """Return for which running jobs others would pay after `set_tenant`. Raises what that
        would raise."""
        return await check_tenant(self._db(), tenant)


class BudgetControl(BudgetReading):
    """What the client can do with tenants and budgets."""

    temporal: Client

    async def set_tenant(self, tenant: Tenant) -> BudgetEdit:
        """Store where a tenant stands, its shares and quotas; it is made where it is new.

        The answer has notes alone: that the pools could not be told, where that is so. Raises
        NotFoundError for a parent that is not known, RefusedError for a circle in the tree.
        """
        async with self._db().transaction() as connection:
            await set_tenant(connection, tenant)
        return BudgetEdit(notes=await self._wake_pools())

    async def apply_budgets(self, budgets: Sequence[Budget]) -> BudgetEdit:
        """Make the budgets of these tenants what is given, all or none of them.

        What is not in one of them any more is removed. The next cycles close the charges that no
        longer fit; the notes of the answer say where the pools could not be told. It has no notes
        of envelopes that end sooner where these cannot be had just then. Raises SpecError for a
        window in the past, RefusedError for a cut below what is lent.
        """
        tenants = {budget.tenant for budget in budgets}
        async with self._db().transaction() as connection:
            before = await load_ends(connection, tenants)
            edit = await apply_with_notes(connection, budgets)
            sooner = ends_sooner(before, await load_ends(connection, tenants))
            if edit.changes:
                await failpoint("apply_budgets.before-commit")
        if edit.changes:
            await failpoint("apply_budgets.after-commit")
            not_told = await self._wake_pools()
            edit = edit.model_copy(update={"notes": (*edit.notes, *not_told)})
        if not sooner:
            return edit
        # Nobody waits for the locks of the edit while this counts.
        try:
            async with self._db().snapshot() as connection:
                notes = await notes_of_ends(connection, sooner)
        except (LongshoreError, DBAPIError, TimeoutError):
            return edit  # it is stored, whatever can be said of it
        return edit.model_copy(update={"notes": (*edit.notes, *notes)})

    async def remove_budget(self, tenant: str) -> BudgetEdit:
        """Take a tenant's budget away: it pays for all that it uses again. Return that change.

        Raises NotFoundError where it has none, RefusedError where it has GPUs on loan to others.
        """
        async with self._db().transaction() as connection:
            await remove_budget(connection, tenant)
        gone = BudgetChange(tenant=tenant, what="budget", edit=Edit.REMOVED)
        return BudgetEdit(changes=(gone,), notes=await self._wake_pools())

    async def _wake_pools(self) -> tuple[str, ...]:
        """Have the pools decide anew that have jobs: who pays for them may be another now. Return
        a note where they cannot be told: what was changed is stored all the same."""

        async def wake() -> None:
            async with self._db().transaction() as connection:
                pools = list(await connection.scalars(text(_IN_USE)))
            for pool in pools:
                await Signals(self.temporal).poke_pool(pool)

        return await untold("the pools were", wake())


_IN_USE = """
    SELECT name FROM pools
     WHERE EXISTS (SELECT FROM queue q WHERE q.pool = name)
        OR EXISTS (SELECT FROM nodes n JOIN placements p ON p.node_id = n.id
                    WHERE n.pool = name AND p.ended_at IS NULL)
     ORDER BY name
"""
