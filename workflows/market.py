"""One look at the markets: what a schedule starts every `market_watch_every`."""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from longshore.activities.markets.watch import MarketWatchActivities
    from longshore.models.market_memory import (
        MARKET_WATCH_WORKFLOW,
        MarketLookRequest,
        MarketWatchReport,
    )

_POLL_TIMEOUT = timedelta(minutes=2)
_A_FEW_TIMES = RetryPolicy(maximum_attempts=3)
"""The next look is never far."""


@workflow.defn(name=MARKET_WATCH_WORKFLOW)
class MarketWatchWorkflow:
    """Run by the schedule; two at a time do no harm."""

    @workflow.run
    async def run(self) -> MarketWatchReport:
        report = await workflow.execute_activity_method(
            MarketWatchActivities.watch_markets,
            MarketLookRequest(id=workflow.info().run_id),
            start_to_close_timeout=_POLL_TIMEOUT,
            retry_policy=_A_FEW_TIMES,
            summary="read, price and store the books",
        )
        lines = [f"- {seen}" for seen in report.seen] or ["No market is configured."]
        lines += [f"- woke pool {pool}: {why}" for pool, why in sorted(report.woken.items())]
        workflow.set_current_details("\n".join(lines))
        return report
