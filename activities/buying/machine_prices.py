"""What a machine that is billed as it runs may cost: a market need not keep to the limit it got.

Prime's `maxPrice` is no cap: a dearer pod was started with it (PrimeIntellect-ai/prime#141).
"""

from longshore.models.market import Machine
from longshore.models.text import format_dollars


def above_limit(machine: Machine, limit: int | None) -> str:
    """Return why a machine may not stay, if so: it costs more than its order allowed.

    `limit` is in micro-dollars per GPU-hour; None where the time of a machine is paid already.
    """
    if limit is None or machine.price is None or machine.price <= limit:
        return ""
    return (
        f"it costs {format_dollars(machine.price)} a GPU-hour, above the limit of "
        f"{format_dollars(limit)} that it was ordered with"
    )
