"""Money: integer micro-dollars inside, dollars where people and markets read them.

A price inside Longshore is micro-dollars per GPU-hour, a cost micro-dollars. Markets speak other
units; their clients convert at the edge with these functions, with decimals and never with floats.
"""

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from longshore.models.visible import shown

MICRO = 1_000_000
"""Micro-dollars in a dollar."""
CENT = 10_000
"""And in a cent."""

MOST = 10**15
"""Micro-dollars that an amount is at most: a thousand million dollars."""
_LONGEST_TEXT = 100
"""Characters of an amount as it is written."""


def _not_too_much(micro: int) -> int:
    if micro > MOST:
        raise ValueError(f"an amount is ${MOST // MICRO:,}.00 at most")
    return micro


MicroDollars = Annotated[
    int, Field(ge=0, json_schema_extra={"maximum": MOST}), AfterValidator(_not_too_much)
]
"""An amount in micro-dollars: at most a thousand million dollars."""


def _micro_of_text(value: object) -> object:
    if isinstance(value, str) and value.startswith("$") and len(value) <= _LONGEST_TEXT:
        micro = micro_of_text(value)
        if micro < 0:  # before it is told in micro-dollars
            raise ValueError(f"must be at least $0, got {shown(value)}")
        return micro
    return value


_Dollars = Annotated[str, Field(max_length=_LONGEST_TEXT)]
Money = Annotated[
    MicroDollars, BeforeValidator(_micro_of_text, json_schema_input_type=MicroDollars | _Dollars)
]
"""The same, and in a document also dollars as text: ``$2.10``."""


def _none_of_word(value: object) -> object:
    return None if value == "none" else value


Cap = Annotated[
    Money | None,
    BeforeValidator(_none_of_word, json_schema_input_type=MicroDollars | _Dollars | None),
]
"""The most that something may cost: an amount, or ``none`` for no limit."""

_ROUNDING = {"nearest": ROUND_HALF_EVEN, "down": ROUND_FLOOR, "up": ROUND_CEILING}


def exact(value: object) -> object:
    """Return a number as its text, for what reads decimals: it never becomes a float."""
    return str(value) if isinstance(value, int | float) else value


def micro_of(dollars: Decimal | str | int, *, rounding: str = "nearest") -> int:
    """Return micro-dollars of an amount in dollars, such as ``"16.80"``.

    `rounding` is nearest (the default), down or up. Raises ValueError for anything else.
    """
    try:
        if isinstance(dollars, str) and (not dollars.isascii() or "_" in dollars):
            raise InvalidOperation  # Decimal reads the digits of every script
        amount = Decimal(dollars)
    except InvalidOperation:
        raise ValueError(
            f"expected an amount in dollars such as 2.10, not {shown(dollars)}"
        ) from None
    if not amount.is_finite():
        raise ValueError(f"expected a finite amount in dollars, not {shown(dollars)}")
    return int((amount * MICRO).to_integral_value(_ROUNDING[rounding]))


def micro_of_text(text: str) -> int:
    """Return micro-dollars of an amount as people write it: ``20``, ``$19.99``, ``$1,012.40``.

    Raises ValueError for anything else.
    """
    return micro_of(text.strip().removeprefix("$").replace(",", ""))


def dollars_of(micro: int) -> Decimal:
    """Return an amount in dollars, exact."""
    return Decimal(micro) / MICRO


def plain_dollars(micro: int | None) -> float | None:
    """Return an amount in dollars as the REST API says it; None where there is none."""
    return None if micro is None else micro / MICRO
