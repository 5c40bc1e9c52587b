"""What Temporal costs without Longshore: a workflow of the same shape as a job's, with no work.

Three activities that return at once and one signal: `enqueue` on the queue of a control process,
which then signals the workflow as a pool's cycle would; `run_process` on a queue of its own,
taken by another process; `finish` on the first queue again. No database, no process, no search
attributes, no card for the UI, and text in place of models.

    python -m benchmarks.bare control|node ADDRESS
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from longshore.client.process import leave, run
    from longshore.workers.processes import Recorded, wait_until
    from longshore.workers.stack import Stack

CONTROL_QUEUE = "bare-control"
NODE_QUEUE = "bare-node"
ROLES = {"control": CONTROL_QUEUE, "node": NODE_QUEUE}
_TIMEOUT = timedelta(seconds=60)


@workflow.defn
class BareJob:
    def __init__(self) -> None:
        self._placed = False

    @workflow.run
    async def run(self, name: str) -> str:
        await workflow.execute_activity("enqueue", name, start_to_close_timeout=_TIMEOUT)
        await workflow.wait_condition(lambda: self._placed)
        await workflow.execute_activity(
            "run_process", name, task_queue=NODE_QUEUE, start_to_close_timeout=_TIMEOUT
        )
        return await workflow.execute_activity(
            "finish", name, start_to_close_timeout=_TIMEOUT, result_type=str
        )

    @workflow.signal
    def placed(self) -> None:
        self._placed = True


@workflow.defn
class BareParent:
    """So many children of a job's shape, so many at a time."""

    @workflow.run
    async def run(self, asked: list[int]) -> int:
        jobs, at_once = asked
        own, left = workflow.info().workflow_id, iter(range(jobs))

        async def keep_one_under_way() -> None:
            for number in left:
                name = f"{own}-{number}"
                await workflow.execute_child_workflow(BareJob.run, name, id=name)

        await asyncio.gather(*(keep_one_under_way() for _ in range(at_once)))
        return jobs


class BareActivities:
    """Does nothing, but for the signal."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal
        self._telling: set[asyncio.Task[None]] = set()

    @activity.defn
    async def enqueue(self, name: str) -> None:
        handle = self._temporal.get_workflow_handle(activity.info().workflow_id or "")
        telling = asyncio.create_task(handle.signal("placed"))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    @activity.defn
    async def run_process(self, name: str) -> None:
        return

    @activity.defn
    async def finish(self, name: str) -> str:
        return name


class BareWorkers:
    """The two worker processes, from `with` to its end."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._started: list[Recorded] = []

    def __enter__(self) -> None:
        for role in ROLES:
            argv = [sys.executable, "-m", "benchmarks.bare", role, self._stack.temporal.address]
            self._started.append(self._stack.processes.spawn(f"bare-{role}", argv))
        wait_until(self._all_poll, 30.0, interval=0.2)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.processes.stop(*(entry.name for entry in self._started))

    def _all_poll(self) -> bool:
        cli = self._stack.temporal_cli()
        return all(
            cli.polled_since(queue, entry.started)
            for queue, entry in zip(ROLES.values(), self._started, strict=True)
        )


@asynccontextmanager
async def _serving(role: str, address: str) -> AsyncIterator[None]:
    temporal = await Client.connect(address)
    bare = BareActivities(temporal)
    activities = [bare.enqueue, bare.finish] if role == "control" else [bare.run_process]
    async with Worker(
        temporal,
        task_queue=ROLES[role],
        workflows=[BareJob, BareParent] if role == "control" else [],
        activities=activities,
    ):
        yield


async def _serve(role: str, address: str) -> None:
    async with _serving(role, address):
        await asyncio.Event().wait()


def main() -> None:
    role, address = sys.argv[1:]
    run(_serve(role, address))
    leave(0)


if __name__ == "__main__":
    main()
