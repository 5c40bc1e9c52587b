"""How long a connection may be without a whole request, and how many may be at a time; and which
host a request is for.

uvicorn has no bound for either of the first: connections with half a request each would keep
everybody out once the process has no file descriptor left. Of a request line with a whole URL it
takes the path alone.
"""

import asyncio
import re
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_WITHIN = 10.0
"""Seconds in which a request has to come, with its body."""
MOST_WAITING = 500
"""Connections without a whole request. Of more the oldest ends, not the one that comes."""


_HOST = b"host"
_WHOLE_URL = re.compile(rb"[^/?#]+://([^/?#]*)")


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request does not come; has `Host` say which host that is for."""

    _waiting: ClassVar[dict[asyncio.Transport, asyncio.TimerHandle]] = {}
    """Connections without a request, the oldest first, with what ends each."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        under_way = self.cycle is not None and not self.cycle.response_complete
        whole = under_way and not self.cycle.more_body
        if whole or self.transport.get_protocol() is not self:  # it speaks WebSocket now
            self._has_come()
        else:
            self._wait()

    def on_headers_complete(self) -> None:
        if whole := _WHOLE_URL.match(self.url):
            # The host of the URL counts, whatever `Host` says (RFC 9112, 3.2.2).
            others = [header for header in self.headers if header[0] != _HOST]
            self.headers[:] = [(_HOST, whole[1]), *others]
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_come()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self.transport in self._waiting:
            return
        ending = self.loop.call_later(REQUEST_WITHIN, self.transport.abort)
        self._waiting[self.transport] = ending
        if len(self._waiting) > MOST_WAITING:
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest).cancel()
            oldest.abort()

    def _has_come(self) -> None:
        if ending := self._waiting.pop(self.transport, None):
            ending.cancel()
