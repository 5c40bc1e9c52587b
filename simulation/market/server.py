"""The simulated market as an HTTP server on this machine alone."""

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longshore.console.connections import BoundedProtocol
from longshore.models.addresses import LOOPBACK
from longshore.models.errors import StackError
from longshore.simulation.market import control_api, prime_api, sfcompute_api
from longshore.simulation.market.market import Market

MARK = "X-Longshore-Simulated"
"""The header of every response."""
_log = logging.getLogger(__name__)
_TICK = 0.1
"""Real seconds between two looks at the clock, so that things happen while nobody asks."""


class MarketServer:
    """Serves one market; its address is known, and taken, from the start."""

    def __init__(self, market: Market, port: int = 0, token: str | None = None) -> None:
        """Raises StackError when the port is taken."""
        self.market = market
        self.token = token or f"simulated-{secrets.token_urlsafe(24)}"
        self._socket = _listen(port)
        self.url = f"http://{LOOPBACK}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            application(market, self.token),
            http=BoundedProtocol,
            log_level=logging.CRITICAL,
            date_header=False,  # every response has the market's own
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM, then switch all machines off."""
        self._server.run(sockets=[self._socket])

    def end(self) -> None:
        """Have `run` end; one that has not begun ends at once."""
        self._server.should_exit = True

    def start(self) -> None:
        """Serve in a thread, for tests."""
        self._thread = threading.Thread(target=self.run, name="simulated market", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End what `start` began, and wait until it has ended."""
        self.end()
        if self._thread:
            self._thread.join(20)
        self._socket.close()


def application(market: Market, token: str) -> Starlette:
    """Return the ASGI application of both APIs and the controls."""
    return Starlette(
        routes=[
            *sfcompute_api.routes(market, token),
            prime_api.routes(market, token),
            control_api.routes(market, token),
        ],
        middleware=[Middleware(Marked)],
        lifespan=lambda app: _ticking(market),
        exception_handlers={404: _no_such_path, 405: _no_such_path, 500: _fault_of_ours},
    )


class Marked:
    """Puts on every response that it is simulated."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[MARK] = "market"
            await send(message)

        await self._app(scope, receive, marked)


@contextlib.asynccontextmanager
async def _ticking(market: Market) -> AsyncIterator[None]:
    async def tick() -> None:
        while True:
            await asyncio.sleep(_TICK)
            try:
                market.world.clock.catch_up()
            except Exception:
                _log.exception("the simulated market failed; it goes on without this event")

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        market.end_machines()


async def _no_such_path(request: Request, error: Exception) -> JSONResponse:
    text = f"the simulated market has no {request.method} {request.url.path}"
    body = {"error": {"type": "not_found", "message": text}, "detail": text}
    return JSONResponse(body, getattr(error, "status_code", 404), {MARK: "market"})


async def _fault_of_ours(request: Request, error: Exception) -> JSONResponse:
    text = f"the simulated market failed at {request.method} {request.url.path}: {error!r}"
    body = {"error": {"type": "api_error", "message": text}, "detail": text}
    return JSONResponse(body, 500, {MARK: "market"})


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
    except OSError as error:
        listening.close()
        raise StackError(
            f"port {port} of {LOOPBACK} cannot be used for the simulated market: "
            f"{error.strerror}. Choose another with --port."
        ) from None
    listening.listen(128)  # who connects before the server runs waits, and is not refused
    return listening
