"""What went wrong, as JSON: ``{"error": {"type", "message", "field"}}``, with a sentence."""

import logging
import math
from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from longshore.models.base import Frozen
from longshore.models.errors import (
    GoneError,
    LongshoreError,
    MarketAwayError,
    MarketError,
    NewerTablesError,
    NotFoundError,
    NotSubmittedError,
    RefusedError,
    SpecError,
    UnavailableError,
)
from longshore.models.problems import describe

RETRY_AFTER = 5.0
"""Seconds after which to ask again where nobody says better."""
_log = logging.getLogger(__name__)

_STATUSES: tuple[tuple[type[LongshoreError], int, str], ...] = (
    (SpecError, 422, "invalid"),
    (NotFoundError, 404, "not_found"),
    (NotSubmittedError, 404, "not_submitted"),
    (GoneError, 404, "not_found"),
    (MarketAwayError, 503, "market_away"),
    (UnavailableError, 503, "unavailable"),
    (NewerTablesError, 503, "newer_database"),
    (MarketError, 502, "market_refused"),
    (RefusedError, 409, "refused"),
)
_WORDS = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}


class ProblemDetail(Frozen):
    """What went wrong."""

    type: str = Field(examples=["invalid"])
    """A word for programs."""
    message: str = Field(examples=["node_count: must be at least 1, got 0"])
    """A sentence for people."""
    field: str | None = Field(default=None, examples=["node_count"])
    """The parameter that it is about, if it is one."""


class Problem(Frozen):
    """The body of every answer that is not a success."""

    error: ProblemDetail


class ApiError(LongshoreError):
    """A problem that a route found by itself."""

    def __init__(
        self,
        status: int,
        type_: str,
        message: str,
        *,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.status, self.type, self.field, self.retry_after = status, type_, field, retry_after
        super().__init__(message)


def problem(
    status: int,
    type_: str,
    message: str,
    headers: Mapping[str, str] | None = None,
    *,
    field: str | None = None,
) -> Response:
    """Return an answer with a problem."""
    body = Problem(error=ProblemDetail(type=type_, message=message, field=field))
    return JSONResponse(
        body.model_dump(exclude_none=True), status_code=status, headers=dict(headers or {})
    )


def install(app: FastAPI) -> None:
    """Have `app` say all that goes wrong this way."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(LongshoreError, _ours)
    app.add_exception_handler(Exception, _unexpected)


def retry_after(seconds: float | None) -> dict[str, str]:
    """Return the header that says when to ask again."""
    return {"Retry-After": str(max(1, math.ceil(seconds or RETRY_AFTER)))}


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", first["msg"])
        return problem(400, "bad_request", f"The body cannot be read as JSON: {why}")
    field = str(first["loc"][-1]) if len(first["loc"]) > 1 else None
    said = describe(first)
    message = f"{field}: {said}" if field else said
    return problem(422, "invalid", message, field=field)


def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    word = _WORDS.get(error.status_code, "error")
    message = "There is nothing here." if error.status_code == 404 else str(error.detail)
    return problem(error.status_code, word, message, error.headers)


def _ours(_request: Request, error: Exception) -> Response:
    assert isinstance(error, LongshoreError)
    if isinstance(error, ApiError):
        away = error.status == 503
        headers = retry_after(error.retry_after) if away else None
        return problem(error.status, error.type, str(error), headers, field=error.field)
    for kind, status, word in _STATUSES:
        if isinstance(error, kind):
            wait = error.retry_after if isinstance(error, MarketAwayError) else None
            headers = retry_after(wait) if status == 503 else None
            return problem(status, word, str(error), headers)
    return problem(500, "error", str(error))


def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("GET %s failed", request.url.path, exc_info=error)
    return problem(
        500, "fault", "This is a fault in Longshore; the console's log says where it happened."
    )
