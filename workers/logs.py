"""The logs of the control worker and the agents: lines for people, or JSON for machines.

Every record has what is known of its place: job, attempt, node, pool, workflow and activity. The
same warning again and again is written once in a while, with how often it came.
"""

import json
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from temporalio import activity, workflow

from longshore.activities.log_context import current
from longshore.models.addresses import without_secrets
from longshore.models.settings import Settings
from longshore.models.visible import visible

FIELDS = ("job", "attempt", "node", "pool", "workflow", "run", "activity", "activity_attempt")
"""What a record may be about, in the order in which it is shown."""
REPEAT_AFTER = 60.0
"""Seconds for which a warning is not written again."""
_REMEMBERED = 1000
_NO_FIELDS: dict[str, str | int] = {}
_KINDS = {"JobWorkflow": ("job", "job-"), "NodeWorkflow": ("node", "node-"),
          "PoolWorkflow": ("pool", "pool-")}  # fmt: skip


def set_up(settings: Settings, stream: TextIO | None = None, **fields: str) -> None:
    """Write all logs of this process to `stream` (stderr without), as the settings say.

    `fields` are those of the whole process, such as the node of an agent.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JSONLines() if settings.log_format == "json" else Lines())
    handler.addFilter(Placed(fields))
    handler.addFilter(SeldomAgain())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    logging.captureWarnings(True)  # Python's own would be lines of another form
    # They put a dict into the message; the fields of the record say it better.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False
    for noisy in ("httpx", "botocore", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class Placed(logging.Filter):
    """Notes on each record what it is about."""

    def __init__(self, process: Mapping[str, str | int]) -> None:
        super().__init__()
        self._process = process

    def filter(self, record: logging.LogRecord) -> bool:
        record.fields = {**self._process, **_of_temporal(record), **current()}
        return True


class SeldomAgain(logging.Filter):
    """Lets each warning through once in `REPEAT_AFTER` seconds, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key, now = (record.name, record.getMessage()), self._clock()
        written, kept_back = self._seen.get(key, (float("-inf"), 0))
        if now - written < REPEAT_AFTER:
            self._seen[key] = (written, kept_back + 1)
            return False
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        record.kept_back = kept_back
        return True


class Lines(logging.Formatter):
    """A line for people: time, level, name, message, and the fields behind it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        # Of messages and errors alike: both quote what people and jobs wrote. Line breaks stay.
        return visible(without_secrets(super().format(record)))

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        # A job's workflow is named as the job is: said once is enough.
        hidden = {"run", "workflow"} if {"job", "node", "pool"} & fields.keys() else {"run"}
        shown = {name: value for name, value in fields.items() if name not in hidden}
        again = _kept_back(record)
        parts = [super().formatMessage(record)]
        if again:
            parts.append(f"(and {again} times before)")
        if shown:
            parts.append("[" + " ".join(f"{key}={value}" for key, value in shown.items()) + "]")
        return " ".join(parts)


class JSONLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields, and the error."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if again := _kept_back(record):
            line["repeats"] = again
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return without_secrets(json.dumps(line, default=str, ensure_ascii=False))


def _of_temporal(record: logging.LogRecord) -> Mapping[str, str | int]:
    """Return what Temporal knows of the code that wrote a record."""
    if activity.in_activity():
        info = activity.info()
        return {
            **_of_workflow(info.workflow_type or "", info.workflow_id or ""),
            "workflow": info.workflow_id or "",
            "run": info.workflow_run_id or "",
            "activity": info.activity_type,
            "activity_attempt": info.attempt,
        }
    said: Mapping[str, Any] = getattr(record, "temporal_workflow", _NO_FIELDS)
    if "workflow_id" not in said:
        return _NO_FIELDS
    return {
        **_of_workflow(str(said.get("workflow_type", "")), str(said["workflow_id"])),
        "workflow": str(said["workflow_id"]),
        "run": str(said.get("run_id", "")),
    }


def _of_workflow(kind: str, workflow_id: str) -> dict[str, str | int]:
    """Return what a workflow stands for: its job, its node or its pool."""
    if kind not in _KINDS:
        return {}
    name, prefix = _KINDS[kind]
    return {name: workflow_id.removeprefix(prefix)}


def _fields(record: logging.LogRecord) -> dict[str, str | int]:
    fields: Mapping[str, str | int] = getattr(record, "fields", _NO_FIELDS)
    ordered = {name: fields[name] for name in FIELDS if fields.get(name)}
    return ordered | {name: value for name, value in fields.items() if name not in FIELDS}


def _kept_back(record: logging.LogRecord) -> int:
    return getattr(record, "kept_back", 0)
