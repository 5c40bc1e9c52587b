"""Reads the price of a pool from where its settings say, and stores it with its time."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import datetime, timedelta

from temporalio import activity

from longshore.activities.buying.inputs import look_at
from longshore.activities.buying.market_refusals import closed_markets, refused_offers
from longshore.activities.database import Database, clock
from longshore.activities.error_translation import reports_errors
from longshore.activities.heartbeat import heartbeats
from longshore.activities.pokes import mark_poked
from longshore.activities.prices.fetch import fetch_series
from longshore.activities.prices.holds import keep_for_price, prices_of, read_due_in
from longshore.activities.prices.rows import store_series, store_trouble
from longshore.activities.providers import registry
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_pool
from longshore.models.addresses import without_secrets
from longshore.models.buying import MarketView, Unmet
from longshore.models.errors import LongshoreError
from longshore.models.pool import PoolSpec
from longshore.models.price_messages import PriceRead, PriceRequest
from longshore.models.price_series import MARKET, PoolPrice, PriceSeries
from longshore.models.settings import Settings
from longshore.scheduling.buying.lowest_ask import lowest_ask
from longshore.scheduling.prices.series import price_at, says_now

_log = logging.getLogger(__name__)


class PriceActivities:
    """The activity of `PriceWorkflow`."""

    def __init__(self, database: Database, settings: Settings, signals: Signals) -> None:
        self._database = database
        self._settings = settings
        self._signals = signals

    @activity.defn
    @reports_errors
    async def read_price(self, request: PriceRequest) -> PriceRead:
        """Read the price of a pool and store it; let in the jobs whose price has come.

        A source that cannot be read is a part of the answer, and is noted with the price of
        before. Raises UnavailableError for the database alone.
        """
        async with heartbeats():
            async with self._database.transaction() as connection:
                spec = await load_pool(connection, request.pool, self._settings.margins)
                now = await clock(connection)
                due_in = read_due_in(spec, await prices_of(connection, spec, now), now)
            price = spec.price
            if price is None or due_in is None:
                return PriceRead(says="the pool names no price that is read again")
            if due_in > timedelta(0):  # whoever began this looked before another read was stored
                return PriceRead(says="the price of the pool has just been read")
            found = await self._read(spec, price)
            read, poke = await self._store(spec, price, found)
        if poke:
            await self._signals.poke_pool(spec.name)
        return read

    async def _read(self, spec: PoolSpec, price: PoolPrice) -> PriceSeries | str:
        try:
            if price.source == MARKET:
                return await self._at_markets(spec, price)
            return await fetch_series(price.source, price.longest_step)
        except LongshoreError as error:
            trouble = without_secrets(str(error))
        _log.warning("the price of pool %s cannot be read: %s", spec.name, trouble)
        return trouble

    async def _at_markets(self, spec: PoolSpec, price: PoolPrice) -> PriceSeries | str:
        async with self._database.transaction() as connection:
            now = await clock(connection)
            closed = await closed_markets(connection, spec, now)
            refused = await refused_offers(connection, spec.buying)
        async with AsyncExitStack() as stack:
            markets = [
                await stack.enter_async_context(aclosing(market))
                for market in registry.connect_all(self._settings).values()
            ]
            # As if nobody waited: any machine that the pool may buy.
            views = await look_at(markets, Unmet(), spec.buying, now, closed, refused)
        return _quoted(views, spec, price, now)

    async def _store(
        self, spec: PoolSpec, price: PoolPrice, found: PriceSeries | str
    ) -> tuple[PriceRead, bool]:
        async with self._database.transaction() as connection:
            now = await clock(connection)
            newest = (await load_pool(connection, spec.name)).price
            if newest is None or newest.source != price.source:
                return PriceRead(says="the pool has another price by now"), False
            if isinstance(found, str):
                await store_trouble(connection, spec.name, price.source, found, now)
            else:
                await store_series(connection, spec.name, price.source, found, now)
            look = await keep_for_price(connection, spec.name)
            stored = await prices_of(connection, spec, now)
            says = says_now(price_at(stored.series if stored else None, now), now)
            if isinstance(found, str):
                says = f"{found}; {says}"
            poke = bool(look.released) and await mark_poked(connection, spec.name)
        await self._signals.tell_jobs("waiting", look.told)
        return PriceRead(says=says, released=look.released), poke


def _quoted(
    views: Sequence[MarketView], spec: PoolSpec, price: PoolPrice, now: datetime
) -> PriceSeries | str:
    """Return what a GPU-hour costs at the markets now, as a series of one price."""
    ask = lowest_ask(views, spec.buying, now)
    if isinstance(ask, str):
        return ask
    whence = f"market {ask.provider}, {ask.instance_type}"
    return PriceSeries(points=((now, ask.price),), ends_at=now + price.longest_step, whence=whence)
