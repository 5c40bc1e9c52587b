"""A fleet without nodes that buys at a simulated market, and whether the two agree."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.models.settings import MarketInfo
from tests.buying.buyer import differences
from tests.faults.fleet import Fleet, running_fleet
from tests.support.faulty_proxy import FaultyProxy
from tests.support.local_stack import temporary_folder
from tests.support.market import RunningMarket

LIST_LAG = "LONGSHORE_MARKET_LIST_LAG"
LOST_AFTER = timedelta(seconds=16)
"""Nobody waits here for a node to be lost; one that is while its machine goes on costs its job."""


@contextmanager
def found_in(folder: Path, market: RunningMarket | FaultyProxy) -> Iterator[None]:
    """Have the stack in `folder` find the market, whose lists lag by no more than moments."""
    info = MarketInfo(url=market.url, token=market.token, pid=os.getpid())
    (folder / "market.json").write_text(info.model_dump_json())
    os.environ[LIST_LAG] = "3s"
    try:
        yield
    finally:
        del os.environ[LIST_LAG]


@asynccontextmanager
async def running_buyers(market: RunningMarket | FaultyProxy) -> AsyncIterator[Fleet]:
    """Yield a fleet without nodes of its own, whose control worker trades at the market."""
    with temporary_folder() as folder, found_in(folder, market):
        async with running_fleet(folder, nodes=0, lost_after=LOST_AFTER) as fleet:
            yield fleet


async def disagreements(
    fleet: Fleet, market: RunningMarket, pool: str, before: Any, *beside: str
) -> list[str]:
    """Return where what the pools have booked is not what the market says, since `before`."""

    async def rows(statement: str) -> list[dict[str, Any]]:
        return fleet.rows(statement)

    return await differences(rows, pool, before, market.state(), *beside)
