"""What travels through Temporal of the price of a pool: its name, and what came of a read."""

from typing import Annotated, ClassVar

from pydantic import Field

from longshore.models.base import Name, Reason, StartInput, Wire
from longshore.models.counts import DIGITS

PRICE_WORKFLOW = "PriceWorkflow"


def price_workflow_id(pool: str) -> str:
    return f"price-{pool}"


class PriceInput(StartInput):
    """Input of `PriceWorkflow`."""

    instead: ClassVar[str] = (
        'give an input: {"pool": "NAME"}; a cycle of a pool with a price starts it'
    )
    pool: Name
    attempts: Annotated[int, Field(ge=1, le=100), DIGITS] = 3
    """How often it is tried: the next cycle begins the next one."""

    def own_id(self, found: str) -> str:
        return price_workflow_id(self.pool)


class PriceRequest(Wire):
    pool: Name


class PriceRead(Wire):
    """What came of a read."""

    says: Reason
    """The price now, or why it could not be read."""
    released: int = 0
    """Jobs whose price has come by it."""
