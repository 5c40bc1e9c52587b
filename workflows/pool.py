"""One pool: wakes on a poke or an interval and runs one cycle for its whole queue."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from longshore.activities.cycle import CycleActivities
    from longshore.models.messages import (
        POOL_WORKFLOW,
        CycleReply,
        CycleRequest,
        PoolInput,
        PoolStatus,
    )
    from longshore.models.text import count, format_duration
    from longshore.models.visible import visible
    from longshore.workflows import versions
    from longshore.workflows.arguments import Started
    from longshore.workflows.options import CYCLE_RETRY, DATABASE_TIMEOUT

AFTER_FAILURE = timedelta(seconds=30)
"""Until a cycle is tried again that failed for what is stored, unless a poke comes first."""
_LONGEST_TROUBLE = 500


@workflow.defn(name=POOL_WORKFLOW)
class PoolWorkflow(Started):
    """Never completes; continues as new after `max_cycles_per_run` cycles, and on the newer
    version of its worker once there is one."""

    @workflow.init
    def __init__(self, pool: PoolInput) -> None:
        self._pool = pool
        self._poked = pool.poked
        self._cycles = pool.cycles
        self._last: CycleReply | None = None
        self._trouble = ""

    @workflow.run
    async def run(self, pool: PoolInput) -> None:
        next_wake = timedelta(0)
        while not self._should_continue_as_new():
            await self._wake(next_wake)
            if versions.is_outdated():
                break
            next_wake = await self._try_cycle()
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(
            pool.model_copy(
                update={
                    "cycles": self._cycles,
                    "generation": pool.generation + 1,
                    "poked": self._poked,
                }
            ),
            initial_versioning_behavior=versions.NEWEST,
        )

    @workflow.signal(description="The queue or the capacity has changed: run a cycle")
    def poke(self) -> None:
        """The queue or the capacity has changed."""
        self._poked = True

    @workflow.query(description="How many cycles have run, and what the last one did")
    def status(self) -> PoolStatus:
        return PoolStatus(
            pool=self._pool.pool,
            cycles=self._cycles,
            generation=self._pool.generation,
            last=self._last,
            trouble=self._trouble,
        )

    async def _wake(self, after: timedelta) -> None:
        """Return on a poke, after this time, or when there is a newer version of the worker."""
        try:
            await workflow.wait_condition(
                lambda: self._poked or versions.is_outdated(),
                timeout=after,
                timeout_summary="next cycle without a poke",
            )
        except TimeoutError:
            return

    async def _try_cycle(self) -> timedelta:
        """Run a cycle, and return when to run the next one; a failure is told and outlived."""
        try:
            reply = await self._cycle()
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._trouble = visible(str(error.cause))[:_LONGEST_TROUBLE]
            workflow.logger.error("the cycle of pool %s fails: %s", self._pool.pool, self._trouble)
            workflow.set_current_details(
                f"**The cycle fails**, and nothing is placed: {self._trouble}\n\n"
                f"It is tried again after {format_duration(AFTER_FAILURE)}."
            )
            return AFTER_FAILURE
        self._trouble = ""
        return reply.next_wake

    async def _cycle(self) -> CycleReply:
        self._poked = False
        number = self._cycles + 1
        reply = await workflow.execute_activity_method(
            CycleActivities.run_cycle,
            CycleRequest(pool=self._pool.pool, cycle_id=self._cycle_id(number), number=number),
            start_to_close_timeout=DATABASE_TIMEOUT,
            retry_policy=CYCLE_RETRY,
            summary=f"cycle {number}",
        )
        self._cycles, self._last = number, reply
        workflow.set_current_details(_in_words(reply, number))
        return reply

    def _cycle_id(self, number: int) -> str:
        # The run's id keeps cycles apart when the pool's workflow was begun anew, or was reset and
        # counts from an earlier number: under an id that is known a cycle would plan nothing.
        return f"{self._pool.pool}/{workflow.info().run_id[:8]}/{number}"

    def _should_continue_as_new(self) -> bool:
        done = self._cycles - self._pool.cycles
        return done >= self._pool.max_cycles_per_run or (
            workflow.info().is_continue_as_new_suggested()
        )


def _in_words(reply: CycleReply, number: int) -> str:
    """Return what the last cycle did, for the card that the Temporal UI shows."""
    at = f"{workflow.now():%Y-%m-%d %H:%M:%S} UTC"
    aside = f", {reply.set_aside} set aside" if reply.set_aside else ""
    free = (
        "" if reply.gpus is None else f"{reply.free_gpus} of {count(reply.gpus, 'GPU')} free.\n\n"
    )
    return (
        f"**Cycle {number}** at {at}: {count(reply.queued + reply.set_aside, 'job')} in the "
        f"queue, {reply.placed} placed, {reply.waiting} wait{aside}.\n\n{free}"
        f"Without a poke the next one comes after {format_duration(reply.next_wake)}."
    )
