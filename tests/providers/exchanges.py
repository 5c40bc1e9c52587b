"""Keeps what a client and a market say to each other, and holds it against what is published.

A `Recorder` stands on a socket between the two.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.providers.shapes import Shape, fields, null
from tests.support.scripted_http import Answer, Received, Reply, Reset, ScriptedHTTP

_HOPS = ("connection", "content-length", "content-type", "host", "transfer-encoding")
"""Headers that each end sets for itself."""


@dataclass(frozen=True)
class Endpoint:
    """One call as a vendor publishes it."""

    asked: str
    """Method and path; a part in braces is an id."""
    source: str
    """Where it is published."""
    answers: Mapping[int, Shape]
    """By status."""
    query: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    """Parameters by name, as `shapes.fields` has them; a shape `several` may be repeated."""
    body: Shape = null
    keyed: bool = False
    """It takes the header Idempotency-Key."""

    def fits(self, method: str, path: str) -> bool:
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(self.asked))
        return re.fullmatch(pattern, f"{method} {path}") is not None


@dataclass(frozen=True)
class Exchange:
    """One request and its answer."""

    method: str
    path: str
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    """Of the request, by lower-case name."""
    body: Any
    status: int
    answer: Any

    @property
    def asked(self) -> str:
        return f"{self.method} {self.path}"


def mistakes(exchange: Exchange, published: Sequence[Endpoint]) -> list[str]:
    """Return what of an exchange is not as published: a line for each."""
    endpoint = endpoint_of(exchange, published)
    if endpoint is None:
        return [f"{exchange.asked} is no call that is published"]
    found = list(_query_mistakes(exchange, endpoint))
    found += endpoint.body(exchange.body, "body")
    if not exchange.headers.get("authorization", "").startswith("Bearer "):
        found.append("header Authorization: is no Bearer token")
    if "idempotency-key" in exchange.headers and not endpoint.keyed:
        found.append("header Idempotency-Key: is no parameter of this call")
    shape = endpoint.answers.get(exchange.status)
    if shape is None:
        found.append(f"status {exchange.status} is none that it answers")
    else:
        found += shape(exchange.answer, f"answer {exchange.status}")
    return [f"{exchange.asked}: {line}" for line in found]


def endpoint_of(exchange: Exchange, published: Sequence[Endpoint]) -> Endpoint | None:
    """Return the call that an exchange is: of those that fit, the one without an id."""
    fitting = [each for each in published if each.fits(exchange.method, exchange.path)]
    return min(fitting, key=lambda each: each.asked.count("{"), default=None)


def _query_mistakes(exchange: Exchange, endpoint: Endpoint) -> list[str]:
    """Numbers and booleans are text in a query: a value is read as JSON where that fits."""
    known = {name.removesuffix("?"): shape for name, shape in endpoint.query.items()}
    readings: dict[str, Any] = {}
    for name, texts in exchange.query.items():
        shape = known.get(name, null)
        values: list[Any] = [[*texts], [_read(each) for each in texts]]
        if len(texts) == 1:
            values += [texts[0], _read(texts[0])]
        readings[name] = next((v for v in values if not list(shape(v, ""))), values[-1])
    return list(fields(endpoint.query)(readings, "query"))


def _read(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


class Recorder(ScriptedHTTP):
    """A market's door: passes each request on to the market at `far`, and keeps what was said."""

    def __init__(self, far: str) -> None:
        super().__init__()
        self.exchanges: list[Exchange] = []
        self._far = httpx.Client(base_url=far, trust_env=False, timeout=30)

    async def __aenter__(self) -> "Recorder":
        await super().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        self._far.close()

    def _answer(self, request: Received) -> Answer:
        kept = {name: value for name, value in request.headers.items() if name not in _HOPS}
        try:
            # The market answers in a thread of its own, so this one may wait for it.
            answer = self._far.request(
                request.method, request.path, params=request.query, headers=kept,
                content=request.content,
            )  # fmt: skip
        except httpx.TransportError:
            return Reset()
        self.exchanges.append(_exchange(request, answer))
        passed = {name: value for name, value in answer.headers.items() if name not in _HOPS}
        return Reply(answer.content, answer.status_code, passed, mark=False)


def _exchange(request: Received, answer: httpx.Response) -> Exchange:
    body = json.loads(request.content) if request.content else None
    said = _read(answer.text) if answer.content else None
    return Exchange(
        request.method, request.path, request.query, request.headers, body, answer.status_code,
        said,
    )  # fmt: skip
