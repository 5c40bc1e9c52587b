"""A TCP relay that can be cut: a server that is away for one client, and there for the others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """Passes bytes between a port of its own and `address` (host:port)."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._own_port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._own_port}"

    async def open(self) -> None:
        """Take connections; on the same port again after `cut`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._own_port)
        self._own_port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """End every connection and take no new one."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            self._writers -= both


@asynccontextmanager
async def relay_to(address: str) -> AsyncIterator[Relay]:
    """Yield an open relay; it is cut at the end."""
    relay = Relay(address)
    await relay.open()
    try:
        yield relay
    finally:
        relay.cut()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
