"""Looking at the markets: read each book, price it for two sizes, remember both."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.buying.inputs import look_at, read_need
from longshore.activities.buying.market_refusals import refused_offers
from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.markets.compaction import compact
from longshore.activities.markets.memory import MarketMemory
from longshore.activities.metrics import MARKET_ASK, MARKET_POLLS, SILENT, Metrics
from longshore.activities.providers import registry
from longshore.activities.providers.base import Provider
from longshore.activities.schedules import Schedules
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_pool
from longshore.models.addresses import without_secrets
from longshore.models.buying import BuyingPolicy, PriceReached, RefusedOffer, Unmet, UnmetJob
from longshore.models.errors import LongshoreError, StoredError, UnavailableError
from longshore.models.job import Tier
from longshore.models.market import InstanceType, NoQuote, NoQuoteReason, OrderBook
from longshore.models.market_memory import (
    MARKET_WATCH_SCHEDULE,
    MarketLookRequest,
    MarketSeen,
    MarketWatchReport,
    PollOutcome,
    Recommendation,
    Source,
)
from longshore.models.money import dollars_of
from longshore.models.pool import PoolSpec
from longshore.models.price import PriceAnswer, PriceNeed
from longshore.models.settings import Settings
from longshore.models.text import format_dollars
from longshore.scheduling.buying.trigger import might_reach, reached
from longshore.scheduling.prices.price import price

NODES = (1, 8)
"""Each book is priced for so many nodes of its type."""
ANSWER_WITHIN = 20.0
"""Seconds that a market has for one book."""
_WAKE_WITHIN = 45.0
"""Seconds for asking the markets what waiting jobs could have: pools look for themselves too."""

_log = logging.getLogger(__name__)

_WAIT_FOR_A_PRICE = """
    SELECT DISTINCT q.pool FROM queue q
     WHERE NOT q.held AND q.request->>'tier' = 'FLEX' ORDER BY q.pool
"""


class MarketWatchActivities:
    """The activity of `MarketWatchWorkflow`."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        metrics: Metrics = SILENT,
        signals: Signals | None = None,
        schedules: Schedules | None = None,
    ) -> None:
        """With `signals`, pools hear of prices that their FLEX jobs wait for; with `schedules`,
        looks rest while no market is configured."""
        self._database = database
        self._memory = MarketMemory(database)
        self._settings = settings
        self._metrics = metrics
        self._signals = signals
        self._schedules = schedules

    @activity.defn
    @reports_errors
    async def watch_markets(self, request: MarketLookRequest) -> MarketWatchReport:
        """Look at every type of `market_watch` at every configured market; store what is seen.

        A market that does not answer is a part of the report. Repeated with the same id, books
        that were stored stay the only ones. Raises UnavailableError for the database alone.
        """
        names = registry.configured(self._settings)
        if not names:
            if self._schedules:
                await self._schedules.rest(MARKET_WATCH_SCHEDULE)
            return MarketWatchReport()
        looks = await asyncio.gather(*(self._look_at(name) for name in names))
        seen = [await self._store(each, request.id) for look in looks for each in look]
        for each in seen:
            self._measure(each)
        woken: dict[str, str] = {}
        try:
            async with asyncio.timeout(_WAKE_WITHIN):
                await self._wake_pools(seen, woken)
        except TimeoutError:
            _log.warning("no price for waiting jobs within %g s", _WAKE_WITHIN)
        async with self._database.transaction() as connection:
            now = await clock(connection)
        compacted = await compact(self._database, now, self._settings.market_keep)
        return MarketWatchReport(seen=tuple(seen), compacted=compacted, woken=woken)

    async def _wake_pools(self, seen: Sequence[MarketSeen], woken: dict[str, str]) -> None:
        """Wake the pools whose FLEX jobs wait for a price such as these; note why, by pool."""
        asks = [(each.instance_type, each.best_ask) for each in seen if each.best_ask is not None]
        if self._signals is None or not asks:
            return
        async with self._database.transaction() as connection:
            names = (await connection.scalars(text(_WAIT_FOR_A_PRICE))).all()
            pools = [
                pool for name in names
                if (pool := await self._pool(connection, name)) is not None
            ]  # fmt: skip
            needs = {pool.name: await read_need(connection, pool) for pool in pools}
            refused = {pool.name: await refused_offers(connection, pool.buying) for pool in pools}
            now = await clock(connection)
        for pool in pools:
            waiting = needs[pool.name].unmet.jobs
            jobs = tuple(job for job in waiting if job.request.tier is Tier.FLEX)
            if not pool.buying.enabled:
                continue
            there = await self._price_for(jobs, asks, pool.purchasing, now, refused[pool.name])
            if there is not None:
                await self._signals.poke_pool(pool.name)
                woken[pool.name] = (
                    f"{there.instance_type} at {there.provider} costs "
                    f"{format_dollars(there.price)}, and {there.job_id} waits for "
                    f"{format_dollars(there.hoped)}"
                )

    async def _pool(self, connection: AsyncConnection, name: str) -> PoolSpec | None:
        """Return a pool; None where its settings cannot be read, which its cycle tells of."""
        try:
            return await load_pool(connection, name, self._settings.margins)
        except StoredError:
            return None

    async def _price_for(
        self,
        jobs: tuple[UnmetJob, ...],
        asks: Sequence[tuple[str, int]],
        policy: BuyingPolicy,
        now: datetime,
        refused: Sequence[RefusedOffer],
    ) -> PriceReached | None:
        """Return the price that one of the jobs waits for, where a market has it for its window.

        The markets are asked for those windows only where an ask for the next hour is low enough.
        """
        if not any(might_reach(kind, ask, jobs, policy, now) for kind, ask in asks):
            return None
        async with AsyncExitStack() as stack:
            markets = [
                await stack.enter_async_context(aclosing(market))
                for market in registry.connect_all(self._settings).values()
            ]
            views = await look_at(markets, Unmet(jobs=jobs), policy, now, refused=refused)
        return reached(jobs, views, policy, now)

    async def _look_at(self, name: str) -> list[OrderBook | MarketSeen]:
        """Return the book of each type, or why there is none."""
        types = self._settings.market_watch
        try:
            provider = registry.connect(self._settings, name)
        except LongshoreError as error:
            return [_trouble(name, instance_type, error) for instance_type in types]
        async with aclosing(provider):
            return [await _read(provider, instance_type) for instance_type in types]

    async def _store(self, look: OrderBook | MarketSeen, look_id: str) -> MarketSeen:
        if isinstance(look, MarketSeen):
            return look
        made = _recommended(look)
        await self._memory.store(look, made, look=look_id)
        asks = [ask.price for ask in look.asks if ask.price and ask.gpus]
        return MarketSeen(
            provider=look.provider,
            instance_type=look.instance_type,
            outcome=PollOutcome.STORED,
            best_ask=min(asks, default=None),
            limits={each.gpus: each.limit for each in made},
            detail="" if asks else "no asks",
            simulated=look.simulated,
        )

    def _measure(self, seen: MarketSeen) -> None:
        self._metrics.add(MARKET_POLLS, provider=seen.provider, outcome=seen.outcome.value)
        if seen.best_ask is not None:
            dollars = float(dollars_of(seen.best_ask))
            self._metrics.set(
                MARKET_ASK, dollars, provider=seen.provider, instance_type=seen.instance_type
            )


async def _read(provider: Provider, instance_type: str) -> OrderBook | MarketSeen:
    try:
        wanted = InstanceType.parse(instance_type)
        async with asyncio.timeout(ANSWER_WITHIN):
            answer = await provider.book(wanted)
    except Exception as error:  # one market that breaks must not hide what the others ask
        return _trouble(provider.name, instance_type, error)
    if not isinstance(answer, NoQuote):
        # The name that was asked for: one series, whatever the market calls the type today.
        return answer.model_copy(update={"instance_type": str(wanted)})
    away = answer.reason is NoQuoteReason.UNREACHABLE
    return MarketSeen(
        provider=provider.name,
        instance_type=instance_type,
        outcome=PollOutcome.AWAY if away else PollOutcome.NO_QUOTE,
        detail=answer.detail or answer.reason.value,
    )


def _trouble(provider: str, instance_type: str, error: Exception) -> MarketSeen:
    """Return what is noted of a market that gave no book."""
    detail = without_secrets(str(error))
    outcome = PollOutcome.REFUSED
    if isinstance(error, TimeoutError):
        outcome, detail = PollOutcome.AWAY, f"no answer within {ANSWER_WITHIN:g} s"
    elif isinstance(error, UnavailableError):
        outcome = PollOutcome.AWAY
    elif not isinstance(error, (LongshoreError, ValueError)):
        detail = f"unexpected {type(error).__name__}: {detail}"
    _log.warning("no book of %s at %s: %s", instance_type, provider, detail)
    return MarketSeen(
        provider=provider, instance_type=instance_type, outcome=outcome, detail=detail
    )


def _recommended(book: OrderBook) -> list[Recommendation]:
    """Return what to pay for each size; nothing for one that has no price."""
    node = InstanceType.parse(book.instance_type).gpus
    answers = [
        price(book, PriceNeed(gpus=nodes * node, window=book.window), book.observed_at, levels=1)
        for nodes in NODES
    ]
    return [
        Recommendation.of(answer, Source.WATCH, book.window)
        for answer in answers
        if isinstance(answer, PriceAnswer)
    ]
