"""From what a supervisor saw to the report that the job's workflow gets."""

import signal
from datetime import datetime
from typing import Any

from longshore.activities.failpoints import wall_clock
from longshore.activities.node.file_times import clamped_time
from longshore.activities.node.runs import RunRecord
from longshore.models.messages import TIME_ENDED
from longshore.models.node_messages import ProcessReport, Progress
from longshore.models.placement import PlacementKey
from longshore.models.retry import FailureClass

AGENT_STOPPED = "the agent stopped"
CUT_OFF = "the node was cut off from the server"
"""Reasons of stops that the agent itself decided on: the node's fault, not a user's request."""

_NODE_CAUSES = {
    "agent-gone": (FailureClass.NODE, "agent died: its processes were killed with it"),
    "both-gone": (
        FailureClass.NODE,
        "agent and supervisor died, and nobody saw the end: what was found of it was killed",
    ),
    "fenced": (
        FailureClass.NETWORK, "the node was cut off from the server and killed its processes"
    ),
    "supervisor-gone": (
        FailureClass.NODE, "the supervisor of the process was killed, and the process with it"
    ),
}  # fmt: skip
_STOPS = {
    AGENT_STOPPED: FailureClass.NODE,
    CUT_OFF: FailureClass.NETWORK,
    TIME_ENDED: FailureClass.NODE,
}

_NO_CONTAINER = 125
_NOT_STARTED = {
    _NO_CONTAINER: "the container could not be started (exit code 125); its stderr says why",
    126: "the command cannot be executed (exit code 126); its stderr says why",
    127: "command not found (exit code 127); its stderr says which",
}
"""What a shell and a container runtime say of a command that they could not start."""

_LATE = {
    True: ": it did not save in time and was killed",
    False: ": it did not end in time and was killed",
}
"""Of a process that still ran when its grace was over, by whether it has checkpoints."""


def report_of(
    record: RunRecord, end: dict[str, Any], started: dict[str, Any] | None, progress: Progress
) -> ProcessReport:
    """Return the report of a run.

    `end` is the supervisor's last word, or {"cause": ...} where it had none; `started` its
    first. The failure is None for success, and for a stop that somebody asked for.
    """
    if end["cause"] == "start":
        failure = FailureClass.START if end["code"] else FailureClass.NODE
        return never_started(failure, end["message"], end["code"])
    exit_code = _exit_code(end.get("status"))
    failure, message = _classify(record, end, exit_code)
    if left := end.get("leftovers"):
        processes, were = ("process", "was") if left == 1 else ("processes", "were")
        message += f"; {left} {processes} that it left behind {were} killed"
    if lost := unwritten(end):
        message += f"; {lost}"
    return ProcessReport(
        exit_code=exit_code,
        failure=failure,
        message=message,
        started_at=clamped_time(started["at"]) if started else None,
        ended_at=clamped_time(end["ended_at"]) if "ended_at" in end else None,
        stopped_for=record.stop_reason if end["cause"] == "stopped" else None,
        last_progress=progress,
    )


def unwritten(end: dict[str, Any]) -> str:
    """Return what is to be said of output that the disk did not take."""
    lost = end.get("unwritten")
    return f"{lost} bytes of its output are lost: the disk of the node was full" if lost else ""


def never_started(
    failure: FailureClass | None,
    message: str,
    exit_code: int | None = None,
    stopped_for: str | None = None,
) -> ProcessReport:
    """Return the report of a process that did not come to be."""
    return ProcessReport(
        exit_code=exit_code,
        failure=failure,
        message=message,
        ended_at=wall_clock(),
        stopped_for=stopped_for,
    )


def stopped_before_start(reason: str) -> ProcessReport:
    """Return the report of a process that was asked to stop before it came to be."""
    message = f"stopped before it started ({reason})"
    return never_started(_failure_of_stop(reason), message, stopped_for=reason)


def not_started(code: int, *, indirect: bool, in_image: bool) -> bool:
    """Return whether an exit code says that the command could not be started.

    125 is the word of a container runtime alone: other programs, as `git bisect run`, mean
    something else by it.
    """
    return indirect and code in _NOT_STARTED and (in_image or code != _NO_CONTAINER)


def never_to_start(key: PlacementKey, reason: str, now: datetime) -> RunRecord:
    """Return the record of an attempt that was stopped before it ever came here."""
    return RunRecord(
        job_id=key.job_id,
        attempt=key.attempt,
        epoch=0,
        claimed_at=now,
        stop_reason=reason,
        report=stopped_before_start(reason),
    )


def _classify(
    record: RunRecord, end: dict[str, Any], exit_code: int | None
) -> tuple[FailureClass | None, str]:
    cause, status = end["cause"], end.get("status")
    if cause == "supervisor-gone" and end.get("left"):
        left = f"{end['left']} processes that it left could not be ended"
        return FailureClass.NODE, f"the supervisor of the process was killed; {left}"
    if cause == "supervisor-gone" and record.stopped_as is not None:
        # Else a job that stops its own supervisor would run again after its time limit.
        killed = "its supervisor did not answer, and was killed with it"
        return record.stopped_as, f"stopped ({record.stop_reason}): {killed}"
    if cause in _NODE_CAUSES:
        return _NODE_CAUSES[cause]
    if cause == "stopped":
        failure = record.stopped_as or _failure_of_stop(record.stop_reason)
        late = _LATE[record.checkpoints] if end.get("overdue") else ""
        return failure, f"stopped ({record.stop_reason}), exit code {exit_code}{late}"
    if status == 0:
        return None, "finished"
    how = {"indirect": record.indirect, "in_image": record.in_image}
    if exit_code is not None and not_started(exit_code, **how):
        return FailureClass.START, _NOT_STARTED[exit_code]
    if exit_code == 128 + signal.SIGKILL and end.get("oom"):
        return FailureClass.OUT_OF_MEMORY, "killed by the kernel for lack of memory"
    if status is not None and status < 0:
        return FailureClass.USER, f"killed by signal {-status} ({signal.strsignal(-status)})"
    return FailureClass.USER, f"exited with code {exit_code}"


def _failure_of_stop(reason: str | None) -> FailureClass | None:
    """A stop that a job's workflow asked for is its to name; others are the node's fault."""
    return _STOPS.get(reason) if reason else None


def _exit_code(status: int | None) -> int | None:
    return 128 - status if status is not None and status < 0 else status
