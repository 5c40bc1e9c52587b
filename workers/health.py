"""/healthz: a process says whether it is well, to whoever restarts it when it is not.

200 and 503 have the same JSON: `ok`, and for each part `ok` or what is wrong with it.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from longshore.activities.node.fence import Fence
from longshore.models.addresses import host_and_port
from longshore.models.errors import StackError

OK = "ok"
Parts = Mapping[str, str]
"""Each part of a process, with `ok` or what is wrong."""
_REQUEST_WITHIN = 5.0
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@asynccontextmanager
async def serving_health(address: str | None, ask: Callable[[], Parts]) -> AsyncIterator[None]:
    """Answer /healthz at `address` until the end of the block; nothing without one.

    Raises StackError when nothing can listen there.
    """
    if address is None:
        yield
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(_REQUEST_WITHIN):
                request = await reader.readuntil(b"\r\n")
                writer.write(_response(request, ask))
                await writer.drain()
        writer.close()

    host, port = host_and_port(address)
    try:
        server = await asyncio.start_server(answer, host, port, limit=8192)
    except OSError as error:
        raise StackError(
            f"/healthz cannot be served at {address} ({error.strerror}). Choose another "
            "health_address: each process needs one of its own."
        ) from error
    async with server:
        yield


def agent_parts(fence: Fence) -> Parts:
    """Return whether the server has acknowledged the agent within its fence."""
    if fence.epoch == 0:
        return {"registration": "not registered yet"}
    if fence.seconds_left <= 0:
        silent = fence.after - fence.seconds_left
        return {"registration": f"cut off: no acknowledgement for {silent:.0f} s"}
    return {"registration": OK}


def _response(request: bytes, ask: Callable[[], Parts]) -> bytes:
    method, _, rest = request.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if path != b"/healthz":
        return _http(404, {"error": "only /healthz is here"})
    if method not in (b"GET", b"HEAD"):
        return _http(405, {"error": "GET, please"})
    parts = ask()
    ok = all(value == OK for value in parts.values())
    return _http(200 if ok else 503, {"ok": ok, "parts": dict(parts)}, body=method == b"GET")


def _http(status: int, content: Mapping[str, object], *, body: bool = True) -> bytes:
    data = json.dumps(content).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")
