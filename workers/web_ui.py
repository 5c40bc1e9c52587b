"""The door of the local Temporal Web UI: `python -m longshore.workers.web_ui PORT TARGET`.

The UI answers whoever reaches it, by whatever name: a web page whose name leads to 127.0.0.1 (DNS
rebinding) could read all and start jobs. So it listens where no page finds it, on another address
of the loopback network, and this passes on only what a browser asks of this machine by its name,
and of what another site sends only that a person follows a link.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from longshore.console.connections import BoundedProtocol
from longshore.models.addresses import LOCALHOST, LOOPBACK, LOOPBACK_6, host_of

NAMES = (LOOPBACK, LOOPBACK_6, LOCALHOST)
"""By which a person asks for it."""
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_OF_ONE_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host",
     "proxy-authenticate", "proxy-authorization"}
)  # fmt: skip
"""Headers that a proxy does not pass on (RFC 9110, 7.6.1)."""
_LONGEST = 4 * 2**20
"""Bytes of a body: a message to the Temporal server has no more."""


def door(target: str) -> Starlette:
    """Return the app that passes requests for this machine on to the UI at `target`."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=target, trust_env=False, timeout=60) as client:
            app.state.client = client
            yield

    return Starlette(
        routes=[Route("/{path:path}", _pass_on, methods=_METHODS)],
        lifespan=lifespan,
    )


async def _pass_on(request: Request) -> Response:
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or host_of(hosts[0]) not in NAMES:
        return PlainTextResponse("ask for 127.0.0.1, [::1] or localhost\n", 400)
    if _from_another_site(request):
        return PlainTextResponse("this came from another site\n", 403)
    client: httpx.AsyncClient = request.app.state.client
    try:
        # Whole before it is passed on: what never comes must hold no connection behind here.
        content = await _whole(request)
    except ClientDisconnect:
        return PlainTextResponse("the rest of the request did not come\n", 400)
    if content is None:
        return PlainTextResponse(f"this is longer than {_LONGEST} bytes\n", 413)
    headers = _passed(request.headers.raw)
    if "accept-encoding" not in request.headers:  # the client here would name its own
        headers.append((b"accept-encoding", b"identity"))
    try:
        url = httpx.URL(path=request.url.path, query=request.url.query.encode())
        asked = client.build_request(request.method, url, headers=headers, content=content)
    except httpx.InvalidURL as error:
        return PlainTextResponse(f"this is no path of the Temporal Web UI: {error}\n", 400)
    try:
        answer = await client.send(asked, stream=True)
    except httpx.HTTPError as error:
        return PlainTextResponse(f"the Temporal Web UI does not answer: {error}\n", 502)
    passed = StreamingResponse(
        answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose)
    )
    passed.raw_headers = _passed(answer.headers.raw)
    return passed


async def _whole(request: Request) -> bytes | None:
    """Return the body of a request; None where it is longer than the server takes."""
    pieces, length = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        length += len(piece)
        if length > _LONGEST:
            return None
    return b"".join(pieces)


def _from_another_site(request: Request) -> bool:
    """Return whether a browser says that a page of another site sent this, and no link of it.

    Another port of this machine is another site too.
    """
    said = request.headers
    if "origin" in said:
        return said["origin"].partition("://")[2] != said["host"]
    navigates = said.get("sec-fetch-mode") == "navigate"
    whole_page = said.get("sec-fetch-dest", "document") == "document"  # and no frame of another
    follows_a_link = request.method == "GET" and navigates and whole_page
    return said.get("sec-fetch-site", "none") not in ("none", "same-origin") and not follows_a_link


def _passed(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.decode().lower() not in _OF_ONE_HOP]


def main() -> None:
    port, target = sys.argv[1:]
    uvicorn.run(
        door(target), host=LOOPBACK, port=int(port), http=BoundedProtocol, log_level="warning"
    )


if __name__ == "__main__":
    main()
