"""Prices over time, of energy or of GPUs: where a pool has them from, and one series of them."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from longshore.models.addresses import without_secrets
from longshore.models.base import Frozen, Instant, Wire, WithoutNul
from longshore.models.bounds import is_taken
from longshore.models.gpu_hour_price import GPUHourPrice
from longshore.models.money import MicroDollars
from longshore.models.units import Duration
from longshore.models.visible import shown

MARKET = "market"
FILE = "file "
"""What the source of a series from a file begins with; its name follows."""
MOST_POINTS = 20_000
_LEAST_EVERY = timedelta(seconds=10)


class Unknown(StrEnum):
    """What becomes of jobs with a threshold while nobody knows the price."""

    START = "start"
    """They start as all others: nobody waits for a price that may never come."""
    WAIT = "wait"
    """They wait until it is known."""


def why_no_source(source: str) -> str:
    """Return why a text is no source of prices; empty where it is one."""
    if source == MARKET or (source.startswith(FILE) and source != FILE):
        return ""
    try:
        parts = urlsplit(source)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in ("http", "https") or not host:
        return f"must be a file, a URL such as https://example.com/prices.csv, or {MARKET}"
    if "@" in parts.netloc:
        return "may hold no user or password: everybody who sees the pool would see them"
    if without_secrets(source) != source:
        return "may hold no token or key: everybody who sees the pool would see it"
    return ""


def _is_source(source: str, info: ValidationInfo) -> str:
    if not is_taken(info) and (why := why_no_source(source)):
        raise ValueError(f"{why}, got {shown(without_secrets(source))}")
    return source


class PoolPrice(Frozen):
    """Where the price of a GPU-hour in a pool comes from (docs/price-series.md)."""

    source: Annotated[
        WithoutNul, Field(min_length=1, max_length=2_000), AfterValidator(_is_source)
    ]
    """`market`: the lowest ask for what the pool may buy; a URL; or `file NAME`, which was read
    once."""
    every: Duration = timedelta(minutes=5)
    """How often a URL, or the markets, are asked."""
    longest_step: Duration = timedelta(hours=1)
    """How far apart two times of a series may be; more is a hole. What a market asked holds for
    as long."""
    unknown: Unknown = Unknown.START
    """Whether jobs with a threshold start or wait while nobody knows the price."""
    reference: GPUHourPrice | None = Field(default=None, exclude_if=lambda price: price is None)
    """What counts as dear: the part of it that the price is now is the term `energy` of a
    score."""

    @model_validator(mode="after")
    def _spans_make_sense(self) -> Self:
        if self.every < _LEAST_EVERY:
            raise ValueError("every: must be at least 10s")
        if not timedelta(0) < self.longest_step <= timedelta(days=366):
            raise ValueError("longest_step: must be above 0s, and 366d at most")
        return self

    @property
    def is_read_again(self) -> bool:
        """Whether a control worker reads it now and then."""
        return not self.source.startswith(FILE)


class PricePoint(NamedTuple):
    """From when on a GPU-hour costs so much."""

    at: datetime
    price: int
    """Micro-dollars."""


class PriceSeries(Frozen):
    """Prices, each from its time on until the next; and until when the last one holds."""

    points: Annotated[tuple[tuple[Instant, MicroDollars], ...], Field(max_length=MOST_POINTS)]
    """In the order of their times, each with micro-dollars for a GPU-hour."""
    ends_at: Instant
    whence: str = ""
    """What people call the source: ``file prices.csv``, ``market sfcompute``."""

    @classmethod
    def of(cls, points: tuple[PricePoint, ...], longest_step: timedelta, whence: str) -> Self:
        """Return the series of these points: the last one holds for as long as the one before it
        did; a single one for the longest step."""
        last = points[-1].at
        step = last - points[-2].at if len(points) > 1 else longest_step
        return cls(points=points, ends_at=last + step, whence=whence)


class PriceNow(NamedTuple):
    """The price at one moment, or why nobody knows it."""

    price: int | None = None
    why: str = ""
    """Why there is none."""
    at: datetime | None = None
    """From when the price is."""
    until: datetime | None = None
    """When the next price comes, or the series ends; of none, when there will be one."""
    whence: str = ""


class PriceView(Wire):
    """The price of a pool, as people see it."""

    source: str
    price: MicroDollars | None = None
    """For a GPU-hour now; null where nobody knows."""
    at: Instant | None = None
    """From when that is."""
    says: str
    """The price with its source and time, or why nobody knows it."""
    next: tuple[tuple[Instant, MicroDollars], ...] = ()
    """The next few changes that are known."""
    ends_at: Instant | None = None
    """When the series ends, as far as it is known."""
    read_at: Instant | None = None
    """When the source was read last."""
    trouble: str = ""
    """Why it could not be read since then."""
    waiting: int = 0
    """Jobs that wait for a price."""
