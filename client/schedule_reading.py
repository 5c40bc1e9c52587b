"""Looking at schedules in the typed client."""

import asyncio
from datetime import UTC, datetime

from temporalio.client import ScheduleDescription, ScheduleHandle
from temporalio.service import RPCError

from longshore.activities.schedule_views import ScheduleViews
from longshore.client.dags import DagControl
from longshore.client.errors import as_ours
from longshore.client.schedule_checks import NEVER_WITHIN, NEXT
from longshore.client.schedule_runs import runs_of
from longshore.client.schedule_server import (
    ANSWER_WITHIN,
    actions_of,
    given_to,
    matching_times,
    view_of,
)
from longshore.models.dag import DagSpec
from longshore.models.errors import LongshoreError, NotFoundError, SpecError, UnavailableError
from longshore.models.job import JobSpec
from longshore.models.schedule import MOST_AGAIN, ScheduleView
from longshore.models.schedule_messages import (
    SCHEDULE_PREFIX,
    ScheduleRunInput,
    run_id,
    schedule_id,
)
from longshore.models.visible import shown

LISTED_BY = "longshore schedule list"
_READS_AT_ONCE = 25


class ScheduleReading(DagControl):
    """Reads schedules from the server, and how their runs ended from the database."""

    async def schedules(self) -> tuple[ScheduleView, ...]:
        """Return the schedules that people have made, by name, each with its last runs.

        The server's list lags by a moment.
        """
        gate = asyncio.Semaphore(_READS_AT_ONCE)

        async def look(name: str) -> ScheduleView | None:
            async with gate:
                try:
                    return await self.schedule(name)
                except NotFoundError:  # deleted meanwhile, or somebody else's
                    return None

        try:
            names = [
                each.id.removeprefix(SCHEDULE_PREFIX)
                async for each in await self.temporal.list_schedules(rpc_timeout=ANSWER_WITHIN)
                if each.id.startswith(SCHEDULE_PREFIX)
            ]
        except RPCError as error:
            raise as_ours(error, "schedules") from error
        found = await asyncio.gather(*map(look, sorted(names)))
        return tuple(each for each in found if each is not None)

    async def schedule(self, name: str) -> ScheduleView:
        """Return a schedule in full. Raises NotFoundError."""
        description, trouble = await self._describe(name), ""
        try:
            given = await given_to(self.temporal, description.schedule)
        except SpecError as error:
            given, trouble = None, f"what it starts cannot be read: {error}"
        if given is None and not trouble:
            raise _not_ours(name)
        view = await self._with_next_of_now(await view_of(description, given))
        actions = actions_of(description)
        ids = [
            run_id(name, at, number)
            for at in {each.at for each in actions}
            for number in range(1, MOST_AGAIN + 1)
        ]
        try:
            recorded = await ScheduleViews(self._db()).runs(view.kind, ids)
        except UnavailableError as error:
            recorded, trouble = (), trouble or str(error)
        runs = tuple(reversed(runs_of(name, actions, recorded)))
        return view.model_copy(update={"runs": runs, "trouble": view.trouble or trouble})

    async def _with_next_of_now(self, view: ScheduleView) -> ScheduleView:
        """Return a schedule with its next times from now on: of one that is paused the server
        tells those after the last time at which it looked."""
        if not view.paused:
            return view
        now = datetime.now(UTC)
        try:
            found = await matching_times(
                self.temporal, schedule_id(view.name), now, now + NEVER_WITHIN, NEXT
            )
        except RPCError as error:
            raise self._as_ours(error, view.name) from error
        return view.model_copy(update={"next": found})

    async def schedule_spec(self, name: str) -> JobSpec | DagSpec:
        """Return what a schedule starts, as it was when it was made. Raises NotFoundError."""
        return (await self._described(name))[1].spec

    async def _described(self, name: str) -> tuple[ScheduleDescription, ScheduleRunInput]:
        """Return a schedule with what it starts. Raises NotFoundError, and SpecError where that
        cannot be read."""
        found = await self._describe(name)
        given = await given_to(self.temporal, found.schedule)
        if given is None:
            raise _not_ours(name)
        return found, given

    async def _describe(self, name: str) -> ScheduleDescription:
        try:
            return await self._handle(name).describe(rpc_timeout=ANSWER_WITHIN)
        except RPCError as error:
            raise self._as_ours(error, name) from error

    def _handle(self, name: str) -> ScheduleHandle:
        return self.temporal.get_schedule_handle(schedule_id(name))

    def _as_ours(self, error: RPCError, name: str) -> LongshoreError:
        return as_ours(error, f"schedule {shown(name)}", listed_by=LISTED_BY)


def _not_ours(name: str) -> NotFoundError:
    return NotFoundError(f"schedule {name} starts another workflow than those of Longshore")
