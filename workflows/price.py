"""One read of the price of a pool: from a URL, or from what the markets ask.

It is apart from the pool's workflow, which neither a market nor a web server may hold up. A cycle
begins it when the price is due; one of a pool runs at a time: its id is the pool's.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from longshore.activities.prices.reading import PriceActivities
    from longshore.models.price_messages import (
        PRICE_WORKFLOW,
        PriceInput,
        PriceRead,
        PriceRequest,
    )
    from longshore.workflows.options import MARKET_HEARTBEAT_TIMEOUT

_READ_TIMEOUT = timedelta(minutes=2)


@workflow.defn(name=PRICE_WORKFLOW)
class PriceWorkflow:
    """Begun by a pool's cycle when its price is due."""

    @workflow.run
    async def run(self, price: PriceInput) -> PriceRead:
        read = await workflow.execute_activity_method(
            PriceActivities.read_price,
            PriceRequest(pool=price.pool),
            start_to_close_timeout=_READ_TIMEOUT,
            heartbeat_timeout=MARKET_HEARTBEAT_TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=price.attempts),
            summary=f"the price of pool {price.pool}",
        )
        workflow.set_current_details(read.says)
        return read
