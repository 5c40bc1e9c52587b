"""One look at what running jobs would lose, which a schedule starts again and again."""

import asyncio
from collections import defaultdict
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from longshore.activities.checkpoints.watch import CheckpointWatchActivities
    from longshore.activities.node.process import NodeActivities
    from longshore.models.checkpoint import CheckpointInfo
    from longshore.models.checkpointing import (
        CHECKPOINT_WATCH_WORKFLOW,
        CheckpointWatchReport,
        NodeSave,
        UnstoredSaves,
    )
    from longshore.models.messages import node_task_queue

_POLL_TIMEOUT = timedelta(minutes=2)
_A_FEW_TIMES = RetryPolicy(maximum_attempts=3)
_ONCE = RetryPolicy(maximum_attempts=1)
"""The next look is never far, and decides anew."""
_NODE_ANSWERS_WITHIN = timedelta(seconds=10)
_HEARTBEAT = timedelta(seconds=30)


@workflow.defn(name=CHECKPOINT_WATCH_WORKFLOW)
class CheckpointWatchWorkflow:
    """Run by the schedule; two at a time ask a job twice, which does no harm."""

    @workflow.run
    async def run(self) -> CheckpointWatchReport:
        look = await workflow.execute_activity_method(
            CheckpointWatchActivities.decide_saves,
            start_to_close_timeout=_POLL_TIMEOUT,
            retry_policy=_A_FEW_TIMES,
            summary="what would be lost, and what a save costs",
        )
        answers = await asyncio.gather(*(_ask(save) for save in look.saves))
        failed: defaultdict[str, list[str]] = defaultdict(list)
        unstored: dict[str, CheckpointInfo] = {}
        for save, answer in zip(look.saves, answers, strict=True):
            key = save.request.key
            if isinstance(answer, str):
                failed[key.job_id].append(f"{save.node_id}: {answer}")
            elif not answer.published and (answer.job_id, answer.attempt) == (
                key.job_id, key.attempt,
            ):  # fmt: skip
                unstored.setdefault(key.job_id, answer)
        # Nobody sees these saves in the store. Of ranks that save into one folder one does.
        if unstored and workflow.patched("records-unstored-saves"):
            await workflow.execute_activity_method(
                CheckpointWatchActivities.record_saves,
                UnstoredSaves(saves=tuple(unstored.values())),
                start_to_close_timeout=_POLL_TIMEOUT,
                retry_policy=_A_FEW_TIMES,
                summary="what jobs saved on storage of their own",
            )
        report = CheckpointWatchReport(
            looked=look.looked,
            asked=tuple(dict.fromkeys(save.request.key.job_id for save in look.saves)),
            failed={job_id: "; ".join(said) for job_id, said in failed.items()},
            away=look.away,
        )
        workflow.set_current_details(_in_words(report))
        return report


async def _ask(save: NodeSave) -> CheckpointInfo | str:
    """Have one node save; return what it saved, or why it did not."""
    try:
        saved = await workflow.execute_activity_method(
            NodeActivities.save_checkpoint,
            save.request,
            task_queue=node_task_queue(save.node_id),
            schedule_to_start_timeout=_NODE_ANSWERS_WITHIN,
            start_to_close_timeout=save.request.within + _NODE_ANSWERS_WITHIN,
            heartbeat_timeout=_HEARTBEAT,
            retry_policy=_ONCE,
            summary=f"save {save.request.key.job_id}: {save.request.reason}",
        )
    except ActivityError as error:
        return str(error.cause or error)
    return saved if saved.is_known else "what it answered cannot be read"


def _in_words(report: CheckpointWatchReport) -> str:
    lines = [f"{report.looked} running jobs can save; {len(report.asked)} were asked to.", ""]
    lines += [f"- {job_id}: {why}" for job_id, why in sorted(report.failed.items())]
    lines += [f"- pool {pool}: {why}" for pool, why in sorted(report.away.items())]
    return "\n".join(lines)
