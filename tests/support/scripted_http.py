"""An HTTP server on a real socket that gives scripted answers, broken ones included."""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MARK = {"X-Longshore-Simulated": "market"}


@dataclass(frozen=True)
class Received:
    """A request as it came in."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    """By lower-case name."""
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True)
class Reply:
    body: Any = None
    """JSON; bytes are sent as they are."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    mark: bool = True
    """Whether the server says that it is simulated."""

    @property
    def content(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Reset:
    """The connection is cut when the request has arrived."""


@dataclass(frozen=True)
class Silence:
    """The request arrives and is never answered."""


@dataclass(frozen=True)
class SlowHeaders:
    """Headers whose bytes come one by one and never end."""


@dataclass(frozen=True)
class Trickle:
    """A body whose bytes come one by one and never end."""


Answer = Reply | Reset | Silence | SlowHeaders | Trickle
Script = Answer | Callable[[Received], Answer]


class ScriptedHTTP:
    """Each request takes the next answer of its method and path; the last one repeats."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.unexpected: list[str] = []
        self._scripts: dict[tuple[str, str], deque[Script]] = defaultdict(deque)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def on(self, request: str, *scripts: Any) -> None:
        """Answer ``GET /path`` so; what is no script is the body of a 200."""
        method, path = request.split(" ", 1)
        for script in scripts:
            given: Any = script
            if not isinstance(script, Answer) and not callable(script):
                given = Reply(script)
            self._scripts[method, path].append(given)

    def seen(self, request: str) -> list[Received]:
        """Return the requests of a method and path."""
        method, path = request.split(" ", 1)
        return [r for r in self.requests if (r.method, r.path) == (method, path)]

    async def __aenter__(self) -> "ScriptedHTTP":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                if not await _send(writer, self._answer(request)):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client has gone
        finally:
            writer.transport.abort()

    def _answer(self, request: Received) -> Answer:
        scripts = self._scripts.get((request.method, request.path))
        if not scripts:
            self.unexpected.append(f"{request.method} {request.path}")
            return Reply({"detail": "nothing is scripted for this"}, 404)
        script = scripts.popleft() if len(scripts) > 1 else scripts[0]
        return script(request) if callable(script) else script


async def _read(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = head[0].split(" ", 2)
    pairs = (line.split(": ", 1) for line in head[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    return Received(method, unquote(parts.path), query, headers, content)


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    """Send an answer, and return whether the connection can take another request."""
    match answer:
        case Reset():
            return False
        case Silence():
            await asyncio.Event().wait()
        case Trickle() | SlowHeaders():
            head = _head(Reply(b"", headers={"Content-Length": "1000000"}))
            writer.write(head if isinstance(answer, Trickle) else b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.005)  # the pace of the trickle
        case Reply():
            writer.write(_head(answer) + answer.content)
            await writer.drain()
    return True


def _head(reply: Reply) -> bytes:
    headers = {
        **(MARK if reply.mark else {}),
        "Content-Type": "application/json",
        "Content-Length": str(len(reply.content)),
        **reply.headers,
    }
    lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
