"""Looking at schedules in the typed client."""

import asyncio
from typing import Any

from temporalio.client import ScheduleDescription, ScheduleHandle
from temporalio.service import RPCError

from longshore.activities.schedule_views import ScheduleViews
from longshore.client.dags import DagControl
from longshore.client.errors import as_ours
from longshore.client.schedule_runs import runs_of
from longshore.client.schedule_server import ANSWER_WITHIN, actions_of, given_to, view_of
from longshore.models.dag import DagSpec
from longshore.models.errors import LongshoreError, NotFoundError
from longshore.models.job import JobSpec
from longshore.models.schedule import MOST_AGAIN, ScheduleView
from longshore.models.schedule_messages import SCHEDULE_PREFIX, run_id, schedule_id
from longshore.models.visible import shown

LISTED_BY = "longshore schedule list"
_LOOKS_AT_ONCE = 25


class ScheduleReading(DagControl):
    """Reads schedules from the server, and how their runs ended from the database."""

    async def schedules(self) -> tuple[ScheduleView, ...]:
        """Return the schedules that people have made, by name, each with its last runs.

        The server's list lags by a moment.
        """
        gate = asyncio.Semaphore(_LOOKS_AT_ONCE)

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
        description, given = await self._described(name)
        view = await view_of(self.temporal, description, given)
        actions = actions_of(description)
        ids = [
            run_id(name, at, number)
            for at in {each.at for each in actions}
            for number in range(1, MOST_AGAIN + 1)
        ]
        try:
            recorded = await ScheduleViews(self._db()).runs(given.kind, ids)
        except LongshoreError as error:
            recorded = ()
            view = view.model_copy(update={"trouble": view.trouble or str(error)})
        runs = runs_of(name, actions, recorded)
        return view.model_copy(update={"runs": tuple(reversed(runs))})

    async def schedule_spec(self, name: str) -> JobSpec | DagSpec:
        """Return what a schedule starts, as it was when it was made. Raises NotFoundError."""
        return (await self._described(name))[1].spec

    async def _described(
        self, name: str, *, any_action: bool = False
    ) -> tuple[ScheduleDescription, Any]:
        """Return a schedule with what it starts; with `any_action` None where that is not ours.

        Raises NotFoundError.
        """
        try:
            found = await self._handle(name).describe(rpc_timeout=ANSWER_WITHIN)
            given = await given_to(self.temporal, found.schedule)
        except RPCError as error:
            raise self._as_ours(error, name) from error
        if given is None and not any_action:
            raise NotFoundError(f"schedule {name} starts another workflow than ours")
        return found, given

    def _handle(self, name: str) -> ScheduleHandle:
        return self.temporal.get_schedule_handle(schedule_id(name))

    def _as_ours(self, error: RPCError, name: str) -> LongshoreError:
        return as_ours(error, f"schedule {shown(name)}", listed_by=LISTED_BY)
