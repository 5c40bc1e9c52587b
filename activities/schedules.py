"""Schedules of watches: they rest while there is nothing to watch, and go on when there is.

A schedule that rests is paused with a note of ours. One that somebody paused has another note, and
is left alone. None is made here (workers.schedules does that), and one that is not there is left
out.
"""

import logging
from datetime import timedelta

from temporalio.client import Client, ScheduleState
from temporalio.service import RPCError, RPCStatusCode

RESTS = "rests until there is something to watch"
_AGAIN = "there is something to watch"
_ANSWER_WITHIN = timedelta(seconds=10)
_log = logging.getLogger(__name__)


class Schedules:
    """Has schedules rest and go on. A server that refuses is logged: a watch can wait."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal

    async def rest(self, schedule_id: str) -> bool:
        """Have a schedule rest, unless it is paused; return whether it rests by this call.

        Whoever calls looks once more afterwards whether there is something to watch: whoever
        brings that looks for schedules that rest after it is there.
        """
        schedule = self._temporal.get_schedule_handle(schedule_id)
        try:
            state = await self._state(schedule_id)
            if state is None or state.paused:
                return False
            await schedule.pause(note=RESTS, rpc_timeout=_ANSWER_WITHIN)
        except RPCError as error:
            _log.warning("the schedule %s cannot rest: %s", schedule_id, error.message)
            return False
        return True

    async def wake(self, schedule_id: str) -> None:
        """Have a schedule that rests go on."""
        schedule = self._temporal.get_schedule_handle(schedule_id)
        try:
            state = await self._state(schedule_id)
            if state is not None and rests(state):
                await schedule.unpause(note=_AGAIN, rpc_timeout=_ANSWER_WITHIN)
        except RPCError as error:
            _log.warning("the schedule %s cannot go on: %s", schedule_id, error.message)

    async def _state(self, schedule_id: str) -> ScheduleState | None:
        schedule = self._temporal.get_schedule_handle(schedule_id)
        try:
            return (await schedule.describe(rpc_timeout=_ANSWER_WITHIN)).schedule.state
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise


def rests(state: ScheduleState) -> bool:
    """Return whether a schedule is paused by `Schedules.rest`."""
    return state.paused and state.note == RESTS
