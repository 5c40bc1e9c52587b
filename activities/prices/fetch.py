"""Reads a series of prices over HTTP: a GET, without a token, that never takes long."""

import asyncio
from datetime import timedelta
from importlib import metadata
from typing import NoReturn
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from longshore.activities.own_link import (
    OF_THE_LINK,
    OwnAddressError,
    is_own_link,
    session_to_others,
)
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
    from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError

    host = urlsplit(url).hostname or ""
    # A proxy of the environment would connect in the place of this machine, which asks here.
    if await asyncio.to_thread(is_own_link, host):
        _refuse(url, OF_THE_LINK)
    try:
        async with asyncio.timeout(within):
            data = await _body(url)
    except OwnAddressError:
        _refuse(url, OF_THE_LINK)
    except (ClientConnectorError, ConnectionTimeoutError):
        raise UnavailableError(f"{url} cannot be reached") from None
    except TimeoutError:
        raise UnavailableError(f"{url} has not answered within {within:g} s") from None
    except ClientError as error:
        raise UnavailableError(f"the answer of {url} broke off ({type(error).__name__})") from None
    return await asyncio.to_thread(read_series, data, url, longest_step, f"prices of {host}")


async def _body(url: str) -> bytes:
    """Return what is there, as it is sent: packed it could be of any size."""
    from aiohttp import ClientTimeout, DummyCookieJar

    headers = {
        "User-Agent": f"longshore/{_VERSION}",
        "Accept": "text/csv, application/json",
        "Accept-Encoding": "identity",
    }
    limits = ClientTimeout(total=ANSWER_WITHIN, sock_connect=CONNECT_WITHIN)
    # What aiohttp takes from the environment has the passwords of a .netrc with it.
    session = await session_to_others(
        here=True, timeout=limits, headers=headers, cookie_jar=DummyCookieJar()
    )
    async with session, session.get(url, allow_redirects=False, proxy=_proxy(url)) as answer:
        status = answer.status
        if 300 <= status < 400:
            _refuse(url, "was redirected, which is not followed: name where it leads to")
        if status >= 500 or status == 429:
            raise UnavailableError(f"{url} answers with status {status}")
        if status != 200:
            _refuse(url, f"answers with status {status}")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            _refuse(url, "is sent packed: serve it as plain CSV or JSON")
        data = bytearray()
        async for piece in answer.content.iter_any():
            data += piece
            if len(data) > MOST_BYTES:
                _refuse(url, f"has more than {MOST_BYTES:,} bytes: leave out what is long past")
        return bytes(data)


def _proxy(url: str) -> str | None:
    """Return the proxy of the environment for a URL."""
    parts = urlsplit(url)
    if proxy_bypass(parts.netloc):
        return None
    proxies = getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all") or ""
    named = found if "://" in found or not found else f"http://{found}"
    return named if named.startswith(("http://", "https://")) else None


def _refuse(url: str, why: str) -> NoReturn:
    raise SpecError(url, (f"{url}: {why}",))
