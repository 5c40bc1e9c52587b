"""Reads a series of prices over HTTP: one GET, without a token, that never takes long."""

import asyncio
from datetime import timedelta
from importlib import metadata
from urllib.parse import urlsplit

import httpx

from longshore.activities.own_link import is_own_link
from longshore.models.errors import SpecError, UnavailableError
from longshore.models.price_file import MOST_BYTES, read_series
from longshore.models.price_series import PriceSeries, why_no_source

CONNECT_WITHIN = 10.0
ANSWER_WITHIN = 30.0
"""Seconds for the whole answer, a slow body included."""
_VERSION = metadata.version("longshore")


async def fetch_series(
    url: str, longest_step: timedelta, *, within: float = ANSWER_WITHIN
) -> PriceSeries:
    """Return the series at a URL.

    Raises UnavailableError where nothing answers in time, SpecError for an answer that is no
    series. Redirects are not followed: what a pool names is what is read.
    """
    if why := why_no_source(url):
        raise SpecError("price", (f"price: {why}",))
    host = urlsplit(url).hostname or ""
    if await asyncio.to_thread(is_own_link, host):
        raise SpecError(url, (f"{url}: is an address of the machine's own link",))
    try:
        async with asyncio.timeout(within):
            data = await _body(url)
    except TimeoutError:
        raise UnavailableError(f"{url} has not answered within {within:g} s") from None
    except (httpx.ConnectError, httpx.ConnectTimeout):
        raise UnavailableError(f"{url} cannot be reached") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnavailableError(f"the answer of {url} broke off ({type(error).__name__})") from None
    return await asyncio.to_thread(read_series, data, url, longest_step, f"prices of {host}")


async def _body(url: str) -> bytes:
    """Return what is there, as it is sent: packed it could be of any size."""
    limits = httpx.Timeout(ANSWER_WITHIN, connect=CONNECT_WITHIN)
    headers = {
        "User-Agent": f"longshore/{_VERSION}",
        "Accept": "text/csv, application/json",
        "Accept-Encoding": "identity",
    }
    async with (
        httpx.AsyncClient(timeout=limits, follow_redirects=False, headers=headers) as client,
        client.stream("GET", url) as answer,
    ):
        status = answer.status_code
        if 300 <= status < 400:
            _refuse(url, "was redirected, which is not followed: name where it leads to")
        if status >= 500 or status == 429:
            raise UnavailableError(f"{url} answers with status {status}")
        if status != 200:
            _refuse(url, f"answers with status {status}")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            _refuse(url, "is sent packed: serve it as plain CSV or JSON")
        data = bytearray()
        async for piece in answer.aiter_raw():
            data += piece
            if len(data) > MOST_BYTES:
                _refuse(url, f"has more than {MOST_BYTES:,} bytes: leave out what is long past")
        return bytes(data)


def _refuse(url: str, why: str) -> None:
    raise SpecError(url, (f"{url}: {why}",))
