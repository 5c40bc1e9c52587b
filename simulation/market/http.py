"""What both APIs have in common: a call, its answer, tokens, and the faults of the wire."""

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from longshore.simulation.market.market import Market

Model = TypeVar("Model", bound=BaseModel)
Problem = tuple[str, str, str]
"""Field, code, sentence."""


class ApiError(Exception):
    """An answer that is an error; the API writes it in its own form."""

    def __init__(
        self, status: int, message: str, *, kind: str = "", problems: Sequence[Problem] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Answer:
    body: Any = None
    """JSON; nothing at all when None."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Call:
    """A request that was let in."""

    request: Request
    market: Market
    raw: bytes

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name)

    def queries(self, name: str) -> list[str]:
        """Return every value of a key, also where it is written with brackets."""
        params = self.request.query_params
        return [*params.getlist(name), *params.getlist(f"{name}[]")]

    def whole_number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a number of the query. Raises ApiError when it is none or out of bounds."""
        text = self.query(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise invalid([(name, "out_of_range", f"must be a number from {least} to {most}")])
        return int(text)

    def json(self) -> Any:
        try:
            return json.loads(self.raw)
        except ValueError:
            raise ApiError(400, "the body is not valid JSON") from None

    def body(self, model: type[Model]) -> Model:
        """Return the body as `model`. Raises ApiError with a problem per mistake."""
        try:
            return model.model_validate(self.json())
        except ValidationError as error:
            raise invalid(
                [(_place(e["loc"]), e["type"], e["msg"]) for e in error.errors()]
            ) from None


Handler = Callable[[Call], Answer]


def unlagged(call: Call, market: str, rows: Iterable[Any]) -> list[Any]:
    """Return things of a market, newest first; without the last minute's when its lists lag."""
    found = sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)
    if not call.market.world.faults.take("list_lag", market):
        return found
    return [row for row in found if row.created_at < call.market.world.clock.now - 60]


def invalid(problems: Sequence[Problem]) -> ApiError:
    return ApiError(422, "the request is invalid", problems=problems)


@dataclass(frozen=True)
class Api:
    """One provider's surface. `render` writes an error in its form."""

    provider: str
    market: Market
    token: str
    render: Callable[[ApiError], Any]
    early: Callable[[str], Answer | None] = lambda route: None
    """Faults of this API alone that answer before anything is done."""

    def route(self, method: str, path: str, handler: Handler) -> Route:
        name = f"{method} {path}"

        async def endpoint(request: Request) -> Response:
            raw = await request.body()
            return await self._answer(name, request, raw, handler)

        return Route(path, endpoint, methods=[method])

    async def _answer(
        self, route: str, request: Request, raw: bytes, handler: Handler
    ) -> Response:
        self.market.world.clock.catch_up()
        answer = self._refusal(route, request) or self.early(route)
        if answer is None:
            try:
                answer = handler(Call(request, self.market, raw))
            except ApiError as error:
                answer = self._error(error)
            self.market.carried_out(self.provider, route)
        return await self._sent(route, answer)

    def _refusal(self, route: str, request: Request) -> Answer | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        known = scheme.lower() == "bearer" and secrets.compare_digest(
            token.encode(), self.token.encode()
        )
        if not known or self._happens("unauthorized", route):
            return self._error(ApiError(401, "the token is missing or not known"))
        if self._happens("forbidden", route):
            return self._error(ApiError(403, "the token may not do this"))
        if self._happens("rate_limited", route):
            limited = self._error(ApiError(429, "too many requests"))
            return Answer(limited.body, 429, {"Retry-After": "1"})
        if self._happens("unavailable", route):
            return self._error(ApiError(503, "the service is not available"))
        if self._happens("server_error", route):
            return self._error(ApiError(500, "something went wrong"))
        return None

    async def _sent(self, route: str, answer: Answer) -> Response:
        if self._happens("slow", route):
            await asyncio.sleep(self.market.world.knobs.slow_seconds)
        headers = {
            "Date": formatdate(self.market.world.clock.now, usegmt=True),
            **answer.headers,
        }
        content = b"" if answer.body is None else json.dumps(answer.body).encode()
        kind = None if answer.body is None else "application/json"
        if content and self._happens("malformed_json", route):
            content = content[: len(content) // 2]
        if self._happens("dropped", route):
            return BrokenOff(content, answer.status, headers, kind)
        return Response(content, answer.status, headers, kind)

    def _happens(self, fault: str, route: str) -> bool:
        return self.market.world.faults.take(fault, self.provider, route)

    def _error(self, error: ApiError) -> Answer:
        return Answer(self.render(error), error.status)


class BrokenOff(Response):
    """A response whose connection ends before its body: the client learns nothing from it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (k, v) for k, v in self.raw_headers if k not in (b"content-length", b"content-type")
        ]
        headers.append((b"content-length", b"1000000"))
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        # The server closes a connection whose body stays shorter than it was announced.
        await send({"type": "http.response.body", "body": b"{", "more_body": False})


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)
