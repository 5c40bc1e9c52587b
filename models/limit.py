"""What keeps a pool from buying."""

from enum import StrEnum
from typing import Self

from longshore.models.base import Wire


class HeldBy(StrEnum):
    """What keeps a pool from buying, beside the limits of its policy."""

    STOPPED = "stopped"
    """The stop-buying switch."""
    COOLDOWN = "cooldown"
    """The time after a purchase in which the pool makes no other."""
    NO_MARKET = "no-market"
    """No market is configured."""
    REFUSED = "refused"
    """A cap that `longshore market caps` sets, or the database refused the purchase."""
    BUDGET = "budget"
    """The money of a budget."""
    UNREADABLE = "unreadable"
    """What comes of a purchase under way cannot be read."""
    MARKET_AWAY = "market-away"
    """A market does not answer, or has no prices, and the others serve nobody."""


class Limit(Wire):
    """What keeps a pool from buying, where somebody can change it."""

    name: str
    """A setting of the pool's policy, such as `caps.per_day`, or one of `HeldBy`."""
    needs: str = ""
    """What that setting would have to be, as `longshore pool set` takes it; of a cap of
    `longshore market caps` its scope and amount, of the money of a budget which, and to what.
    Empty where no value is known to do."""

    @classmethod
    def at(cls, name: str, needs: str = "") -> tuple[Self, ...]:
        """Return that it alone keeps the pool from buying."""
        return (cls(name=name, needs=needs),)
