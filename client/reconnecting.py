"""Asking until a server that is away has come back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.service import RPCError

from longshore.client.errors import as_ours
from longshore.client.reading import Reading
from longshore.models.errors import NotFoundError
from longshore.models.settings import Settings

T = TypeVar("T")

_RETRY_FROM, _RETRY_TO = 0.2, 5.0


class Reconnecting(Reading):
    """Waits for servers, and tells once that one is away, and once that it is back."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_away: Callable[[str], None] | None = None,
        on_back: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(settings)
        self._on_away = on_away or (lambda reason: None)
        self._on_back = on_back or (lambda: None)
        self._away = False

    def say_away(self, reason: str) -> None:
        """Tell `on_away`, unless it was told and nothing has answered since."""
        if not self._away:
            self._away = True
            self._on_away(reason)

    def say_back(self) -> None:
        """Tell `on_back`, where `on_away` was told before."""
        if self._away:
            self._away = False
            self._on_back()

    async def _when_back(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer, waiting for a server or worker that is away; `what` is
        asked for, such as ``job train-1``."""
        pause = _RETRY_FROM
        while True:
            try:
                answer = await ask()
            except RPCError as error:
                reason = as_ours(error, what)
                if isinstance(reason, NotFoundError):
                    raise reason from error
                self.say_away(str(reason))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _RETRY_TO)
            else:
                self.say_back()
                return answer
