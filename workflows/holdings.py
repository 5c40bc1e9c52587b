"""What a node holds, on its way from the agent to the database."""

from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from longshore.activities.holdings import HoldingActivities
from longshore.models.data import HeldReport
from longshore.models.node_messages import Holdings
from longshore.workflows.options import DATABASE_RETRY, DATABASE_TIMEOUT


class HeldReports:
    """The reports of a node's agent; of those that come while one is recorded, the last counts."""

    def __init__(self, node_id: str, epoch: Callable[[], int | None]) -> None:
        """`epoch` says which registration is live, if any."""
        self._node_id = node_id
        self._epoch = epoch
        self._last: HeldReport | None = None
        self._recording = False

    async def take(self, report: HeldReport) -> None:
        """Have a report recorded, and what came in its place meanwhile."""
        self._last = report
        if self._recording:
            return
        self._recording = True
        try:
            while self._last is not None and (epoch := self._epoch()) is not None:
                said, self._last = self._last, None
                try:
                    await self._record(Holdings(node_id=self._node_id, epoch=epoch, report=said))
                except ActivityError as error:
                    if is_cancelled_exception(error):
                        raise
                    # What a node holds is help and no more: it must end no watch of the node.
                    workflow.logger.warning("what %s holds: %s", self._node_id, error)
        finally:
            self._recording = False

    async def _record(self, holdings: Holdings) -> None:
        await workflow.execute_activity_method(
            HoldingActivities.store_holdings,
            holdings,
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary=f"what the node holds: {len(holdings.report.held)}",
        )
