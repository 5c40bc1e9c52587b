"""What a pass of reconcile says of the markets: what nobody here knows, what has gone missing."""

import logging
from collections import Counter
from contextlib import AsyncExitStack, aclosing

from longshore.activities.database import Database, clock
from longshore.activities.markets.reconcile import MarketFinding, Mismatch, compare
from longshore.activities.metrics import MARKET_DIFFERENCES, Metrics
from longshore.activities.providers import registry
from longshore.activities.providers.base import Provider
from longshore.models.errors import LongshoreError
from longshore.models.reconcile import BookBill, Finding, FindingKind, Mend
from longshore.models.settings import Settings
from longshore.models.text import format_dollars

_KINDS = {
    Mismatch.ORDER: FindingKind.MARKET_UNKNOWN,
    Mismatch.MACHINE: FindingKind.MARKET_UNKNOWN,
    Mismatch.MISSING: FindingKind.MARKET_MISSING,
    Mismatch.BILL: FindingKind.MARKET_BILL,
}
_log = logging.getLogger(__name__)


async def market_findings(
    database: Database, settings: Settings, metrics: Metrics
) -> tuple[Finding, ...]:
    """Return every difference between the configured markets and the capacity database.

    A bill can be booked; nothing else is mended, as an account may be used by others too. A market
    that is away is logged, and is no finding. Raises UnavailableError for the database alone.
    """
    found = await differences(database, settings)
    _measure(registry.configured(settings), found, metrics)
    for each in found:
        if each.kind is Mismatch.AWAY:
            _log.warning("%s was not compared: %s", each.provider, each.detail)
    return tuple(_finding(each) for each in found if each.kind is not Mismatch.AWAY)


async def differences(database: Database, settings: Settings) -> tuple[MarketFinding, ...]:
    """Return what differs at the configured markets; one that cannot be asked is a difference.

    Raises UnavailableError for the database alone.
    """
    found: list[MarketFinding] = []
    async with database.transaction() as connection:
        now = await clock(connection)
    async with AsyncExitStack() as stack:
        markets: list[Provider] = []
        for name in registry.configured(settings):
            try:
                market = registry.connect(settings, name)
            except LongshoreError as error:
                found.append(MarketFinding(provider=name, kind=Mismatch.AWAY, id="",
                                           detail=str(error)))  # fmt: skip
                continue
            markets.append(await stack.enter_async_context(aclosing(market)))
        return (*found, *await compare(database, markets, now))


def _measure(names: tuple[str, ...], found: tuple[MarketFinding, ...], metrics: Metrics) -> None:
    counts = Counter((each.provider, each.kind) for each in found)
    for name in names:
        for kind in Mismatch:
            metrics.set(MARKET_DIFFERENCES, counts[(name, kind)], provider=name, kind=kind.value)


def _finding(each: MarketFinding) -> Finding:
    named = f" ({each.name})" if each.name else ""
    cost = f"it has cost {format_dollars(each.cost_micro_usd)} so far"
    problem = f"the market lists it{named}, and nobody here knows it: {each.detail}; {cost}"
    if each.kind is Mismatch.MISSING:
        problem = f"it is to be running{named}, and the market does not list it: {each.detail}"
    mend = None
    if each.kind is Mismatch.BILL:
        problem = f"it is over{named}: {each.detail}"
        mend = each.order and Mend(book_bill=BookBill(key=each.order, micro=each.cost_micro_usd))
    return Finding(
        kind=_KINDS[each.kind], subject=f"{each.kind.value} {each.id} at {each.provider}",
        problem=problem, mend=mend or None, done="look at `longshore market orphans`",
    )  # fmt: skip
