"""Looks up what a request may have created, in a list that may lag behind."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from longshore.activities.providers.http import MarketHTTP
from longshore.models.errors import AnswerError, GoneError, MarketAwayError, MarketError


class Created(Protocol):
    @property
    def id(self) -> str: ...


C = TypeVar("C", bound=Created)
T = TypeVar("T")


async def look_by_id(
    thing_id: str,
    look: Callable[[], Awaitable[C]],
    listed: Callable[[], Awaitable[Sequence[C]]],
) -> C:
    """Return what `look` finds; where it finds nothing, what a list has: a 404 may be a mistake.

    Raises GoneError, and MarketAwayError where the list is not there either.
    """
    try:
        return await look()
    except GoneError as error:
        try:
            found = {each.id: each for each in await listed()}
        except GoneError as missing:
            raise MarketAwayError(error.provider, str(missing)) from missing
        if thing_id not in found:
            raise
        return found[thing_id]


class Creations(Generic[C]):
    """What has been created under which name, where a market has no idempotency keys.

    `find` looks a name up in the market's list, `read` reads a thing by its id. What was made or
    found once is known even where the list does not have it yet.
    """

    def __init__(
        self,
        http: MarketHTTP,
        find: Callable[[str], Awaitable[C | None]],
        read: Callable[[str], Awaitable[C]],
    ) -> None:
        self._http = http
        self._find = find
        self._read = read
        self._made: dict[str, str] = {}
        self._unsure: set[str] = set()

    def made(self, name: str, thing_id: str) -> None:
        """Remember what was created under a name."""
        self._made[name] = thing_id
        self._unsure.discard(name)

    async def known(self, name: str) -> C | None:
        """Return what has this name; look for a while when a request for it may have arrived.

        Raises MarketAwayError when the market does not say, `uncertain` after such a request, and
        GoneError for what was made and has gone: only with None may the name be sent (again).
        """
        found = await (self._sought(name) if name in self._unsure else self._find(name))
        if found is None and name in self._made:
            found = await self._remembered(name)
        if found is not None:
            self.made(name, found.id)
        return found

    async def after(self, name: str, error: MarketAwayError | MarketError) -> C:
        """Return what came of a request that ended with `error`; raise that when nothing did."""
        try:
            found = await self._come_of(name, error)
        except (MarketAwayError, MarketError):
            found = None
        if found is None:
            raise error
        self.made(name, found.id)
        return found

    async def _remembered(self, name: str) -> C:
        try:
            return await self._read(self._made[name])
        except GoneError:
            del self._made[name]  # somebody removed it: the next call may make another
            raise

    async def _come_of(self, name: str, error: MarketAwayError | MarketError) -> C | None:
        if isinstance(error, MarketError):  # another call with this name may have come first
            return await self._find(name)
        if not error.uncertain:
            return None
        self._unsure.add(name)
        return await self._sought(name)

    async def _sought(self, name: str) -> C | None:
        try:
            return await look_until(lambda: self._find(name), self._http)
        except MarketAwayError as error:
            error.uncertain = True
            raise


async def look_until(find: Callable[[], Awaitable[T | None]], http: MarketHTTP) -> T | None:
    """Call `find` until it returns something, and return that; None when patience ends.

    A market that is away meanwhile, or answers nonsense, is asked again. Raises its error when
    the last look ended so: what was not seen then may be there. `Patience.looks` says for how
    long.
    """
    ends = time.monotonic() + http.patience.looks
    looks = max(int(http.patience.looks / http.patience.look_every), 1)
    for number in range(1, looks + 1):
        last = number == looks or time.monotonic() >= ends
        try:
            found = await find()
        except (MarketAwayError, AnswerError):
            if last:
                raise
            found = None
        if found is not None or last:
            return found
        await http.sleep(http.patience.look_every)
    return None
