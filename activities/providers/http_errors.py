"""Turns an error answer of a market into the error that Longshore raises for it.

The shapes that are known: San Francisco Compute's ``{"error": {type, message, details}}``, the
same without the wrapper, and its older ``{"object": "error", code, message}``; Prime Intellect's
``{"errors": [{param, details}]}``, and ``{"detail": text}`` or ``{"detail": [{loc, msg}]}``.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from longshore.models.errors import (
    CredentialsError,
    FundsError,
    GoneError,
    InvalidOrderError,
    MarketError,
    OfferRefusedError,
    OrderConflictError,
)

AWAY = frozenset({408, 425, 429})
"""Statuses below 500 that say: later."""
_LONGEST = 600
_EPOCH = 1_000_000_000
"""A reset above this is a time and no number of seconds."""

_BY_CODE: dict[str, type[MarketError]] = {
    "account.frozen": FundsError,
    "payment_required": FundsError,
    "order.not_found": GoneError,
    "order.already_cancelled": OrderConflictError,
    "idempotency_error": OrderConflictError,
    "conflict": OrderConflictError,
    "gone": GoneError,
}
_BY_STATUS: dict[int, type[MarketError]] = {
    401: CredentialsError,
    402: FundsError,
    403: CredentialsError,
    404: GoneError,
    409: OrderConflictError,
    410: GoneError,
    426: CredentialsError,
}
_BY_WORDS: dict[str, type[MarketError]] = {
    "no longer available": GoneError,
    "insufficient balance": FundsError,
    "insufficient credit": FundsError,
    "insufficient funds": FundsError,
}
"""By a part of what a market says, in small letters, where its status tells too little."""


_PASSES = (
    "running instances", "quota", "balance", "price", "temporar", "stock", "capacity", "sold out",
    "offers nothing", "past", "try again", "rate limit", "right now", "reached the limit",
)  # fmt: skip
"""Parts of refusals that are not of what is sold: what is refused for these may be taken later."""
_MAY_PASS = ("limit", "available")
"""So are these, unless the refusal names what was asked for and stays the same."""
_STAYS = ("image", "template", "environment variable", "reserved instance", "disk size")

_ROW = "instance_sku"
"""The field of an order that names the row of a book."""


def is_away(status: int) -> bool:
    """Return whether a status says that the market is away for now."""
    return status in AWAY or status >= 500


def error_of(provider: str, status: int, body: Any, asked: str, token_name: str) -> MarketError:
    """Return the error for a final status of 400 and above. `body` is JSON, or text."""
    code = code_of(body)
    said = said_in(body) or f"status {status}"
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or _by_words(said)
    if kind is CredentialsError:
        said = f"{said} {_what_to_do(status, token_name)}"
    elif kind is FundsError:
        said = f"{said} (the account there has too little money, or is frozen)"
    error = kind(provider, f"{asked} was refused: {said}", status=status)
    error.fields = tuple(filter(None, map(_field, _complaints(next(_error_objects(body), {})))))
    return error


def refused_for_good(error: InvalidOrderError) -> OfferRefusedError | None:
    """Return the refusal of an order as one of the offer, or of the row of a book; None where it
    is of the account, the price, this moment, or of fields of the request that name neither."""
    said = str(error)
    of_request = error.status == 422 and error.fields and _ROW not in error.fields
    if of_request or _passes(said.casefold()):
        return None
    refused = OfferRefusedError(error.provider, said.removeprefix(f"{error.provider}: "),
                                status=error.status)  # fmt: skip
    refused.creates = error.creates
    return refused


def _passes(said: str) -> bool:
    """Return whether what is refused so may be taken later."""
    said = said.replace("try again with", "")  # it says what to change
    if any(words in said for words in _PASSES):
        return True
    stays = any(words in said for words in _STAYS)
    return not stays and any(words in said for words in _MAY_PASS)


def code_of(body: Any) -> str:
    """Return the market's own word for an error: its type or code; empty without one."""
    for found in _error_objects(body):
        for name in ("type", "code"):
            if isinstance(found.get(name), str):
                return found[name]
    return ""


def said_in(body: Any) -> str:
    """Return what an error answer says, with a line for each field that it complains of."""
    if isinstance(body, str):
        return _short(body)
    found = next(_error_objects(body), {})
    texts = (found.get(name) for name in ("message", "detail", "error"))
    message = next((text for text in texts if isinstance(text, str)), "")
    lines = [line for item in _complaints(found) if (line := _line(item))]
    return _short("\n".join([message, *lines] if message else lines))


def wait_asked_for(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds to wait that an answer asks for: Retry-After, else RateLimit-Reset."""
    if (after := headers.get("retry-after")) is not None:
        return _seconds(after, now) if _is_number(after) else _until(after, now)
    if (reset := headers.get("ratelimit-reset")) is not None and _is_number(reset):
        return _seconds(reset, now)
    return None


def date_of(headers: Mapping[str, str]) -> datetime | None:
    """Return when an answer was made, by the market's clock."""
    try:
        return parsedate_to_datetime(headers["date"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError):
        return None


def _by_words(said: str) -> type[MarketError]:
    found = (kind for words, kind in _BY_WORDS.items() if words in said.casefold())
    return next(found, InvalidOrderError)


def _error_objects(body: Any) -> Iterator[dict[str, Any]]:
    if isinstance(body, dict):
        if isinstance(body.get("error"), dict):
            yield body["error"]
        yield body


def _complaints(found: dict[str, Any]) -> list[Any]:
    for name in ("details", "errors", "detail"):
        if isinstance(found.get(name), list):
            return found[name]
    return []


def _line(item: Any) -> str:
    """Return ``field: what`` of one complaint, in any of the shapes."""
    if not isinstance(item, dict):
        return str(item)
    where = _field(item)
    what = item.get("message") or item.get("details") or item.get("msg") or item.get("code") or ""
    return f"{where}: {what}" if where else str(what)


def _field(item: Any) -> str:
    """Return the field that a complaint is of; empty where it names none."""
    if not isinstance(item, dict):
        return ""
    return item.get("field") or item.get("param") or ".".join(map(str, item.get("loc") or ()))


def _what_to_do(status: int, token_name: str) -> str:
    if status == 401:
        return f"(set {token_name} to a token that it knows)"
    return f"(give the token of {token_name} the right to do this, at the market)"


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdigit()


def _seconds(text: str, now: datetime) -> float:
    number = float(text)
    return max(number - now.timestamp(), 0.0) if number > _EPOCH else number


def _until(text: str, now: datetime) -> float | None:
    try:
        return max((parsedate_to_datetime(text) - now).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return None
