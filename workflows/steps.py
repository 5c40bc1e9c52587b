"""The steps of a job as activities: what each is given, its timeouts, its line in the UI."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from longshore.activities.elements import ElementActivities
from longshore.activities.job_starts import as_summary
from longshore.activities.node.process import NodeActivities
from longshore.activities.queue import QueueActivities
from longshore.activities.resizes import ResizeActivities
from longshore.activities.spares import SpareActivities
from longshore.models.array_messages import ClaimReply, ClaimRequest, StopElements
from longshore.models.bounds import json_bytes
from longshore.models.elements import Batch, BatchReport
from longshore.models.failover import SwapReply, SwapRequest
from longshore.models.job import JobSpec
from longshore.models.job_status import JobResult
from longshore.models.messages import (
    EnqueueReply,
    EnqueueRequest,
    FinishRequest,
    HoldRequest,
    LeaseEnd,
    ReleaseRequest,
    node_task_queue,
)
from longshore.models.node_messages import (
    ProcessReport,
    RunProcessRequest,
    StopProcessRequest,
    run_key,
)
from longshore.models.output import JobOutput
from longshore.models.placement import Placement, PlacementKey
from longshore.models.resize import ResizeReply, ResizeRequest
from longshore.models.retry import FailureClass
from longshore.models.text import format_places
from longshore.workflows.options import (
    ANSWER_AFTER_CUT,
    CANCEL_WITHIN,
    DATABASE_RETRY,
    DATABASE_TIMEOUT,
    ELEMENTS_RETRY,
    ENGINE_HEARTBEAT_TIMEOUT,
    ONCE,
    PROCESS_HEARTBEAT_TIMEOUT,
    PROCESS_RETRY,
    PROCESS_TIMEOUT,
    STOP_ELEMENTS_WITHIN,
)

_BESIDE = 1000
"""Bytes of an activity beside its input, and by which the input differs between ranks."""


def start_enqueue(request: EnqueueRequest) -> workflow.ActivityHandle[EnqueueReply]:
    """Have an attempt put into its pool's queue; the handle is done when it is there."""
    return workflow.start_activity_method(
        QueueActivities.enqueue,
        request,
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=DATABASE_RETRY,
        summary=f"attempt {request.attempt} into the queue of pool {request.spec.pool}",
    )


async def set_hold(key: PlacementKey, *, held: bool, begin_only: bool = False) -> None:
    """Keep a queued attempt out of placement, or let it in again."""
    await workflow.execute_activity_method(
        QueueActivities.set_hold,
        HoldRequest(key=key, held=held, begin_only=begin_only),
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=DATABASE_RETRY,
        summary="hold" if held else "release",
    )


async def give_up_leases(
    key: PlacementKey, reason: LeaseEnd, message: str, then: EnqueueRequest | None = None
) -> bool:
    """End the leases of an attempt that another one is to follow; return whether that one, `then`,
    is in the queue."""
    queued = await workflow.execute_activity_method(
        QueueActivities.release,
        ReleaseRequest(key=key, reason=reason, message=message, then=then),
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=DATABASE_RETRY,
        summary=f"give up the leases: {reason.value}",
    )
    return bool(queued)


async def resize(request: ResizeRequest) -> ResizeReply:
    """Have a new desired size recorded; return whether the job is to be stopped for it."""
    return await workflow.execute_activity_method(
        ResizeActivities.resize,
        request,
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=DATABASE_RETRY,
        summary="another desired size",
    )


async def swap(request: SwapRequest) -> SwapReply:
    """Let spares take the places of lost nodes, or give up the leases."""
    return await workflow.execute_activity_method(
        SpareActivities.swap,
        request,
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=DATABASE_RETRY,
        summary=f"a spare in the place of a lost node, or {request.end.value}",
    )


async def finish(
    key: PlacementKey,
    reason: LeaseEnd,
    result: JobResult,
    unanswered: EnqueueRequest | None = None,
    output: JobOutput | None = None,
) -> None:
    """End the leases of the last attempt, and record the job's end.

    Where it ends over an `unanswered` request, this is tried for a while only: the job ends all
    the same, and should it be in the queue, reconcile finds that its workflow has ended.
    """
    try:
        await workflow.execute_activity_method(
            QueueActivities.finish,
            FinishRequest(
                key=key, reason=reason, result=result, unanswered=unanswered, output=output
            ),
            start_to_close_timeout=DATABASE_TIMEOUT,
            schedule_to_close_timeout=CANCEL_WITHIN if unanswered else None,
            retry_policy=DATABASE_RETRY,
            summary=f"record the end: {result.state.value}",
        )
    except ActivityError as error:
        if unanswered is None:
            raise
        workflow.logger.warning("the end of %s is not recorded: %s", key.job_id, error.cause)


def bytes_of_process(placement: Placement, spec: JobSpec) -> int:
    """Return about how many bytes it takes in a message to have a node run the process."""
    return json_bytes(_process(placement, spec)) + _BESIDE


def start_process(
    placement: Placement,
    spec: JobSpec,
    gpus_before: int | None = None,
    batch: Batch | None = None,
) -> workflow.ActivityHandle[ProcessReport]:
    """Have the node run the process, or a batch of elements; the handle is done at its end.

    `gpus_before` is the size of a malleable job in its attempt before, where it had one.
    """
    if batch is not None:
        return workflow.start_activity_method(
            NodeActivities.run_elements,
            _process(placement, spec, batch),
            task_queue=node_task_queue(placement.node_id),
            start_to_close_timeout=PROCESS_TIMEOUT,
            heartbeat_timeout=PROCESS_HEARTBEAT_TIMEOUT,
            retry_policy=ELEMENTS_RETRY,
            summary=f"{_elements(batch)} on {where(placement)}",
        )
    request = _process(placement, spec)
    if gpus_before is not None:
        request = request.model_copy(update={"gpus_before": gpus_before})
    return workflow.start_activity_method(
        NodeActivities.run_process,
        request,
        task_queue=node_task_queue(placement.node_id),
        start_to_close_timeout=PROCESS_TIMEOUT,
        heartbeat_timeout=ENGINE_HEARTBEAT_TIMEOUT if spec.engine else PROCESS_HEARTBEAT_TIMEOUT,
        retry_policy=PROCESS_RETRY,
        summary=f"attempt {placement.attempt} on {where(placement)}{_of_gang(placement)}",
    )


async def claim(request: ClaimRequest) -> ClaimReply:
    """Record how a slot's batch ended, and have the next."""
    return await workflow.execute_activity_method(
        ElementActivities.claim_elements,
        request,
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=DATABASE_RETRY,
        summary=f"batch {request.batch}" if request.want else "the last batch ends",
    )


async def known_of_batch(key: PlacementKey) -> BatchReport:
    """Return what a node that is lost had said of its batch."""
    return await workflow.execute_activity_method(
        ElementActivities.known_of_batch,
        key,
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=DATABASE_RETRY,
        summary="what the node said last of its batch",
    )


async def stop_elements(placement: Placement, request: StopElements) -> None:
    """Have a node stop, or leave out, elements of a batch that it has."""
    await workflow.execute_activity_method(
        NodeActivities.stop_elements,
        request,
        task_queue=node_task_queue(placement.node_id),
        schedule_to_close_timeout=STOP_ELEMENTS_WITHIN,
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=ELEMENTS_RETRY,
        summary=f"{len(request.indices)} cancelled elements",
    )


async def ask_how_it_ended(
    placement: Placement, spec: JobSpec, batch: Batch | None = None
) -> ProcessReport | None:
    """Ask a node that is back what became of an attempt under an older registration.

    Returns None where it does not say. Nothing starts there: the registration is over.
    """
    try:
        return await workflow.execute_activity_method(
            NodeActivities.run_process if batch is None else NodeActivities.run_elements,
            _process(placement, spec, batch),
            task_queue=node_task_queue(placement.node_id),
            schedule_to_close_timeout=ANSWER_AFTER_CUT,
            retry_policy=ONCE,
            summary=f"how attempt {placement.attempt} ended{_of_gang(placement)}",
        )
    except ActivityError:
        return None


def bytes_of_stop(placement: Placement, spec: JobSpec, reason: str) -> int:
    """Return about how many bytes it takes in a message to have a node stop the process."""
    return json_bytes(_stop(placement, spec, reason)) + _BESIDE


async def stop_process(
    placement: Placement, spec: JobSpec, reason: str, batch: Batch | None = None
) -> None:
    """Ask the node for it directly: a cancellation by heartbeat would come late."""
    await workflow.execute_activity_method(
        NodeActivities.stop_process,
        _stop(placement, spec, reason, batch),
        task_queue=node_task_queue(placement.node_id),
        start_to_close_timeout=spec.grace + timedelta(minutes=1),
        retry_policy=PROCESS_RETRY,
        summary=as_summary(f"stop attempt {placement.attempt}{_of_gang(placement)}: {reason}"),
    )


def _stop(
    placement: Placement, spec: JobSpec, reason: str, batch: Batch | None = None
) -> StopProcessRequest:
    return StopProcessRequest(
        key=run_key(placement, batch), signal=spec.stop_signal, grace=spec.grace, reason=reason
    )


def _process(placement: Placement, spec: JobSpec, batch: Batch | None = None) -> RunProcessRequest:
    return RunProcessRequest(placement=placement, spec=spec, job_name=spec.name, batch=batch)


def _elements(batch: Batch) -> str:
    first = batch.elements[0].index
    more = len(batch.elements) - 1
    return f"element {first}" + (f" and {more} more" if more else "")


def where(placement: Placement) -> str:
    """Return ``node-7 GPUs 2-3``."""
    return format_places([(placement.node_id, placement.gpu_indices)])


def _of_gang(placement: Placement) -> str:
    return f", rank {placement.rank} of {len(placement.ranks)}" if placement.ranks else ""


async def give_up(task: "asyncio.Task[Any]") -> None:
    """Cancel what may not have been answered, and retrieve what came of it."""
    task.cancel()
    with contextlib.suppress(ActivityError, asyncio.CancelledError):
        await task


async def report_of(process: "workflow.ActivityHandle[ProcessReport]") -> ProcessReport:
    """Return the report of an ended process, or one that says why the node could not give any."""
    try:
        return await process
    except ActivityError as error:
        return ProcessReport(
            failure=FailureClass.NODE, message=f"the node refused it: {error.cause or error}"
        )
