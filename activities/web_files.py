"""Files over HTTP that others name: each question to a server ends, however slowly it answers.

aiohttp bounds how long a server is silent, and each byte of a header begins that anew.
"""

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

from longshore.activities.index_pages import links_below, page_named, refused_page, text_of
from longshore.activities.node.system import boot_clock
from longshore.activities.own_link import session_to_others
from longshore.models.addresses import without_secrets
from longshore.models.errors import StoreError

ANSWERS_WITHIN = 60.0
"""Seconds until a question about a file is answered, or its content begins."""
PAGE_WITHIN = 60.0
"""Seconds for a whole page: until it is here, and all of its links are read."""
LOOK_WITHIN = 1_200.0
"""Seconds for one look at all that is below a URL."""
ASKED_AT_ONCE = 16
"""Files of one look; each is a question, as no index page tells a size."""
SILENT = 60.0
"""Seconds without a byte after which a source counts as away."""


class Look:
    """What is left to one look at all that is below a URL."""

    def __init__(self, url: str, links: int) -> None:
        self.url, self.links = url, links
        """`links` are those that its pages may still have."""
        self.until = boot_clock() + LOOK_WITHIN

    def left(self) -> float:
        """Return the seconds that are left. Raises StoreError where there are none."""
        left = self.until - boot_clock()
        if left <= 0:
            raise self.late()
        return left

    def late(self) -> StoreError:
        """Return what to raise where it lasts too long."""
        where = without_secrets(self.url)
        return StoreError(f"{where} could not be listed within {LOOK_WITHIN:g} s")


class Stream:
    """The content of one file, from its beginning to its end."""

    def __init__(self, loop: Any, answer: Any) -> None:
        self._loop, self._answer = loop, answer

    def read(self, most: int) -> bytes:
        """Return what has come, some of it or nothing at the end. Blocks. Raises what aiohttp
        raises."""
        from fsspec.asyn import sync

        piece: Any = sync(self._loop, self._answer.content.read, most)
        return piece

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._answer.close)


def connect_web(url: str, *, total: float | None, here: bool) -> tuple[Any, str]:
    """Return the file system of a URL of HTTP, and its path there; `total` are the seconds of each
    request with its content. It connects to no address that `own_link` keeps from it, `here` as
    `may_read_here` has it."""
    from aiohttp import ClientTimeout  # 0.1 s of each start, and few need it

    client = {
        "timeout": ClientTimeout(total=total, sock_connect=SILENT / 2, sock_read=SILENT),
        # What is packed could be of any size once it is unpacked.
        "headers": {"Accept-Encoding": "identity"},
        "here": here,
    }
    fs = web_files()(use_listings_cache=False, client_kwargs=client, get_client=session_to_others)
    return fs, url.rstrip("/")


@cache
def web_files() -> Any:
    """Return the class of the file system: what it is made of takes 0.1 s to load."""
    from fsspec.asyn import sync
    from fsspec.implementations.http import HTTPFileSystem

    class WebFiles(HTTPFileSystem):
        def stream(self, url: str) -> Stream:
            """Return the content of a file. Blocks. Raises what aiohttp raises, TimeoutError where
            it does not begin."""
            return Stream(self.loop, sync(self.loop, self._answer, url))

        def infos(
            self, urls: Sequence[str], look: Look
        ) -> list[dict[str, Any] | Exception | None]:
            """Return the facts of files, or why they cannot be had; after one that cannot, None of
            those that were not asked for. Blocks. Raises StoreError."""
            found: Any = sync(self.loop, self._infos, urls, look)
            return found

        async def _answer(self, url: str) -> Any:
            session = await self.set_session()
            async with asyncio.timeout(ANSWERS_WITHIN):
                answer = await session.get(self.encode_url(url), **self.kwargs)
            try:
                self._raise_not_found_for_status(answer, url)
            except BaseException:
                answer.close()
                raise
            return answer

        async def _info(self, url: str, **kwargs: Any) -> dict[str, Any]:
            async with asyncio.timeout(ANSWERS_WITHIN):
                return await super()._info(url, **kwargs)

        async def _infos(
            self, urls: Sequence[str], look: Look
        ) -> list[dict[str, Any] | Exception | None]:
            found: list[dict[str, Any] | Exception | None] = [None] * len(urls)
            left = iter(enumerate(urls))
            failed = False

            async def ask() -> None:
                nonlocal failed
                for at, url in left:
                    try:
                        found[at] = await self._info(url)
                    except Exception as error:  # a server may have anything raised
                        found[at], failed = error, True
                    if failed:
                        return

            try:
                async with asyncio.timeout(look.left()):
                    await asyncio.gather(*(ask() for _ in range(ASKED_AT_ONCE)))
            except TimeoutError:
                raise look.late() from None
            return found

        async def _ls_real(
            self, url: str, detail: bool = True, look: Look | None = None, **kwargs: Any
        ) -> Any:
            session = await self.set_session()
            within = PAGE_WITHIN if look is None else min(PAGE_WITHIN, look.left())
            until, limit = boot_clock() + within, asyncio.timeout(within)
            try:
                async with (
                    limit,
                    session.get(self.encode_url(url), **{**self.kwargs, **kwargs}) as answer,
                ):
                    self._raise_not_found_for_status(answer, url)
                    page = await text_of(answer, url)
                # All that is read over HTTP here goes over the loop of this thread.
                found = await asyncio.to_thread(links_below, page, url, until)
            except TimeoutError:
                if not limit.expired() and boot_clock() < until:
                    raise  # the source was silent for too long
                if look is not None:
                    look.left()
                raise StoreError(f"{page_named(url)} takes longer than {within:g} s") from None
            if look is not None:
                look.links -= len(found)
                if look.links < 0:
                    why = "and those before it have too many links: pack the files"
                    raise refused_page(url, why)
            if not detail:
                return sorted(found)
            return [
                {"name": each, "size": None, "type": "directory" if each[-1] == "/" else "file"}
                for each in found
            ]

    return WebFiles
