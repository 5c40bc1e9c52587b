"""Addresses that nothing of Longshore fetches from on behalf of others."""

import asyncio
import contextlib
import ipaddress
import socket
from typing import Any

from longshore.models.addresses import without_secrets
from longshore.models.errors import StoreError

_METADATA_OF_AWS = ipaddress.ip_address("fd00:ec2::254")
"""As 169.254.169.254, and no link-local address."""


def is_own_link(host: str) -> bool:
    """Return whether a host is an address of the machine's own link: there clouds give out the
    credentials of a machine. It blocks: the name is looked up."""
    with contextlib.suppress(OSError, ValueError):  # where there is no such host, a read says so
        for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            found = ipaddress.ip_address(str(address[0]).partition("%")[0])
            mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
            if (mapped or found).is_link_local or found == _METADATA_OF_AWS:
                return True
    return False


async def refuse_own_link(request: Any, send: Any) -> Any:
    """Middleware of aiohttp: each request of a session, also one to which another was redirected.

    Raises StoreError for an address of the machine's own link.
    """
    if await asyncio.to_thread(is_own_link, request.url.host or ""):
        where = without_secrets(str(request.url))
        raise StoreError(f"{where} is an address of the machine's own link")
    return await send(request)
