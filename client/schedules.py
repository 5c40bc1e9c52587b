"""Schedules in the typed client: make, look, trigger, backfill, pause, delete."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pydantic import TypeAdapter, ValidationError
from temporalio.client import (
    Schedule,
    ScheduleAlreadyRunningError,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.client import ScheduleBackfill as ServerBackfill
from temporalio.service import RPCError

from longshore.activities.schedule_views import ScheduleViews
from longshore.client.code_submit import CodeStorer, hold_for_schedule
from longshore.client.data_urls import urls_without_host
from longshore.client.schedule_checks import long_ids, look_at_times, refused_spec
from longshore.client.schedule_reading import ScheduleReading
from longshore.client.schedule_server import (
    ANSWER_WITHIN,
    Action,
    actions_of,
    given_to,
    matching_times,
    overlap_policy,
    schedule_of,
    view_of,
)
from longshore.client.submission import preflight
from longshore.client.user import user_name
from longshore.models.array_messages import job_input
from longshore.models.base import Name
from longshore.models.dag import DagSpec, in_our_words
from longshore.models.errors import (
    ConflictError,
    RefusedError,
    SpecError,
)
from longshore.models.job import JobSpec
from longshore.models.schedule import (
    CATCH_UP,
    MOST_AGAIN,
    MOST_TIMES,
    Overlap,
    ScheduleBackfill,
    ScheduleCreation,
    ScheduleTimes,
    ScheduleTrigger,
    ScheduleView,
)
from longshore.models.schedule_messages import (
    ScheduleRunInput,
    run_id,
    schedule_id,
)
from longshore.models.text import and_more, count, format_duration
from longshore.models.visible import shown
from longshore.scheduling.arrays import too_many
from longshore.scheduling.deadline import deadlines_in_vain
from longshore.scheduling.schedules import refusals

SHORTEST_CATCH_UP = timedelta(seconds=10)
"""The server takes no shorter one."""
_SEEN_WITHIN = 10.0
"""Seconds until the server shows what a trigger has done."""
_MOST_NAMED = 3
_NAME: TypeAdapter[str] = TypeAdapter(Name)


class ScheduleControl(ScheduleReading):
    """What the client can do with schedules."""

    async def create_schedule(
        self,
        name: str,
        spec: JobSpec | DagSpec,
        times: ScheduleTimes,
        *,
        overlap: Overlap = Overlap.SKIP,
        catch_up: timedelta = CATCH_UP,
        pause_on_failure: bool = False,
        paused: bool = False,
        replace: bool = False,
        dry_run: bool = False,
    ) -> ScheduleCreation:
        """Make a schedule that starts a job or a DAG, or `replace` what one does from now on.

        The same content again changes nothing. A dry run says the next times, and makes none.
        Raises SpecError with all that is wrong, UnsatisfiableError where no node that can ever
        come could hold what it starts, ConflictError where there is another of this name, and
        UnavailableError.
        """
        self._refuse_wrong(name, spec, times, catch_up)
        is_job = isinstance(spec, JobSpec)
        warnings = await (preflight(self._db, spec) if is_job else self._preflight(spec))
        if not dry_run:
            spec = await CodeStorer(self.settings, self._db).of(spec)
        given = ScheduleRunInput(
            schedule=name,
            job=spec if isinstance(spec, JobSpec) else None,
            dag=None if isinstance(spec, JobSpec) else spec,
        )

        def wanted() -> Schedule:
            return schedule_of(given, times, overlap, catch_up, pause_on_failure=pause_on_failure)

        looked = await look_at_times(self.temporal, name, wanted(), times)
        answer = ScheduleCreation(
            name=name, created=False, dry_run=dry_run, next=looked.next,
            odd_days=looked.odd_days, warnings=(*warnings, *looked.warnings),
        )  # fmt: skip
        if dry_run:
            return answer
        await hold_for_schedule(self._db(), name, spec, alone=False)
        schedule = wanted()
        schedule.state = ScheduleState(paused=paused, note="created paused" if paused else None)
        try:
            await self.temporal.create_schedule(
                schedule_id(name), schedule, memo=_memo(given), rpc_timeout=ANSWER_WITHIN
            )
        except ScheduleAlreadyRunningError:
            replaced = await self._replace(given, wanted(), times, paused=paused, may=replace)
            await hold_for_schedule(self._db(), name, spec, alone=True)
            return answer.model_copy(update={"replaced": replaced})
        except RPCError as error:
            raise refused_spec(error, name) from error
        return answer.model_copy(update={"created": True})

    async def pause_schedule(self, name: str, reason: str = "") -> bool:
        """Have a schedule start no run; return whether it did until now. Runs go on."""
        return await self._set_paused(name, reason or f"paused by {user_name()}", paused=True)

    async def resume_schedule(self, name: str, reason: str = "") -> bool:
        """Have a schedule start runs again; return whether it did not. No run is made good."""
        return await self._set_paused(name, reason or f"resumed by {user_name()}", paused=False)

    async def trigger_schedule(
        self, name: str, *, overlap: Overlap | None = None
    ) -> ScheduleTrigger:
        """Start a run now, also of a paused schedule; `overlap` in place of the schedule's own.

        Raises RefusedError where a run is under way and this one would be left out, and where
        another was triggered in this second.
        """
        description, _ = await self._described(name)
        before, view = actions_of(description), await self.schedule(name)
        policy = overlap or view.overlap
        if policy is Overlap.SKIP and (running := view.running):
            raise RefusedError(
                f"{running[0].id} has not ended, and the overlap is skip: --overlap buffer-one "
                "runs after it, --overlap allow-all beside it"
            )
        now = datetime.now(UTC).replace(microsecond=0)
        if any(each.at == now for each in before):
            raise RefusedError(
                f"schedule {name} has a run of this second: two in a second would have one id. "
                "Trigger it again in a moment"
            )
        try:
            await self._handle(name).trigger(
                overlap=overlap_policy(policy), rpc_timeout=ANSWER_WITHIN
            )
        except RPCError as error:
            raise self._as_ours(error, name) from error
        return await self._triggered(name, view, before)

    async def backfill_schedule(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        overlap: Overlap = Overlap.BUFFER_ALL,
        again: bool = False,
        dry_run: bool = False,
    ) -> ScheduleBackfill:
        """Run the times of a schedule from `start` to `end`, both with.

        A time whose job or DAG has succeeded is refused, unless it is to run `again`: under a new
        id, as one that has failed. Raises RefusedError, and SpecError.
        """
        _, given = await self._described(name)
        if end < start or end > datetime.now(UTC):
            why = "ends before it begins" if end < start else "ends in the future"
            raise SpecError("backfill", (f"the range {why}",))
        try:
            times = await matching_times(
                self.temporal, schedule_id(name), start - timedelta(seconds=1), end, MOST_TIMES + 1
            )
        except RPCError as error:
            raise self._as_ours(error, name) from error
        if not times:
            raise RefusedError(f"schedule {name} has no time in this range")
        if len(times) > MOST_TIMES:
            raise RefusedError(
                f"schedule {name} has more than {MOST_TIMES:,} times in this range, and the "
                f"server keeps so many: give it in parts, the first until {times[-2]:%FT%TZ}"
            )
        succeeded = await self._succeeded(given, times)
        if succeeded and not again:
            raise RefusedError(
                f"{', '.join(succeeded[:_MOST_NAMED])} "
                f"{and_more(len(succeeded) - _MOST_NAMED)}".rstrip()
                + f" of {count(len(times), 'time')} "
                + ("has" if len(succeeded) == 1 else "have")
                + " succeeded: --again runs all of the range again, under new ids"
            )
        if not dry_run:
            wanted = ServerBackfill(start_at=start, end_at=end, overlap=overlap_policy(overlap))
            try:
                await self._handle(name).backfill(wanted, rpc_timeout=ANSWER_WITHIN)
            except RPCError as error:
                raise self._as_ours(error, name) from error
        return ScheduleBackfill(name=name, times=times, again=succeeded, dry_run=dry_run)

    async def delete_schedule(self, name: str) -> tuple[str, ...]:
        """Delete a schedule; return the ids of the runs that go on."""
        running = tuple(run.id for run in (await self.schedule(name)).running)
        try:
            await self._handle(name).delete(rpc_timeout=ANSWER_WITHIN)
        except RPCError as error:
            raise self._as_ours(error, name) from error
        await hold_for_schedule(self._db(), name, None, alone=True)
        return running

    def _refuse_wrong(
        self, name: str, spec: JobSpec | DagSpec, times: ScheduleTimes, catch_up: timedelta
    ) -> None:
        """Raise SpecError with all that is wrong."""
        wrong = [*refusals(times), *urls_without_host(spec), *filter(None, (spec.too_large,))]
        wrong += deadlines_in_vain(spec, datetime.now(UTC))
        try:
            _NAME.validate_python(name)
        except ValidationError:
            wrong.append(
                f"name: {shown(name)} must be lower-case letters, digits, dots, dashes and "
                "underscores, begin and end with a letter or digit, and have at most 63 characters"
            )
        if catch_up < SHORTEST_CATCH_UP:
            wrong.append(
                f"catch_up: {format_duration(catch_up)} is too short: "
                f"{format_duration(SHORTEST_CATCH_UP)} is the least"
            )
        if isinstance(spec, JobSpec):
            wrong += job_input(spec).refused
            most = self.settings.most_array_elements
            wrong += filter(None, (too_many(spec.array, most) if spec.array else "",))
        else:
            wrong += self._problems(spec)
            wrong += long_ids(name, spec)
        if wrong:
            raise SpecError(f"schedule {name}", tuple(wrong))

    async def _replace(
        self,
        given: ScheduleRunInput,
        wanted: Schedule,
        times: ScheduleTimes,
        *,
        paused: bool,
        may: bool,
    ) -> bool:
        """Give a schedule other content; return whether it had other. Its pause stays.

        Raises ConflictError where it has other content that it is to keep.
        """
        name = given.schedule
        found = await self._describe(name)
        try:
            before = await given_to(self.temporal, found.schedule)
        except SpecError:
            before = None
        same = before is not None and _same(before, given)
        if same and _is_as(await view_of(found, before), wanted, times):
            return False
        if not may:
            raise ConflictError(
                f"schedule {name} is there with other content: --replace gives it this, or "
                f"look at it with `longshore schedule show {name}`"
            )

        def update(current: ScheduleUpdateInput) -> ScheduleUpdate:
            wanted.state = current.description.schedule.state
            if paused:
                wanted.state.paused, wanted.state.note = True, "replaced paused"
            return ScheduleUpdate(wanted)

        try:
            await self._handle(name).update(update, rpc_timeout=ANSWER_WITHIN)
        except RPCError as error:
            raise refused_spec(error, name) from error
        return True

    async def _triggered(
        self,
        name: str,
        was: ScheduleView,
        before: Sequence[Action],
    ) -> ScheduleTrigger:
        """Return what a trigger has started, once the server shows it."""
        known = {(each.at, each.started_at) for each in before}
        deadline = asyncio.get_running_loop().time() + _SEEN_WITHIN
        while asyncio.get_running_loop().time() < deadline:
            found = await self.schedule(name)
            for run in found.runs:
                if (run.at, run.started_at) not in known:
                    return ScheduleTrigger(name=name, id=run.id)
            if found.skipped > was.skipped:
                raise RefusedError(
                    f"schedule {name} left the run out: another run has not ended, and its "
                    "buffer is full"
                )
            if found.buffered > was.buffered:
                return ScheduleTrigger(name=name)
            await asyncio.sleep(0.1)
        raise RefusedError(
            f"the server has started no run of schedule {name}: was there another in the same "
            f"second? `longshore schedule show {name}` tells"
        )

    async def _succeeded(
        self, given: ScheduleRunInput, times: Sequence[datetime]
    ) -> tuple[str, ...]:
        """Return the ids of the jobs or DAGs of these times that have succeeded, oldest first."""
        ids = [
            run_id(given.schedule, at, number)
            for at in times
            for number in range(1, MOST_AGAIN + 1)
        ]
        found = await ScheduleViews(self._db()).runs(given.kind, ids)
        return tuple(sorted(each.id for each in found if each.state == "SUCCEEDED"))

    async def _set_paused(self, name: str, reason: str, *, paused: bool) -> bool:
        if (await self._describe(name)).schedule.state.paused is paused:
            return False
        handle = self._handle(name)
        try:
            if paused:
                await handle.pause(note=reason, rpc_timeout=ANSWER_WITHIN)
            else:
                await handle.unpause(note=reason, rpc_timeout=ANSWER_WITHIN)
        except RPCError as error:
            raise self._as_ours(error, name) from error
        return True


def _is_as(here: ScheduleView, wanted: Schedule, times: ScheduleTimes) -> bool:
    """Return whether a schedule has the times and policies that are wanted."""
    policy = wanted.policy
    lines = tuple(" ".join(line.split()) for line in times.cron)
    return (
        here.times == times.model_copy(update={"cron": tuple(dict.fromkeys(lines))})
        and policy.overlap == overlap_policy(here.overlap)
        and policy.catchup_window == here.catch_up
        and policy.pause_on_failure == here.pause_on_failure
    )


def _memo(given: ScheduleRunInput) -> dict[str, str]:
    spec = given.spec
    return {
        "owner": user_name(), "kind": given.kind.value, "what": spec.name, "tenant": spec.tenant,
    }  # fmt: skip


def _same(before: ScheduleRunInput, given: ScheduleRunInput) -> bool:
    """Return whether both start the same, in whichever words."""
    if before.dag is None or given.dag is None:
        return before == given
    return in_our_words(before.dag) == in_our_words(given.dag)
