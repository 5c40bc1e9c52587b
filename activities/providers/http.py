"""The one way to speak HTTP with a market: token, timeouts, retries, errors.

A market's client says what it asks for; here is what all of them need. Nothing that leaves this
module, be it a result, an error or a line in a log, holds the token.
"""

import asyncio
import json
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from importlib import metadata
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, SecretStr, ValidationError

from longshore.activities.failpoints import wall_clock
from longshore.activities.providers.access import Access, check_allowed
from longshore.activities.providers.http_errors import (
    date_of,
    error_of,
    is_away,
    said_in,
    wait_asked_for,
)
from longshore.models.errors import (
    AnswerError,
    MarketAwayError,
    MarketError,
    OrderConflictError,
    RefusedError,
)
from longshore.models.problems import describe

SIMULATED_HEADER = "X-Longshore-Simulated"
"""A simulated market puts it on every answer, with the value `market`."""
MASK = "***"
_VERSION = metadata.version("longshore")
M = TypeVar("M", bound=BaseModel)
Params = Mapping[str, str | int | Sequence[str]]
"""Of a query; a sequence repeats its name."""


@dataclass(frozen=True)
class Patience:
    """How long one call may take, in seconds."""

    connect: float = 10.0
    each: float = 30.0
    """One try as a whole, a slow body included."""
    total: float = 60.0
    """All tries and the waits between them."""
    tries: int = 5
    first_wait: float = 0.5
    """The first wait is up to this, each further one up to twice the one before."""
    longest_wait: float = 10.0
    looks: float = 20.0
    """How long what may have been created is looked for, in a list that lags behind."""
    look_every: float = 1.0


@dataclass(frozen=True)
class Answer:
    """A market's answer to one request, and whether a simulated market gave it."""

    provider: str
    asked: str
    value: Any
    simulated: bool
    created: bool
    """Whether something was created by it."""
    hide: Callable[[str], str] = field(repr=False)

    def read(self, model: type[M]) -> M:
        """Return it as `model`.

        Raises AnswerError, which names the field that does not fit; for a request that created
        something an uncertain MarketAwayError, since that has to be looked for.
        """
        try:
            return model.model_validate(self.value)
        except ValidationError as error:
            mistake = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in mistake["loc"]) or "it"
        said = f"its answer to {self.asked} is not as documented: {where} {describe(mistake)}"
        if self.created:
            raise MarketAwayError(self.provider, self.hide(said), uncertain=True)
        raise AnswerError(self.provider, self.hide(said))


class MarketHTTP:
    """An HTTP client of one market. Close it after use (`aclose`)."""

    def __init__(
        self,
        provider: str,
        access: Access,
        *,
        token_name: str,
        patience: Patience | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], datetime] = wall_clock,
    ) -> None:
        """Raises RefusedError when nothing may be sent to that address."""
        check_allowed(access.url, access.mode)
        _check_token(access.token, token_name)
        self.provider = provider
        self.patience = patience = patience or Patience()
        self.sleep = sleep
        self._clock = clock
        self._ahead = timedelta(0)
        self._url = access.url.rstrip("/")
        self._mode = access.mode
        self._token_name = token_name
        self._token = access.token
        self._open: tuple[httpx.AsyncClient, _Mask] | None = None

    async def get(
        self, path: str, params: Params | None = None, *, tries: int | None = None
    ) -> Answer:
        """Return the answer of a GET. Raises the MarketError tree and MarketAwayError."""
        return await self._send(_Request("GET", path, params, repeatable=True, tries=tries))

    async def delete(self, path: str) -> Answer:
        """Return the answer of a DELETE; it is sent again like a GET."""
        return await self._send(_Request("DELETE", path, repeatable=True))

    async def ask(self, path: str, body: object = None) -> Answer:
        """Return the answer of a POST that may be repeated: it creates nothing."""
        return await self._send(_Request("POST", path, body=body, repeatable=True))

    async def create(
        self, path: str, body: object, *, key: str | None = None, secrets: Sequence[str] = ()
    ) -> Answer:
        """Return the answer of a POST that creates something.

        With `key` it is idempotent and sent again; without, it is sent once. A MarketAwayError is
        `uncertain` when a try may have arrived. `secrets` are never quoted from an answer.
        """
        return await self._send(
            _Request("POST", path, body=body, key=key, repeatable=key is not None, creates=True,
                     secrets=tuple(secrets))
        )  # fmt: skip

    def now(self) -> datetime:
        """Return the time as the market has it, by the Date of its last answer."""
        return self._clock() + self._ahead

    def hide(self, text: str, secrets: Sequence[str] = ()) -> str:
        """Return the text without the token and the `secrets`."""
        for secret in filter(None, (self._token.get_secret_value(), *secrets)):
            in_json = json.dumps(secret)[1:-1]
            text = text.replace(secret, MASK).replace(in_json, MASK)
        return text

    async def aclose(self) -> None:
        if self._open is not None:
            client, mask = self._open
            self._open = None
            for name in _CHATTY:
                logging.getLogger(name).removeFilter(mask)
            await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        """Return the client, opened with the first request: one without any costs nothing."""
        if self._open is None:
            client = httpx.AsyncClient(
                auth=_Bearer(self._token),
                timeout=httpx.Timeout(self.patience.each, connect=self.patience.connect),
                follow_redirects=False,  # the token is for this host
                trust_env=self._mode == "real",  # a proxy would not be this machine
                verify=_trusted(trust_env=self._mode == "real"),
                headers={"User-Agent": f"longshore/{_VERSION}", "Accept": "application/json"},
            )
            self._open = client, _install_mask(self.hide)
        return self._open[0]

    async def _send(self, request: "_Request") -> Answer:
        ends = time.monotonic() + self.patience.total
        tries = (request.tries or self.patience.tries) if request.repeatable else 1
        number, uncertain = 1, False
        while isinstance(outcome := await self._tried(request, ends, uncertain), _Away):
            uncertain = uncertain or (request.creates and outcome.arrived)
            wait = self._wait(number, outcome.retry_after)
            if number >= tries or time.monotonic() + wait >= ends:
                raise MarketAwayError(
                    self.provider,
                    outcome.text,
                    status=outcome.status,
                    retry_after=outcome.retry_after,
                    uncertain=uncertain,
                )
            await self.sleep(wait)
            number += 1
        return outcome

    async def _tried(self, request: "_Request", ends: float, uncertain: bool) -> "Answer | _Away":
        """Return what came of one try. A refusal says nothing of an earlier one that may have
        arrived, unless it is of the key itself."""
        try:
            return await self._try(request, ends - time.monotonic())
        except OrderConflictError:
            raise
        except MarketError as error:
            if not uncertain:
                raise
            said = f"an earlier try may have arrived; the last was refused: {error}"
            raise MarketAwayError(
                self.provider, said, status=error.status, uncertain=True
            ) from error

    async def _try(self, request: "_Request", time_left: float) -> "Answer | _Away":
        asked = request.asked
        headers = {"Idempotency-Key": request.key} if request.key else None
        try:
            async with asyncio.timeout(max(min(self.patience.each, time_left), 0.001)):
                response = await self._client().request(
                    request.method, self._url + request.path, params=request.params,
                    json=request.body, headers=headers,
                )  # fmt: skip
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            return _Away(f"{asked} did not reach it", arrived=False)
        except (httpx.TimeoutException, TimeoutError):
            return _Away(f"{asked} was not answered in time", arrived=True)
        except httpx.HTTPError as error:
            # Only its kind: the text may quote what was sent.
            return _Away(f"the answer to {asked} broke off ({type(error).__name__})", arrived=True)
        return self._judged(request, response)

    def _judged(self, request: "_Request", response: httpx.Response) -> "Answer | _Away":
        simulated = response.headers.get(SIMULATED_HEADER) == "market"
        if self._mode == "simulated" and not simulated:
            raise AnswerError(
                self.provider,
                f"what answers at {self._url} is no simulated market: the header "
                f"{SIMULATED_HEADER} is missing. Nothing else may be talked to.",
            )
        status, asked = response.status_code, request.asked
        date = date_of(response.headers)
        self._ahead = date - self._clock() if date else timedelta(0)
        body = _json_of(response.text)
        if status >= 400:  # it is quoted: what is secret goes before anything is cut short
            body = _each_text(body, lambda text: self.hide(text, request.secrets))
        if is_away(status):
            said = f": {words}" if (words := said_in(body)) else ""
            return _Away(
                f"{asked} got status {status}{said}", status=status, arrived=status != 429,
                retry_after=wait_asked_for(response.headers, self.now()),
            )  # fmt: skip
        if status >= 400:
            refused = error_of(self.provider, status, body, asked, self._token_name)
            refused.creates = request.creates
            raise refused
        if status >= 300:
            raise AnswerError(self.provider, f"{asked} was redirected, which is not followed")
        if isinstance(body, str) and request.creates:
            return _Away(f"the answer to {asked} is no JSON", status=status, arrived=True)
        if isinstance(body, str):
            raise AnswerError(self.provider, f"its answer to {asked} is no JSON")
        return Answer(self.provider, asked, body, simulated, request.creates, self.hide)

    def _wait(self, number: int, asked_for: float | None) -> float:
        """Return the seconds before the next try: full jitter, after what was asked for."""
        most = min(self.patience.first_wait * 2 ** (number - 1), self.patience.longest_wait)
        jitter = random.uniform(0, most)  # not for secrets
        return jitter if asked_for is None else asked_for + min(jitter, self.patience.first_wait)


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    params: Params | None = None
    body: object = field(default=None, repr=False)
    key: str | None = None
    repeatable: bool = False
    creates: bool = False
    tries: int | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def asked(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class _Away:
    """A try that got no answer, or one that says: later."""

    text: str
    arrived: bool
    """Whether the market may have acted on it."""
    status: int | None = None
    retry_after: float | None = None


class _Bearer(httpx.Auth):
    """Puts the token on a request as it leaves, so that nothing else holds it."""

    def __init__(self, token: SecretStr) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request):
        request.headers["Authorization"] = f"Bearer {self._token.get_secret_value()}"
        yield request


_CHATTY = ("httpx", "httpcore.connection", "httpcore.http11")


class _Mask(logging.Filter):
    """Takes the token out of what the HTTP library logs: answers may repeat it."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        super().__init__()
        self._hide = hide

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._hide(record.getMessage()), None
        return True


def _install_mask(hide: Callable[[str], str]) -> _Mask:
    mask = _Mask(hide)
    for name in _CHATTY:
        logging.getLogger(name).addFilter(mask)
    return mask


@cache
def _trusted(*, trust_env: bool) -> ssl.SSLContext:
    """Return whom a client trusts. Read once: each read takes 30 ms of a processor."""
    return httpx.create_ssl_context(trust_env=trust_env)


def _check_token(token: SecretStr, token_name: str) -> None:
    text = token.get_secret_value()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise RefusedError(f"{token_name} is no token: it must be one word of plain letters")


def _json_of(text: str) -> Any:
    """Return the JSON of an answer, None without a body, its text when it is no JSON.

    Fractions are decimals: prices are among them.
    """
    if not text.strip():
        return None
    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=_no_number)
    except ValueError:
        return text
    return value if not isinstance(value, str) else {"detail": value}


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name): _each_text(item, change) for name, item in value.items()}
    return value


def in_path(part: str) -> str:
    """Return an id as one part of a path, whatever it holds."""
    return quote(part, safe=":")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")
