"""The history of the markets for the pages: prices over time, and how limits fared."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from longshore.activities.database import Database
from longshore.activities.markets.memory import MarketMemory
from longshore.console.answer_cache import Shared
from longshore.models.market import InstanceType
from longshore.models.market_memory import HistoryPoint, Quality
from longshore.models.settings import Settings

KEPT = 15.0
"""Seconds for which the same answer is given to everybody."""
_CONNECTIONS = 4

HistoryKey = tuple[str, datetime, datetime, str | None, int]
QualityKey = tuple[str | None, str | None, timedelta]


def whole_turn(now: datetime) -> datetime:
    """Return the next of the moments, 15 seconds apart, at which everybody asks for the same."""
    turns = math.ceil(now.timestamp() / KEPT)
    return datetime.fromtimestamp(turns * KEPT, UTC)


class Past:
    """Reads the memory of the markets. The database is looked for when it is needed first."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database: Database | None = None
        self._histories: Shared[HistoryKey, Sequence[HistoryPoint]] = Shared(KEPT, size=16)
        self._qualities: Shared[QualityKey, Sequence[Quality]] = Shared(KEPT)

    async def history(
        self,
        wanted: InstanceType,
        since: datetime,
        until: datetime,
        *,
        provider: str | None = None,
        points: int = 200,
    ) -> Sequence[HistoryPoint]:
        """Return prices over time, oldest first. Raises UnavailableError."""
        name = str(wanted)
        return await self._histories.get(
            (name, since, until, provider, points),
            lambda: self._memory().history(name, since, until, provider=provider, points=points),
        )

    async def how_good(
        self, wanted: InstanceType, provider: str | None, over: timedelta
    ) -> Sequence[Quality]:
        """Return how the limits of the last time fared. Raises UnavailableError."""
        name = str(wanted)
        return await self._qualities.get(
            (name, provider, over),
            lambda: self._memory().how_good(
                datetime.now(UTC) - over, provider=provider, instance_type=name
            ),
        )

    async def close(self) -> None:
        if self._database:
            await self._database.close()

    def _memory(self) -> MarketMemory:
        if self._database is None:
            self._database = Database.for_people(
                self._settings.resolve_database_url(), pool_size=_CONNECTIONS
            )
        return MarketMemory(self._database)
