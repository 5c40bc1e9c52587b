"""Drains a node: on request, before its time ends, and before it is taken away."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from longshore.activities.departures import DepartureActivities
from longshore.activities.node.process import NodeActivities
from longshore.models.departures import (
    Cause,
    DeparturePlan,
    DepartureRequest,
    ExpiryRow,
    Leaving,
    NodeDrain,
    SpotNotice,
)
from longshore.models.messages import TIME_ENDED, node_task_queue
from longshore.models.node_messages import NodeInput, StopProcessRequest
from longshore.models.placement import PlacementKey
from longshore.workflows.options import DATABASE_RETRY, DATABASE_TIMEOUT

_TO_KILL = timedelta(seconds=30)
_EARLY = timedelta(milliseconds=10)
"""A timer may fire this much before the clock of the worker that looks then."""


class DrainLoop:
    """What a node's workflow knows of why its jobs are to leave. `keep` acts on it."""

    def __init__(self, node: NodeInput, epoch: Callable[[], int | None]) -> None:
        """`epoch` says which registration is live, if any."""
        self._node_id = node.node_id
        self._epoch = epoch
        self.expires_at = node.expires_at
        self.drain = node.drain
        self._notice = node.notice
        self.cordon = ""
        """Why the node takes no new job, beside what somebody asked for."""
        self._changes = 0

    async def keep(self) -> None:
        """Look whenever it is time, as long as the workflow runs."""
        while True:
            await workflow.wait_condition(self._has_work)
            seen = self._changes
            plan = await self._look()
            if plan is None:
                continue
            left = None
            if plan.next_look is not None:
                left = max(plan.next_look - workflow.now(), timedelta(0)) + _EARLY
            try:
                await workflow.wait_condition(
                    lambda: self._changes != seen,  # noqa: B023 (waited for in this turn)
                    timeout=left,
                    timeout_summary="next look at who has to leave",
                )
            except TimeoutError:
                continue

    def registered(self, expires_at: datetime | None) -> None:
        """A registration has begun: nothing runs there yet."""
        self.expires_at, self.cordon = expires_at, ""
        self._changes += 1

    def set_drain(self, drain: NodeDrain, reason: str) -> None:
        """The node is to be empty, where the command says `move`; else it only takes no job."""
        self.drain = None
        if drain.move:
            self.drain = Leaving(
                cause=Cause.DRAIN, reason=reason, by=drain.by, at_once=drain.at_once
            )
        self._changes += 1

    def forget(self) -> None:
        """The node may take jobs again, unless its time ends: the next look tells."""
        self.drain, self._notice, self.cordon = None, None, ""
        self._changes += 1

    def look_again(self) -> None:
        """Somebody has come who may need longer to leave than was known."""
        self._changes += 1

    def heard(self, notice: SpotNotice) -> None:
        """Its machine is about to be taken away, at a known moment or at any."""
        reason = notice.reason or "its machine is about to be taken away"
        self._notice = Leaving(
            cause=Cause.NOTICE, reason=reason, by=notice.at, at_once=notice.at is None
        )
        self._changes += 1

    async def change_expiry(self, expires_at: datetime | None) -> None:
        """The node ends at another time: placements and departures are measured by that."""
        epoch = self._epoch()
        assert epoch is not None
        ends = await workflow.execute_activity_method(
            DepartureActivities.set_expiry,
            ExpiryRow(node_id=self._node_id, epoch=epoch, expires_at=expires_at),
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary=f"ends at {expires_at:%Y-%m-%d %H:%M:%S} UTC" if expires_at else "never ends",
        )
        self.expires_at = ends.expires_at if ends else expires_at
        self._changes += 1

    def carried(self) -> dict[str, object]:
        """Return what the next run of the workflow has to know."""
        return {"expires_at": self.expires_at, "drain": self.drain, "notice": self._notice}

    def _has_work(self) -> bool:
        known = self.expires_at or self._leavings() or self.cordon
        return self._epoch() is not None and bool(known)

    def _leavings(self) -> tuple[Leaving, ...]:
        return tuple(each for each in (self.drain, self._notice) if each is not None)

    async def _look(self) -> DeparturePlan | None:
        """Ask those to go whose time has come, and kill who has not gone."""
        epoch = self._epoch()
        if epoch is None:
            return None
        plan = await workflow.execute_activity_method(
            DepartureActivities.see_off,
            DepartureRequest(node_id=self._node_id, epoch=epoch, leavings=self._leavings()),
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=DATABASE_RETRY,
            summary="drain: move the jobs that have to leave",
        )
        if self._epoch() == epoch:
            self.cordon, self.expires_at = plan.cordon, plan.expires_at
            await asyncio.gather(*(self._kill(key) for key in plan.overdue))
        return plan

    async def _kill(self, key: PlacementKey) -> None:
        """End what runs of an attempt, so that it does not end with its machine."""
        try:
            await workflow.execute_activity_method(
                NodeActivities.stop_process,
                StopProcessRequest(
                    key=key, signal="SIGKILL", grace=timedelta(0), reason=TIME_ENDED
                ),
                task_queue=node_task_queue(self._node_id),
                schedule_to_close_timeout=_TO_KILL,
                retry_policy=RetryPolicy(maximum_attempts=2),
                summary=f"kill {key.job_id}: {TIME_ENDED}",
            )
        except ActivityError as error:
            workflow.logger.warning("%s could not be killed: %s", key.job_id, error.cause)
