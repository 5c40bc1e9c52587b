"""Addresses that nothing of Longshore fetches from on behalf of others."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from longshore.models.addresses import without_secrets
from longshore.models.errors import StoreError
from longshore.models.visible import shown

_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254")))
"""Of AWS and Google: as 169.254.169.254, and no link-local addresses."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses behind a translator, in the last 32 bits (RFC 6052)."""


class OwnAddressError(StoreError):
    """What is asked for is at an address that nothing is fetched from: it is refused, not away."""


def is_own_link(host: str) -> bool:
    """Return whether a host is an address of the machine's own link: there clouds give out the
    credentials of a machine. It blocks: the name is looked up."""
    return any(each.is_link_local or each in _METADATA for each in _addresses(host))


def is_own_machine(host: str) -> bool:
    """Return whether a host is an address by which a machine reaches itself alone. It blocks."""
    return any(each.is_loopback or each.is_unspecified for each in _addresses(host))


def _addresses(host: str) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    with contextlib.suppress(OSError, ValueError):  # where there is no such host, a read says so
        for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            found = ipaddress.ip_address(str(address[0]).partition("%")[0])
            yield found
            if isinstance(found, ipaddress.IPv6Address):
                if found.ipv4_mapped:
                    yield found.ipv4_mapped
                if found in _NAT64:
                    yield ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)


async def refuse_own_link(request: Any, send: Any) -> Any:
    """Middleware of aiohttp: each request of a session, also one to which another was redirected.

    Raises OwnAddressError for an address of the machine's own link.
    """
    if await asyncio.to_thread(is_own_link, request.url.host or ""):
        where = without_secrets(str(request.url))
        raise OwnAddressError(f"{where} is an address of the machine's own link")
    return await send(request)


async def refuse_own_machine(request: Any, send: Any) -> Any:
    """Middleware of aiohttp for what is elsewhere, or for an image: nothing is read from this
    machine, also not by a redirect.

    Raises OwnAddressError for a loopback address.
    """
    if await asyncio.to_thread(is_own_machine, request.url.host or ""):
        where = without_secrets(str(request.url))
        raise OwnAddressError(f"{where} leads to an address of the machine itself, and may not")
    return await send(request)


def middlewares_for(url: str, *, for_image: bool = False) -> tuple[Any, ...]:
    """Return the middlewares of a session that reads a URL; `for_image` is of a job that may have
    nothing of this machine, whatever a name leads to by now. It blocks.

    Raises StoreError where it is no URL.
    """
    try:
        host = urlsplit(url).hostname or ""
    except ValueError as error:
        raise StoreError(f"{shown(without_secrets(url))} is no URL: {error}") from None
    if not for_image and is_own_machine(host):
        return (refuse_own_link,)
    return (refuse_own_link, refuse_own_machine)
