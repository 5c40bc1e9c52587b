"""/healthz: a process says whether it is well, to whoever restarts it when it is not.

200 and 503 have the same JSON: `ok`, and for each part `ok` or what is wrong with it. A page of a
browser whose name leads here (DNS rebinding) gets nothing: it asks by that name, as nobody else
does. A machine, a kubelet and a balancer of load ask by the address, or by no name at all.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from socket import gethostname

from longshore.activities.node.fence import Fence
from longshore.models.addresses import LOCALHOST, host_and_port, host_of, is_ip
from longshore.models.errors import StackError

OK = "ok"
Parts = Mapping[str, str]
"""Each part of a process, with `ok` or what is wrong."""
_REQUEST_WITHIN = 5.0
_NO_REQUEST = (
    TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError,
)  # fmt: skip
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@asynccontextmanager
async def serving_health(address: str | None, ask: Callable[[], Parts]) -> AsyncIterator[None]:
    """Answer /healthz at `address` until the end of the block; nothing without one.

    Raises StackError when nothing can listen there.
    """
    if address is None:
        yield
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(*_NO_REQUEST):
            async with asyncio.timeout(_REQUEST_WITHIN):
                request = await reader.readuntil(b"\r\n\r\n")
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
    asked, *headers = request.split(b"\r\n")
    if not all(_is_of_this_machine(named) for named in _hosts(headers)):
        return _http(400, {"error": "ask by the address of this machine, its name or localhost"})
    method, _, rest = asked.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if path != b"/healthz":
        return _http(404, {"error": "only /healthz is here"})
    if method not in (b"GET", b"HEAD"):
        return _http(405, {"error": "GET, please"})
    parts = ask()
    ok = all(value == OK for value in parts.values())
    return _http(200 if ok else 503, {"ok": ok, "parts": dict(parts)}, body=method == b"GET")


def _hosts(headers: Sequence[bytes]) -> list[str]:
    parts = (header.partition(b":") for header in headers)
    return [value.decode().strip() for name, _, value in parts if name.lower() == b"host"]


def _is_of_this_machine(named: str) -> bool:
    host = host_of(named)
    return host is not None and (is_ip(host) or host in (LOCALHOST, gethostname().lower()))


def _http(status: int, content: Mapping[str, object], *, body: bool = True) -> bytes:
    data = json.dumps(content).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (data if body else b"")
