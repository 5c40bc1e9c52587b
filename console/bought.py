"""What was bought, for whoever looks: purchases, blocks and costs, read once for all that ask."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

from longshore.activities.buying.block_end_views import BlockEndView, BlockEndViews
from longshore.activities.buying.purchase_details import PurchaseDetails
from longshore.activities.buying.purchase_views import PurchaseViews
from longshore.activities.buying.switch import BuyingSwitch, SwitchState
from longshore.activities.database import Database
from longshore.activities.markets.findings import differences
from longshore.activities.markets.reconcile import MarketFinding
from longshore.console.answer_cache import Shared
from longshore.models.purchase import PurchaseState
from longshore.models.settings import Settings
from longshore.models.spending import (
    BlockDetail,
    BlockView,
    CostView,
    PurchaseDetail,
    PurchaseView,
)

KEPT = 1.0
"""Seconds for which the same answer is given to everybody."""
COMPARED = 60.0
"""Seconds for which a comparison with the markets is: they are asked for all that they list."""
_CONNECTIONS = 4

T = TypeVar("T")


class Bought:
    """Reads the capacity database, which is looked for when it is needed first.

    Every call may raise UnavailableError.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database: Database | None = None
        self._compared: Shared[Hashable, Any] = Shared(COMPARED)
        self._answers: Shared[Hashable, Any] = Shared(KEPT)

    async def purchases(
        self,
        *,
        pool: str | None = None,
        tenant: str | None = None,
        state: PurchaseState | None = None,
        ended: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[PurchaseView]:
        """Return purchases, the newest first, those after the one with the id `after`."""
        return await self._shared(
            ("purchases", pool, tenant, state, ended, after, limit),
            lambda: PurchaseViews(self._base()).purchases(
                pool=pool, tenant=tenant, state=state, with_ended=ended, after=after, limit=limit
            ),
        )

    async def purchase(self, purchase_id: str) -> PurchaseDetail:
        """Return one purchase in full. Raises NotFoundError."""
        return await self._shared(
            ("purchase", purchase_id), lambda: PurchaseDetails(self._base()).purchase(purchase_id)
        )

    async def blocks(
        self,
        *,
        pool: str | None = None,
        ended: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[BlockView]:
        """Return blocks, the newest first, those after the one with the id `after`."""
        return await self._shared(
            ("blocks", pool, ended, after, limit),
            lambda: PurchaseViews(self._base()).blocks(
                pool=pool, with_ended=ended, after=after, limit=limit
            ),
        )

    async def block(self, block_id: str) -> BlockDetail:
        """Return one block with the jobs on it. Raises NotFoundError."""
        return await self._shared(
            ("block", block_id), lambda: PurchaseDetails(self._base()).block(block_id)
        )

    async def block_end(self, block_id: str) -> BlockEndView:
        """Return one block with what was decided about it, and its sales. Raises NotFoundError."""
        return await self._shared(
            ("block end", block_id), lambda: BlockEndViews(self._base()).of_block(block_id)
        )

    async def blocks_in_use(
        self, *, ended: bool = False, limit: int = 24
    ) -> Sequence[BlockDetail]:
        """Return blocks, the newest first, with the jobs on them."""
        found = await self.blocks(ended=ended, limit=limit)
        ids = tuple(each.id for each in found)
        return await self._shared(
            ("in use", ids), lambda: PurchaseDetails(self._base()).blocks(ids)
        )

    async def costs(
        self,
        by: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> Sequence[CostView]:
        """Return costs by `pool`, `tenant`, `job` or `block`, the dearest first."""
        return await self._shared(
            ("costs", by, since, until, limit),
            lambda: PurchaseViews(self._base()).costs(by, since=since, until=until, limit=limit),
        )

    async def switch(self) -> SwitchState:
        """Return whether anything may be bought, and the caps."""
        return await self._shared(("switch",), lambda: BuyingSwitch(self._base()).state())

    async def differences(self) -> Sequence[MarketFinding]:
        """Return what the markets list and nobody here knows, and the other way, with its cost."""
        return cast(
            Sequence[MarketFinding],
            await self._compared.get(
                "differences", lambda: differences(self._base(), self._settings)
            ),
        )

    async def stop(self, reason: str) -> SwitchState:
        """Stop buying, and return the switch."""
        await BuyingSwitch(self._base()).stop(reason)
        return await BuyingSwitch(self._base()).state()

    async def resume(self) -> SwitchState:
        """Let it be bought again, and return the switch."""
        await BuyingSwitch(self._base()).resume()
        return await BuyingSwitch(self._base()).state()

    async def close(self) -> None:
        if self._database:
            await self._database.close()

    async def _shared(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        return cast(T, await self._answers.get(key, read))

    def _base(self) -> Database:
        if self._database is None:
            self._database = Database.for_people(
                self._settings.resolve_database_url(), pool_size=_CONNECTIONS
            )
        return self._database
