"""Rates of nodes: integer micro-dollars per node-minute inside, decimal strings at the edge."""

import re
from decimal import ROUND_HALF_EVEN, Decimal

from longshore.models.money import MICRO

Rate = int
"""Micro-dollars per node-minute: the grain of the market, $0.000060 per node-hour."""

GPUS_PER_NODE = 8
_DECIMAL = re.compile(r"\d{1,9}\.\d{1,12}")


def parse_rate(text: object) -> Rate:
    """Return the rate of dollars per node-hour such as ``"16.800000"``, to the nearest grain.

    Raises ValueError for anything but digits, a point and digits.
    """
    if not isinstance(text, str) or not _DECIMAL.fullmatch(text):
        raise ValueError("must be a decimal string such as 16.800000")
    return rate_of_node_hour(Decimal(text))


def rate_of_node_hour(dollars: Decimal) -> Rate:
    return int((dollars * MICRO / 60).to_integral_value(ROUND_HALF_EVEN))


def rate_of_gpu_hour(dollars: Decimal, gpus: int = GPUS_PER_NODE) -> Rate:
    """Return the rate of nodes with so many GPUs, to the nearest grain."""
    return rate_of_node_hour(dollars * gpus)


def format_rate(rate: Rate) -> str:
    """Return dollars per node-hour with six places, exact."""
    whole, rest = divmod(rate * 60, MICRO)
    return f"{whole}.{rest:06d}"


def per_gpu_hour(rate: Rate, gpus: int = GPUS_PER_NODE) -> str:
    """Return ``$2.10`` per GPU-hour as people read it, to a hundredth of a cent."""
    return f"${Decimal(rate) * 60 / MICRO / gpus:.4f}"
