"""The REST API of what was bought: purchases, blocks, costs, and the switch of buying."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from longshore.activities.buying.switch import SwitchState
from longshore.activities.markets.reconcile import MarketFinding
from longshore.console.api import PROBLEMS, ForPrograms
from longshore.console.bought import Bought
from longshore.console.problems import ApiError, Problem
from longshore.models.base import JOB_ID, Frozen, Instant, Name, WithoutNul
from longshore.models.purchase import PurchaseState
from longshore.models.spending import (
    BlockDetail,
    BlockView,
    CostView,
    PurchaseDetail,
    PurchaseView,
)

MOST = 500
"""Entries of an answer at most."""

ID = f"^{JOB_ID.pattern}$"
"""Of a job, a node, a purchase or a block: what names one of the others may name a job too."""
_OLDEST = datetime(2020, 1, 1, tzinfo=UTC)
_AHEAD = timedelta(days=366)
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    **{status: PROBLEMS[status] for status in (401, 422, 503)},
    404: {"model": Problem, "description": "There is no such purchase or block."},
}
WRITING: dict[int | str, dict[str, Any]] = {
    403: {"model": Problem, "description": "A change needs the token itself, not a cookie."}
}
_WITH_BODY: dict[int | str, dict[str, Any]] = {
    **WRITING,
    400: {"model": Problem, "description": "The body cannot be read as JSON at all."},
}

PoolName = Annotated[Name | None, Query(description="Only this pool's.", examples=["default"])]
Ended = Annotated[bool, Query(description="Those that have ended too.")]
After = Annotated[
    str | None,
    Query(pattern=ID, description="`next` of the page before (default: the first page)."),
]
Limit = Annotated[int, Query(ge=1, le=MOST, description="Entries of a page.")]
PurchaseId = Annotated[str, Path(pattern=ID, examples=["p-0123456789ab-1"])]
BlockId = Annotated[str, Path(pattern=ID, examples=["p-0123456789ab-1.1"])]
Since = Annotated[Instant | None, Query(description="Only what was booked from then on.")]
Until = Annotated[Instant | None, Query(description="Only what was booked before.")]
By = Annotated[Literal["pool", "tenant", "job", "block"], Query(description="What is summed up.")]


class PurchasesResponse(Frozen):
    """A page of purchases, the newest first. Amounts are micro-dollars."""

    purchases: tuple[PurchaseView, ...]
    next: str | None = None
    """Ask again with `after` set to this; none on the last page."""


class BlocksResponse(Frozen):
    """A page of blocks, the newest first. Amounts are micro-dollars."""

    blocks: tuple[BlockView, ...]
    next: str | None = None
    """Ask again with `after` set to this; none on the last page."""


class CostsResponse(Frozen):
    """Costs, the dearest first. Amounts are micro-dollars."""

    by: str
    since: Instant | None = None
    until: Instant | None = None
    costs: tuple[CostView, ...]


class OrphansResponse(Frozen):
    """Every difference between the markets and the ledger. Amounts are micro-dollars."""

    orphans: tuple[MarketFinding, ...]


class StopRequest(Frozen):
    """Why buying is stopped."""

    reason: WithoutNul = Field(default="", max_length=500, examples=["prices have gone mad"])


def router(bought: Bought) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(route_class=ForPrograms, responses=_PROBLEMS, tags=["buying"])
    _add_lists(routes, bought)
    _add_one(routes, bought)
    _add_switch(routes, bought)
    return routes


def _add_lists(routes: APIRouter, bought: Bought) -> None:
    @routes.get("/purchases", summary="Purchases, the newest first")
    async def purchases(
        pool: PoolName = None,
        tenant: Annotated[
            WithoutNul | None,
            Query(min_length=1, max_length=200, description="Only this tenant's."),
        ] = None,
        state: Annotated[
            PurchaseState | None,
            Query(description="Only those in this state, also where it is one of ended ones."),
        ] = None,
        ended: Ended = False,
        after: After = None,
        limit: Limit = 100,
    ) -> PurchasesResponse:
        """What was committed and paid, in micro-dollars, and the nodes that came of each.

        Each entry is one of `longshore purchases --json`.
        """
        found = await bought.purchases(
            pool=pool, tenant=tenant, state=state, ended=ended, after=after,
            limit=limit + 1,
        )  # fmt: skip
        page = tuple(found[:limit])
        return PurchasesResponse(purchases=page, next=page[-1].id if len(found) > limit else None)

    @routes.get("/blocks", summary="Blocks, the newest first")
    async def blocks(
        pool: PoolName = None, ended: Ended = False, after: After = None, limit: Limit = 100
    ) -> BlocksResponse:
        """Bought time or machines: until when, at which price, what they cost.

        Each entry is one of `longshore blocks --json`.
        """
        found = await bought.blocks(pool=pool, ended=ended, after=after, limit=limit + 1)
        page = tuple(found[:limit])
        return BlocksResponse(blocks=page, next=page[-1].id if len(found) > limit else None)

    @routes.get("/costs", summary="What bought capacity cost")
    async def costs(
        by: By = "pool", since: Since = None, until: Until = None, limit: Limit = 100
    ) -> CostsResponse:
        """What was paid, resold, kept as fees, used, idle and is open, in micro-dollars, by pool,
        tenant, job or block.

        A job or a tenant pays its share when a block's account is closed: until then it is `open`.
        Each entry is one of `longshore costs --json`.
        """
        _in_order(since, until)
        found = await bought.costs(by, since=since, until=until, limit=limit)
        return CostsResponse(by=by, since=since, until=until, costs=tuple(found))


def _add_one(routes: APIRouter, bought: Bought) -> None:
    @routes.get("/purchases/{purchase_id}", summary="One purchase, and why it was made")
    async def purchase(purchase_id: PurchaseId) -> PurchaseDetail:
        """The decision with every option that was looked at and its costs, the orders, the
        machines with their agents, and what happened when.
        """
        return await bought.purchase(purchase_id)

    @routes.get("/blocks/{block_id}", summary="One block, and the jobs on it")
    async def block(block_id: BlockId) -> BlockDetail:
        """Its machines, the jobs on them over time, its utilisation, and what became of its money.

        `used` and `idle` are what they come to so far while the block lasts, and what was booked
        when it has ended.
        """
        return await bought.block(block_id)


def _add_switch(routes: APIRouter, bought: Bought) -> None:
    @routes.get("/market/orphans", summary="Where the markets and the ledger differ")
    async def orphans() -> OrphansResponse:
        """Orders and machines that a market lists and nobody here knows, and machines that are to
        be running and are not listed: each with what it has cost so far, in micro-dollars.

        A market that does not answer is an entry of the kind `away`. The markets are asked once a
        minute at most. Each entry is one of `longshore market orphans --json`.
        """
        return OrphansResponse(orphans=tuple(await bought.differences()))

    @routes.get("/market/switch", summary="Whether anything may be bought")
    async def switch() -> SwitchState:
        """The stop-buying switch, and the caps: those that `longshore market caps` sets, and what
        each pool that buys may commit a day by its own policy."""
        return await bought.switch()

    @routes.post("/market/stop", summary="Stop buying", responses=_WITH_BODY)
    async def stop(request: Request, why: StopRequest) -> SwitchState:
        """No purchase and no order is made from now on; what runs goes on."""
        needs_token(request)
        return await bought.stop(why.reason)

    @routes.post("/market/resume", summary="Let it be bought again", responses=WRITING)
    async def resume(request: Request) -> SwitchState:
        """Purchases and orders may be made again."""
        needs_token(request)
        return await bought.resume()


def needs_token(request: Request) -> None:
    """Refuse a browser's cookie: another page of this host could make it send one."""
    if "authorization" not in request.headers:
        raise ApiError(403, "forbidden", "a change needs `Authorization: Bearer TOKEN`.")


def _in_order(since: datetime | None, until: datetime | None) -> None:
    latest = datetime.now(UTC) + _AHEAD
    for name, at in (("since", since), ("until", until)):
        if at is not None and not _OLDEST <= at <= latest:
            raise ApiError(
                422, "invalid", f"{name}: must be from 2020 on and within a year", field=name
            )
    if since is not None and until is not None and since >= until:
        raise ApiError(422, "invalid", "since: must be before until", field="since")
