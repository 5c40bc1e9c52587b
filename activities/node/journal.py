"""What the journal of a batch tells: which elements were started, and how they ended."""

import contextlib
import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.activities.node.element_runner import JOURNAL, UNWRITTEN
from longshore.activities.node.file_times import clamped_time
from longshore.activities.node.outcome import not_started, unwritten
from longshore.activities.node.time_limit import passed
from longshore.models.elements import LONGEST_ERROR, BatchReport, ElementResult, Span
from longshore.models.node_messages import ProcessReport
from longshore.models.retry import FailureClass
from longshore.models.visible import visible

_LAST_BYTES = 4096


def batch_report(
    folder: Path, *, indirect: bool, over: ProcessReport | None = None
) -> BatchReport:
    """Return what has become of the elements of a run folder.

    `over` is how the batch as a whole ended, once it has: an element that was started and has no
    end went down with it. `indirect` says that a shell looks for the command.
    """
    results: list[ElementResult] = []
    begun: dict[str, Any] | None = None
    for line in _lines(folder / JOURNAL):
        if "left_out" in line:
            results.append(
                ElementResult(
                    index=line["left_out"], attempt=line["attempt"], cancelled=True,
                    ended_at=clamped_time(line["at"]),
                )
            )  # fmt: skip
        elif "start" in line:
            begun = line
        elif begun is not None:
            results.append(_result(folder, begun, line, indirect=indirect))
            begun = None
    if begun is not None and over is not None:
        results.append(_went_down(folder, begun, over))
    return BatchReport(results=tuple(results))


def as_whole(report: ProcessReport) -> ProcessReport:
    """Return the report of a batch: its elements' exit codes are not its own."""
    if report.failure not in (FailureClass.USER, FailureClass.OUT_OF_MEMORY):
        return report.model_copy(update={"exit_code": None})
    why = f"what runs its elements on the node {report.message}"
    return report.model_copy(
        update={"failure": FailureClass.NODE, "message": why, "exit_code": None}
    )


def _result(
    folder: Path, begun: dict[str, Any], end: dict[str, Any], *, indirect: bool
) -> ElementResult:
    out = Span(offset=begun["out"], length=max(end["out"] - begun["out"], 0))
    err = Span(offset=begun["err"], length=max(end["err"] - begun["err"], 0))
    status = end.get("status")
    code = end["code"] if status is None else 128 - status if status < 0 else status
    limit = None if end.get("cancelled") else end.get("time_limit")
    stopped = limit is None and bool(end.get("stopped") or end.get("cancelled"))
    failure = None if stopped else _failure(code, end, indirect=indirect)
    error = ""
    if limit is not None:
        failure, error = FailureClass.TIME_LIMIT, passed(timedelta(seconds=limit))
    elif code and (failure is not None or stopped):
        error = end.get("message") or _last_line(folder, err, out) or _said(status, code)
    error = "; ".join(filter(None, (error, unwritten(end))))
    return ElementResult(
        index=begun["start"], attempt=begun["attempt"], exit_code=code, failure=failure,
        stopped=stopped, cancelled=bool(end.get("cancelled")), error=error,
        started_at=clamped_time(begun["at"]), ended_at=clamped_time(end["at"]),
        stdout=out, stderr=err,
    )  # fmt: skip


def _failure(code: int, end: dict[str, Any], *, indirect: bool) -> FailureClass | None:
    if code == 0:
        return None
    if "message" in end or not_started(code, indirect=indirect, in_image=False):
        return FailureClass.START
    if code == 128 + signal.SIGKILL and end.get("oom"):
        return FailureClass.OUT_OF_MEMORY
    return FailureClass.USER


def _went_down(folder: Path, begun: dict[str, Any], over: ProcessReport) -> ElementResult:
    by_stop = over.stopped_for is not None and over.failure is None
    lost = unwritten({"unwritten": _number(folder / UNWRITTEN)})
    out, err = (
        Span(offset=begun[key], length=max(_size(folder / stream) - begun[key], 0))
        for key, stream in (("out", "stdout"), ("err", "stderr"))
    )
    return ElementResult(
        index=begun["start"], attempt=begun["attempt"],
        exit_code=128 + signal.SIGKILL if by_stop else None,
        failure=None if by_stop else over.failure or FailureClass.NODE,
        stopped=by_stop, error="; ".join(filter(None, (over.message[:LONGEST_ERROR], lost))),
        started_at=clamped_time(begun["at"]), ended_at=over.ended_at, stdout=out, stderr=err,
    )  # fmt: skip


def _said(status: int | None, code: int) -> str:
    if status is not None and status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    return f"exited with code {code}"


def _last_line(folder: Path, err: Span, out: Span) -> str:
    for stream, span in (("stderr", err), ("stdout", out)):
        if not span.length:
            continue
        length = min(span.length, _LAST_BYTES)
        with contextlib.suppress(OSError), (folder / stream).open("rb") as file:
            file.seek(span.offset + span.length - length)
            text = file.read(length).decode(errors="replace").rstrip()
            if text:
                return visible(text.splitlines()[-1])[:LONGEST_ERROR]
    return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _number(path: Path) -> int:
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return 0


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines; the last may be cut off where its writer was killed."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    lines = list[dict[str, Any]]()
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    return lines
