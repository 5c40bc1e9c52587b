"""What a waiting job needs is brought to where it is expected to start.

That is help and no more: nothing that happens here fails a job or holds it up. On the node where
it is placed the agent goes on with it, as a part of the start of its process.
"""

import asyncio
from collections.abc import Collection
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from longshore.models.job import JobSpec
from longshore.models.messages import PREPARE_ACTIVITY, node_task_queue
from longshore.models.node_messages import Prepare, Prepared, PrepareRequest
from longshore.models.placement import Placement
from longshore.workflows.options import PREPARE_RETRY, PROCESS_HEARTBEAT_TIMEOUT, PROCESS_TIMEOUT


class Preparing:
    """What is being brought for one job, by node."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._told: Prepare | None = None
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._missing: dict[str, tuple[str, ...]] = {}

    @property
    def missing(self) -> tuple[str, ...]:
        """What could not be brought, with its node."""
        return tuple(
            f"{node_id}: {why}" for node_id, each in self._missing.items() for why in each
        )

    def heard(self, told: Prepare) -> None:
        """Take note of what a cycle says; of an attempt that is over, or of another one that this
        workflow does not know of yet, `begin` decides."""
        if self._told is None or told.attempt >= self._told.attempt:
            self._told = told

    def begin(self, attempt: int, spec: JobSpec) -> None:
        """Have brought what was said of this attempt; end what goes on elsewhere."""
        told = self._told
        if told is None or told.attempt != attempt:
            return
        self.stop(but=told.node_ids)
        for node_id in told.node_ids:
            if node_id not in self._under_way:
                self._under_way[node_id] = asyncio.create_task(self._prepare(node_id, spec, told))

    def placed(self, placement: Placement) -> None:
        """End what goes on at other nodes than those of the placement; the agents of these go on
        with it as its processes start."""
        self.stop(but=[rank.node_id for rank in placement.by_rank])

    def stop(self, but: Collection[str] = ()) -> None:
        """End what goes on, `but` on these nodes."""
        for node_id in [each for each in self._under_way if each not in but]:
            self._under_way.pop(node_id).cancel()
            self._missing.pop(node_id, None)

    def forget(self) -> None:
        """End all of it: the attempt is over, or is kept out of placement."""
        self._told = None
        self.stop()

    async def _prepare(self, node_id: str, spec: JobSpec, told: Prepare) -> None:
        request = PrepareRequest(
            job_id=self._job_id, job_name=spec.name, node_id=node_id, spec=spec,
            expected_start=told.expected_start, deficit=told.deficit,
        )  # fmt: skip
        try:
            prepared = await workflow.execute_activity(
                PREPARE_ACTIVITY,
                request,
                result_type=Prepared,
                task_queue=node_task_queue(node_id),
                start_to_close_timeout=PROCESS_TIMEOUT,
                schedule_to_start_timeout=_HEARD_WITHIN,
                heartbeat_timeout=PROCESS_HEARTBEAT_TIMEOUT,
                retry_policy=PREPARE_RETRY,
                summary=f"bring what it needs to {node_id}, where it is expected to start",
            )
            self._missing[node_id] = prepared.missing
        except ActivityError as error:
            if node_id in self._under_way and not is_cancelled_exception(error):
                self._missing[node_id] = (str(error.cause or error),)
            workflow.logger.info("%s is not prepared on %s: %s", self._job_id, node_id, error)


_HEARD_WITHIN = timedelta(minutes=10)
"""A node that takes nothing for so long is probably gone."""
