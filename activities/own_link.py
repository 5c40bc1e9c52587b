"""Addresses that nothing of Longshore fetches from on behalf of others.

What counts is the address that is connected to: a name may lead elsewhere each time that it is
looked up (DNS rebinding), and so may a redirect.
"""

import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from longshore.models.addresses import without_secrets
from longshore.models.errors import StoreError
from longshore.models.visible import shown

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

OF_THE_LINK: Final = "is an address of the machine's own link"
OF_THE_MACHINE: Final = "leads to an address of the machine itself, and may not"
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254")))
"""Of AWS and Google: as 169.254.169.254, and no link-local addresses."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses behind a translator, in the last 32 bits (RFC 6052)."""


class OwnAddressError(StoreError):
    """What is asked for is at an address that nothing is fetched from: it is refused, not away."""


class _RefusedError(OSError):
    """An address that is not connected to. An OSError, as of one that does not answer: another
    address of the name may."""


def is_own_link(host: str) -> bool:
    """Return whether a host is an address of the machine's own link: there clouds give out the
    credentials of a machine. It blocks: the name is looked up."""
    return any(map(is_of_link, _addresses(host)))


def is_own_machine(host: str) -> bool:
    """Return whether a host is an address by which a machine reaches itself alone. It blocks."""
    return any(map(is_of_machine, _addresses(host)))


def is_of_link(address: Address) -> bool:
    """Return whether an address is one of the machine's own link."""
    return any(each.is_link_local or each in _METADATA for each in _forms(address))


def is_of_machine(address: Address) -> bool:
    """Return whether an address is one by which a machine reaches itself alone."""
    return any(each.is_loopback or each.is_unspecified for each in _forms(address))


def _forms(address: Address) -> Iterator[Address]:
    """Yield an address, and the IPv4 address that one of IPv6 stands for."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            yield address.ipv4_mapped
        if address in _NAT64:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def _addresses(host: str, flags: int = 0) -> Iterator[Address]:
    with contextlib.suppress(OSError, ValueError):  # where there is no such host, a read says so
        for *_, found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags):
            yield ipaddress.ip_address(str(found[0]).partition("%")[0])


async def session_to_others(*, loop: Any = None, here: bool = False, **options: Any) -> Any:
    """Return a session of aiohttp that connects to no address of the machine's own link, and,
    unless it may read what is `here`, to none of the machine itself. `options` are the session's.

    Each request that would raises OwnAddressError, also one to which another was redirected.
    """
    from aiohttp import ClientSession, TCPConnector  # 0.1 s of each start, and few need it

    ways = (_said, *options.pop("middlewares", ()))
    # Who asks bounds how many there are at a time: nobody waits for the connections of others.
    connector = TCPConnector(socket_factory=_open_here if here else _open_elsewhere, limit=0)
    return ClientSession(connector=connector, middlewares=ways, loop=loop, **options)


def may_read_here(url: str, *, for_image: bool = False) -> bool:
    """Return whether what reads a URL may be led to the machine itself: where that is what the
    URL names, and not `for_image`, for a job that may have nothing of it. It blocks.

    Raises StoreError where it is no URL.
    """
    try:
        host = urlsplit(url).hostname or ""
    except ValueError as error:
        raise StoreError(f"{shown(without_secrets(url))} is no URL: {error}") from None
    return not for_image and is_own_machine(host)


async def _said(request: Any, send: Any) -> Any:
    """Middleware of aiohttp that says what was refused, and of which URL."""
    from aiohttp import ClientConnectorError

    try:
        return await send(request)
    except ClientConnectorError as error:
        if not isinstance(error.os_error, _RefusedError):
            raise
        where = without_secrets(str(request.url))
        raise OwnAddressError(f"{where} {error.os_error}") from None


def _open_elsewhere(info: Any) -> socket.socket:
    """Return the socket for an address that is about to be connected to."""
    _refuse(info, is_of_machine, OF_THE_MACHINE)
    return _open_here(info)


def _open_here(info: Any) -> socket.socket:
    _refuse(info, is_of_link, OF_THE_LINK)
    family, kind, protocol, _, _ = info
    return socket.socket(family, kind, protocol)


def _refuse(info: Any, is_one: Any, why: str) -> None:
    # As the system reads a number: 2130706433 is 127.0.0.1, too. No name is looked up.
    found = [*_addresses(str(info[4][0]), socket.AI_NUMERICHOST)]
    if not found or any(map(is_one, found)):
        raise _RefusedError(why)
