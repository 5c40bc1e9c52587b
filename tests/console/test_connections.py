"""Connections on which no whole request comes: they end, and keep nobody out."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn
import websockets

from longshore.console import connections
from longshore.console.connections import BoundedProtocol
from tests.support.waiting import eventually

HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half"
REST = b": 1\r\n\r\n"
HALF_A_BODY = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"
Open = Callable[[bytes], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class App:
    """Reads a request to its end, and answers once it may; echoes what a WebSocket says."""

    def __init__(self) -> None:
        self.asked = 0
        self.may = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await self.may.wait()
            await send({"type": "websocket.send", "text": "still here"})
        elif scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            self.asked += 1
            await self.may.wait()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(connections, "REQUEST_WITHIN", 0.2)
    return App()


@pytest.fixture
async def port(app: App) -> AsyncIterator[int]:
    """Serves the app with the console's protocol; 0.1 s."""
    config = uvicorn.Config(
        app, http=BoundedProtocol, port=0, log_config=None, lifespan="off",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    yield server.servers[0].sockets[0].getsockname()[1]
    app.may.set()
    await server.shutdown()


@pytest.fixture
async def connect(port: int) -> AsyncIterator[Open]:
    """Opens connections that begin with some bytes, and closes them at the end."""
    opened: list[asyncio.StreamWriter] = []

    async def connect(first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        writer.write(first)
        return reader, writer

    yield connect
    for writer in opened:
        writer.close()


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 10) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("first", [b"", HALF, HALF_A_BODY], ids=["nothing", "head", "body"])
async def test_a_connection_on_which_no_whole_request_comes_ends(connect: Open, first: bytes):
    reader, _ = await connect(first)
    assert await _ended(reader)


async def test_half_a_second_request_ends_it_too(connect: Open, app: App):
    app.may.set()
    reader, writer = await connect(HALF + REST)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
    writer.write(HALF)
    assert await _ended(reader)


async def test_a_request_that_takes_long_to_answer_is_answered(connect: Open, app: App):
    slow, _ = await connect(HALF + REST)
    await eventually(lambda: app.asked == 1)
    assert await _ended((await connect(HALF))[0])  # which came later
    app.may.set()
    assert (await slow.readline()).startswith(b"HTTP/1.1 204")


async def test_a_websocket_stays(connect: Open, app: App, port: int):
    async with websockets.connect(f"ws://127.0.0.1:{port}/") as socket:
        assert await _ended((await connect(HALF))[0])
        app.may.set()
        assert await socket.recv() == "still here"


async def test_of_too_many_the_oldest_ends_and_a_whole_request_is_answered(
    connect: Open, app: App, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connections, "REQUEST_WITHIN", 600)
    monkeypatch.setattr(connections, "MOST_WAITING", 3)
    app.may.set()
    halves = [await connect(HALF) for _ in range(3)]
    answered, _ = await connect(HALF + REST)
    assert (await answered.readline()).startswith(b"HTTP/1.1 204")
    assert await _ended(halves[0][0])
    for reader, writer in halves[1:]:
        writer.write(REST)
        assert (await reader.readline()).startswith(b"HTTP/1.1 204")
