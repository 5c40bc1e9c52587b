"""A price for one GPU-hour, as people write it: ``$2.10/gpu-hour``."""

import re
from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo

from longshore.models.moment import said_at
from longshore.models.money import MOST, micro_of
from longshore.models.text import format_dollars
from longshore.models.visible import shown

EXAMPLE = "$2.10/gpu-hour"
_LONGEST_TEXT = 100
_WRITTEN = re.compile(r"\$\s*([0-9][0-9,]*(?:\.[0-9]{1,6})?)(?:\s*/\s*gpu-?(?:hour|h))?", re.I)


def parse_gpu_hour_price(value: object) -> int:
    """Return micro-dollars. Raises ValueError with what would be right.

    A bare number is refused: dollars and micro-dollars look alike. So is what a shell has left of
    ``"$2.10"`` in double quotes.
    """
    text = value.strip() if isinstance(value, str) and len(value) <= _LONGEST_TEXT else ""
    found = _WRITTEN.fullmatch(text)
    if found is None:
        hint = " (in a shell put single quotes around it)" if isinstance(value, str) else ""
        raise ValueError(f"expected a price such as {EXAMPLE}, not {shown(value)}{hint}")
    micro = micro_of(found[1].replace(",", ""))
    if not 0 < micro <= MOST:
        raise ValueError(f"has to be above $0.00, such as {EXAMPLE}, not {shown(value)}")
    return micro


def _parse(value: object, info: ValidationInfo) -> object:
    if info.mode == "python" and isinstance(value, int) and not isinstance(value, bool):
        if not 0 < value <= MOST:
            raise ValueError(f"has to be above 0 micro-dollars, such as 2100000, not {value}")
        return value  # micro-dollars, from a program
    return parse_gpu_hour_price(value)


def format_gpu_hour_price(micro: int) -> str:
    """Return it as `parse_gpu_hour_price` reads it, exactly."""
    return f"{format_dollars(micro)}/gpu-hour"


def says_price_wait(below: int, now: str) -> str:
    """Return why a job waits for its price; `now` says what that is."""
    return f"waits for a price below {format_dollars(below)} a GPU-hour; now {now}"


def says_price(price: int, whence: str, at: datetime, now: datetime) -> str:
    """Return ``$2.60 (market sfcompute, 14:05 UTC)``: a price, and since when or of when it is."""
    return f"{format_dollars(price)} ({whence}, {said_at(at.replace(microsecond=0), now)})"


_Written = Annotated[
    str, Field(max_length=_LONGEST_TEXT, description=f"Dollars for a GPU-hour, such as {EXAMPLE}")
]

GPUHourPrice = Annotated[
    int,
    BeforeValidator(_parse, json_schema_input_type=_Written),
    PlainSerializer(format_gpu_hour_price, return_type=str, when_used="json"),
]
"""Micro-dollars for a GPU-hour, above 0; in files ``$2.10/gpu-hour``."""
