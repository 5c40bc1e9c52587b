"""Looks for what a request may have created, in a list that may lag behind."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from activities.providers.http import MarketHTTP
from models.errors import MarketAwayError

T = TypeVar("T")


async def look_until(find: Callable[[], Awaitable[T | None]], http: MarketHTTP) -> T | None:
    """Call `find` until it returns something, and return that; None when patience ends.

    A market that is away meanwhile is asked again. `Patience.looks` says for how long.
    """
    ends = time.monotonic() + http.patience.looks
    looks = max(int(http.patience.looks / http.patience.look_every), 1)
    for number in range(looks):
        if number:
            await http.sleep(http.patience.look_every)
        try:
            found = await find()
        except MarketAwayError:
            found = None
        if found is not None or time.monotonic() >= ends:
            return found
    return None
