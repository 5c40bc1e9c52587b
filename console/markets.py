"""The clients of the markets that are configured: new ones when the simulated market is new."""

import asyncio
import logging
from collections.abc import Mapping

from longshore.activities.providers.base import Provider
from longshore.activities.providers.registry import connect_all
from longshore.models.errors import LongshoreError
from longshore.models.settings import Settings

_log = logging.getLogger(__name__)


class Markets:
    """Holds the clients. To be used, and closed, in the event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._providers: Mapping[str, Provider] = {}
        self._made_for: str | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def providers(self) -> Mapping[str, Provider]:
        """Return the markets by name; none when there is neither a token nor a simulated one."""
        simulated = self._simulated()
        if simulated != self._made_for:
            self._close_later(self._providers)
            self._providers = self._connect()
            self._made_for = simulated
        return self._providers

    async def close(self) -> None:
        self._close_later(self._providers)
        self._providers, self._made_for = {}, None
        await asyncio.gather(*self._closing)

    def _simulated(self) -> str:
        """Return what the simulated market says of itself: other words, other market."""
        try:
            return self._settings.market_file.read_text()
        except OSError:
            return ""

    def _connect(self) -> Mapping[str, Provider]:
        try:
            return connect_all(self._settings)
        except LongshoreError as error:
            _log.warning("no market can be asked: %s", error)
            return {}

    def _close_later(self, providers: Mapping[str, Provider]) -> None:
        for each in providers.values():
            task = asyncio.create_task(each.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
