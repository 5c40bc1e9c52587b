"""A real HTTP proxy between Longshore and the simulated market: a network and a vendor that fail.

What becomes of a request follows from the seed, its route and its number there, so that requests
side by side do not change each other's fate. Every kind is counted.
"""

import http.client
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from longshore.simulation.market import prime_api, sfcompute_json
from longshore.simulation.market.http import ApiError
from longshore.simulation.market.server import MARK
from tests.support.market import RunningMarket

REFUSED, DELAYED, LOST, CUT, DEARER, SWAPPED = KINDS = (
    "refused", "delayed", "lost", "cut", "dearer", "swapped",
)  # fmt: skip
CHANCES: Mapping[str, float] = {
    REFUSED: 0.06, DELAYED: 0.08, LOST: 0.05, CUT: 0.04, DEARER: 0.12, SWAPPED: 0.4,
}  # fmt: skip
"""Of each request, where the kind can happen to it."""
STATUSES = (400, 403, 404, 422, 429, 503)
"""Of refusals, none of which the market hears of; 404 also for what is there, and for a key that
the market knows."""
FACTORS = (1.1, 1.5, 3.0)
LONGEST_DELAY = 2.0
"""Seconds."""
BOOKS: tuple[tuple[tuple[str, int], ...], ...] = (
    (("2.10", 8),),
    (("2.10", 1), ("2.60", 8)),
    (("2.40", 2),),
    (("3.00", 4),),
    (),
)
"""What is left when somebody else was faster: dollars per GPU-hour and nodes of each ask."""
_ID = re.compile(r"\b[a-z]+_[0-9a-f]{6,}")
_PRICES = ("onDemand", "communityPrice", "priceHr")


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    content: bytes


class FaultyProxy:
    """Passes requests on to a market, in `url` in place of the market's own.

    It begins honest; `honest` may be changed at any moment.
    """

    def __init__(self, market: RunningMarket, seed: int) -> None:
        self.market = market
        self.honest = True
        self.heard = 0
        """Requests so far."""
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._routes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.token = market.token

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Reply | None:
        """Return what the client gets; None where the connection ends without an answer."""
        route = f"{method} {_ID.sub('ID', urlsplit(path).path)}"
        chance = self._chance(route)
        if self._happens(chance, REFUSED):
            self._count(REFUSED)
            return _refusal(chance.choice(STATUSES), path)
        if self._happens(chance, DELAYED):
            self._count(DELAYED)
            time.sleep(chance.uniform(0, LONGEST_DELAY))
        if route.endswith("/orders") and method == "POST" and self._happens(chance, SWAPPED):
            self._count(SWAPPED)
            self.sell(*chance.choice(BOOKS))
        reply = self._passed_on(method, path, headers, body)
        if self._happens(chance, DEARER):
            reply = self._dearer(reply, chance.choice(FACTORS))
        if self._happens(chance, LOST):
            self._count(LOST)
            return None
        if reply.content and self._happens(chance, CUT):
            self._count(CUT)
            return Reply(reply.status, reply.headers, reply.content[: len(reply.content) // 2])
        return reply

    def sell(self, *asks: tuple[str, int]) -> None:
        """Have strangers sell these, dollars per GPU-hour and nodes, and nothing else."""
        self.market.book(
            *({"side": "sell", "dollars_per_gpu_hour": dollars, "nodes": nodes}
              for dollars, nodes in asks),
            {"side": "buy", "dollars_per_gpu_hour": "1.50", "nodes": 4},
        )  # fmt: skip

    def _chance(self, route: str) -> random.Random:
        with self._lock:
            self.heard += 1
            self._routes[route] += 1
            return random.Random(f"{self._seed} {route} {self._routes[route]}")

    def _happens(self, chance: random.Random, kind: str) -> bool:
        # Drawn first: what is drawn after it does not depend on whether the proxy was honest.
        return chance.random() < CHANCES[kind] and not self.honest

    def _count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1

    def _passed_on(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        kept = {k: v for k, v in headers.items()
                if k.lower() not in ("host", "connection", "accept-encoding")}  # fmt: skip
        market = http.client.HTTPConnection(urlsplit(self.market.url).netloc, timeout=60)
        try:
            market.request(method, path, body or None, kept)
            response = market.getresponse()
            told = dict(response.getheaders())
            try:
                return Reply(response.status, told, response.read())
            except http.client.IncompleteRead as error:  # a fault of the market's own
                return Reply(response.status, told, error.partial)
        finally:
            market.close()

    def _dearer(self, reply: Reply, factor: float) -> Reply:
        """Raise every price that a list of offers or a pod shows; a bill stays what it is."""
        try:
            shown = json.loads(reply.content)
        except ValueError:
            return reply
        if not _raise_prices(shown, factor):
            return reply
        self._count(DEARER)
        return Reply(reply.status, reply.headers, json.dumps(shown).encode())


@contextmanager
def proxy_to(market: RunningMarket, seed: int) -> Iterator[FaultyProxy]:
    """Yield an open proxy, still honest."""
    proxy = FaultyProxy(market, seed)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


def _refusal(status: int, path: str) -> Reply:
    """Return a refusal in the shape of the market that `path` belongs to."""
    error = prime_api.error if path.startswith("/api/v1") else sfcompute_json.error
    problems = [("request", "refused", "refused by the proxy")] if status == 422 else []
    body = error(ApiError(status, "refused by the proxy", problems=problems))
    headers = {MARK: "market", "Content-Type": "application/json"}
    if status == 429:
        headers["Retry-After"] = "1"
    return Reply(status, headers, json.dumps(body).encode())


def _raise_prices(shown: Any, factor: float) -> bool:
    if isinstance(shown, list):
        return sum(_raise_prices(each, factor) for each in shown) > 0
    if not isinstance(shown, dict):
        return False
    raised = sum(_raise_prices(each, factor) for each in shown.values()) > 0
    for name in _PRICES:
        if shown.get(name) and "totalBilledPrice" not in shown:
            shown[name] = round(shown[name] * factor, 2)
            raised = True
    return raised


def _handler_of(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            reply = proxy.answer(self.command, self.path, dict(self.headers), body)
            if reply is None:
                self.close_connection = True
                return
            self.send_response_only(reply.status)
            for name, value in reply.headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        do_GET = do_POST = do_DELETE = do_PATCH = _serve

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def handle(self) -> None:
            # A client that was killed has gone in the middle of its request.
            try:
                super().handle()
            except OSError:
                self.close_connection = True

    return Handler
