"""A TCP relay that can be cut or fall silent: a server that is away for one client alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """Passes bytes between a port of its own and `address`: host:port, or a Unix socket's path."""

    def __init__(self, address: str) -> None:
        self._far = address
        self._swallows = False
        self._own_port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._to_server, self._to_client = asyncio.Event(), asyncio.Event()
        self.heal()

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

    def swallow(self) -> None:
        """Keep every connection, take new ones, and pass nothing on."""
        self._swallows = True

    def fall_silent(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Pass nothing on in these directions, and end nothing, as a network that is cut.

        What is sent meanwhile arrives when the relay heals: TCP sends it again until then.
        """
        for passes, silent in ((self._to_server, to_server), (self._to_client, to_client)):
            if silent:
                passes.clear()

    def heal(self) -> None:
        """Pass everything on again, what has been held back first."""
        self._to_server.set()
        self._to_client.set()

    async def close(self) -> None:
        """Cut, and wait until no connection is left."""
        self.cut()
        self.heal()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        await self._relay(reader, writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.close()  # nobody is there: so the client learns it
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(
                self._copy(reader, far_writer, self._to_server),
                self._copy(far_reader, writer, self._to_client),
            )
        finally:
            self._writers -= both

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._far.startswith("/"):
            return await asyncio.open_unix_connection(self._far)
        host, _, port = self._far.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await passes.wait()
                if self._swallows:
                    continue
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def relay_to(address: str) -> AsyncIterator[Relay]:
    """Yield an open relay; it is cut at the end."""
    relay = Relay(address)
    await relay.open()
    try:
        yield relay
    finally:
        await relay.close()
