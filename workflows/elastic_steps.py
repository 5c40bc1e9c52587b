"""The steps of a change of size in place as activities; `workflows.steps` has those of a job."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

from longshore.activities.checkpoints.watch import CheckpointWatchActivities
from longshore.activities.joins import JoinActivities
from longshore.activities.node.process import NodeActivities
from longshore.activities.resizes import ResizeActivities
from longshore.models.checkpoint import CheckpointInfo, SaveRequest
from longshore.models.checkpointing import UnstoredSaves
from longshore.models.job import JobSpec
from longshore.models.messages import node_task_queue
from longshore.models.placement import Placement
from longshore.models.resize import (
    JoinReply,
    JoinRequest,
    LeaveRequest,
    RoomRequest,
    SizeNotice,
)
from longshore.models.text import count
from longshore.scheduling.ranks import named
from longshore.workflows.options import (
    DATABASE_RETRY,
    DATABASE_TIMEOUT,
    ELEMENTS_RETRY,
    ONCE,
    TELL_SIZE_WITHIN,
)

_TO_ANSWER = timedelta(seconds=30)
"""What a save takes beside the save itself."""
_TO_PLAN = timedelta(minutes=1)
"""Until a job for which another gives up ranks is not waited for any longer: that one stops."""


async def save(placement: Placement, spec: JobSpec) -> CheckpointInfo:
    """Have a process save and go on, within its grace. Raises ActivityError where it does not."""
    return await workflow.execute_activity_method(
        NodeActivities.save_checkpoint,
        SaveRequest(key=placement.key, within=spec.grace, reason="before another size"),
        task_queue=node_task_queue(placement.node_id),
        schedule_to_close_timeout=spec.grace + _TO_ANSWER,
        retry_policy=ONCE,
        summary=f"save before another size, rank {placement.rank}",
    )


async def record_save(placement: Placement, saved: CheckpointInfo) -> None:
    """Put on record that a job has saved, where nobody sees that in the store. The save counts
    whether that works or not."""
    if (saved.job_id, saved.attempt) != (placement.job_id, placement.attempt):
        return  # an agent's mistake: it says nothing of this attempt
    try:
        await workflow.execute_activity_method(
            CheckpointWatchActivities.record_saves,
            UnstoredSaves(saves=(saved,)),
            start_to_close_timeout=DATABASE_TIMEOUT,
            schedule_to_close_timeout=_TO_ANSWER,
            retry_policy=DATABASE_RETRY,
            summary="what the job saved on storage of its own",
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise


async def tell_size(placement: Placement, notice: SizeNotice) -> None:
    """Tell a process of the new size. Raises ActivityError where it cannot be told, as by an agent
    that knows nothing of that."""
    await workflow.execute_activity_method(
        NodeActivities.resize_process,
        notice,
        task_queue=node_task_queue(placement.node_id),
        start_to_close_timeout=DATABASE_TIMEOUT,
        schedule_to_close_timeout=TELL_SIZE_WITHIN,
        retry_policy=ELEMENTS_RETRY,
        summary=f"{count(notice.gpus, 'GPU')} from now on, to rank {placement.rank}",
    )


async def room_in_place(request: RoomRequest) -> str:
    """Return why a job that waits would not start, had these ranks left; or that nobody can say so
    soon. Then there is a change with a stop."""
    try:
        return await workflow.execute_activity_method(
            ResizeActivities.room_in_place,
            request,
            start_to_close_timeout=DATABASE_TIMEOUT,
            schedule_to_close_timeout=_TO_PLAN,
            retry_policy=DATABASE_RETRY,
            summary=f"would {request.for_job} start, if {named(request.leaving)}?",
        )
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        return f"that could not be planned ({error.cause or error})"


async def join(request: JoinRequest) -> JoinReply:
    """Have further ranks placed for an attempt that runs."""
    return await workflow.execute_activity_method(
        JoinActivities.join_ranks,
        request,
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=DATABASE_RETRY,
        summary=f"ranks join, for {count(request.gpus, 'GPU')}",
    )


async def leave(request: LeaveRequest) -> None:
    """End the leases of ranks that have left."""
    await workflow.execute_activity_method(
        ResizeActivities.leave_ranks,
        request,
        start_to_close_timeout=DATABASE_TIMEOUT,
        retry_policy=DATABASE_RETRY,
        summary=named(request.ranks),
    )
