"""The replay gate: workflows of this version go on with the histories of those before.

`make histories` records anew. Do that for a new path; a failure here for an old one means that
running workflows would fail after an upgrade: use `workflow.patched`, or keep the old order.
"""

import base64
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from longshore.client.payloads import data_converter
from longshore.workers.control import workflow_runner
from longshore.workers.versioning import VERSIONED_WORKFLOWS, WORKFLOWS
from longshore.workflows import (
    block,
    buying,
    job,
    market,
    node,
    pool,
    purchase,
    reconcile,
)
from longshore.workflows.arguments import FittingArguments
from tests.support.local_stack import ROOT

HISTORIES = sorted((ROOT / "tests" / "histories").glob("*.json"))

COMPLETED = "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"
FAILED = "EVENT_TYPE_WORKFLOW_EXECUTION_FAILED"
CANCELED = "EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED"
CONTINUED = "EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW"

PATHS = {
    "schedule-succeeds-2026-11-01T020000Z": COMPLETED,
    "schedule-fails-2026-11-01T020000Z": FAILED,
    "schedule-cancelled-2026-11-01T020000Z": CANCELED,
    "schedule-takes-over-2026-11-01T020000Z": COMPLETED,
    "job-begun": COMPLETED,
    "job-begun-held": COMPLETED,
    "job-priced": COMPLETED,
    "job-recalled": COMPLETED,
    "price-priced": COMPLETED,
    "service-served": CONTINUED,
    "job-success": COMPLETED,
    "job-user-failure": FAILED,
    "job-retry": COMPLETED,
    "job-cancelled-queued": CANCELED,
    "job-cancelled-unanswered": CANCELED,
    "job-cancelled-running": CANCELED,
    "job-held": COMPLETED,
    "job-held-queued": COMPLETED,
    "job-node-lost": FAILED,
    "job-preempted": COMPLETED,
    "job-moved": COMPLETED,
    "job-resized": COMPLETED,
    "job-grown": COMPLETED,
    "job-in-place-counts": COMPLETED,
    "job-in-place-grown-in-vain": COMPLETED,
    "job-in-place-for-nobody": COMPLETED,
    "job-in-place-resized": COMPLETED,
    "job-in-place-preempted": COMPLETED,
    "job-in-place-refused": COMPLETED,
    "job-in-place-node-lost": FAILED,
    "job-displaced-early": COMPLETED,
    "job-gang-moved": COMPLETED,
    "job-gang-swapped": FAILED,
    "job-queue-timeout": FAILED,
    "job-unsatisfiable": FAILED,
    "job-start-failures": FAILED,
    "job-time-limit": CONTINUED,
    "job-time-limit.2": FAILED,
    "job-prepared": COMPLETED,
    "job-prepared-in-vain": COMPLETED,
    "job-prepared-elsewhere": COMPLETED,
    "node-preparing": COMPLETED,
    "job-ended-while-cut-off": COMPLETED,
    "job-continued-as-new": CONTINUED,
    "job-continued-as-new.2": COMPLETED,
    "pool-cycles": None,
    "pool-continued-as-new": CONTINUED,
    "pool-continued-as-new.2": CONTINUED,
    "node-registered-drained-left": COMPLETED,
    "node-lost": COMPLETED,
    "node-re-registered": COMPLETED,
    "node-left": COMPLETED,
    "node-continued-as-new": CONTINUED,
    "node-continued-as-new.2": COMPLETED,
    "reconcile-mended": COMPLETED,
    "reconcile-settled": COMPLETED,
    "ping": COMPLETED,
    "job-array-some-cancelled": FAILED,
    "job-array-some-cancelled.s1": COMPLETED,
    "job-array-cancelled": CANCELED,
    "job-array-cancelled.s1": CANCELED,
    "job-array-continues": CONTINUED,
    "job-array-fails": FAILED,
    "job-array-named": COMPLETED,
    "job-array-told": COMPLETED,
    "dag-succeeds": COMPLETED,
    "dag-fails": FAILED,
    "dag-told": COMPLETED,
    "dag-cancelled": CANCELED,
    "dag-job-cancelled": FAILED,
    "dag-corresponding": FAILED,
    "job-corresponding.train": FAILED,
    "dag-continues": CONTINUED,
    "dag-continues.2": CONTINUED,
    "market-watch": COMPLETED,
    "checkpoint-watch-asked": COMPLETED,
    "checkpoint-watch-refused": COMPLETED,
    "checkpoint-watch-unstored": COMPLETED,
    "purchase-machine-ended": COMPLETED,
    "purchase-given-up": COMPLETED,
    "purchase-ready": COMPLETED,
    "purchase-refused": COMPLETED,
    "purchase-stopped": COMPLETED,
    "purchase-repriced": COMPLETED,
    "purchase-silent": COMPLETED,
    "purchase-late-fill": COMPLETED,
    "block-ready.1": COMPLETED,
    "buying-buys": COMPLETED,
    "block-silent.1": COMPLETED,
    "block-sold.1": COMPLETED,
    "block-renewed.1": COMPLETED,
    "block-given-up.1": COMPLETED,
    "block-let-go.1": COMPLETED,
    "block-machine-ended.1": COMPLETED,
    "purchase-p-32430edca820-r-1": COMPLETED,
    "block-p-32430edca820-r-1.1": COMPLETED,
}
"""Every path that is recorded, and the event that ends it; a pool has no end."""

UNRECORDED = {
    "every-loss",
    "history-is-its-own",
    "hung-agents",
    "input-bounds",
    "job-ids",
    "known-fields",
    "losses-in-one",
    "node-of-another-id",
    "one-refusal",
    "one-window",
    "own-ids",
    "process-bounds",
    "queue-timeout-once",
    "sizes-in-turn",
    "stop-bounds",
    "stops-silent",
    "tells-late",
    "wait-after-cut",
}
"""Changes of earlier versions whose paths take what no scene does: workflow tests go them."""

CHANGES = {
    "job-success": (
        job,
        "                refusal = await self._enqueue()\n",
        "                await workflow.sleep(1)\n",
    ),
    "pool-cycles": (
        pool,
        "        reply = await workflow.execute_activity_method(\n",
        "        await workflow.sleep(1)\n",
    ),
    "node-registered-drained-left": (
        node,
        "        self._watches += 1\n",
        "        await workflow.sleep(1)\n",
    ),
    "reconcile-mended": (
        reconcile,
        "        report = await workflow.execute_activity_method(\n",
        "        await workflow.sleep(1)\n",
    ),
    "market-watch": (
        market,
        "        report = await workflow.execute_activity_method(\n",
        "        await workflow.sleep(1)\n",
    ),
    "purchase-ready": (
        purchase,
        "        opened = await steps.open_purchase(self._request)\n",
        "        await workflow.sleep(1)\n",
    ),
    "buying-buys": (
        buying,
        "        bought = await workflow.execute_activity_method(\n",
        "        await workflow.sleep(1)\n",
    ),
    "block-ready.1": (
        block,
        "            look = await self._look(look)\n",
        "            await workflow.sleep(1)\n",
    ),
}
"""A history, and a change to its workflow that it must not survive: one more timer before."""
_CLASSES = tuple(zip(WORKFLOWS, VERSIONED_WORKFLOWS, strict=True))
"""Of each type the class of a plain worker, and that of a version: often the same."""


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_history_replays(path: Path):
    """Also as a version of a worker runs it, where that is another class."""
    history = _history(path)
    name = history.events[0].workflow_execution_started_event_attributes.workflow_type.name
    (found,) = (each for each in _CLASSES if each[0].__name__ == name)
    # A replayer prepares each class that it is given: all would take twice the time.
    for defn in dict.fromkeys(found):
        replayer = Replayer(
            workflows=[defn],
            data_converter=data_converter,
            workflow_runner=workflow_runner(strict=True),
        )
        await replayer.replay_workflow(history)


@pytest.mark.parametrize(
    "beyond",
    [
        {"expected_duration": "99999h"},
        {"command": ["x" * 130_000] * 16},
        {"command": ["x"] * 10_001, "conformance": {"allowed": ["a"] * 2000}},
        {"checkpoint": {"folder": "c", "save_signal": "SIG" + "A" * 2_000_000}},
    ],
    ids=["duration", "bytes", "entries", "signal"],
)
async def test_a_job_that_an_earlier_version_took_beyond_the_bounds_replays(
    beyond: dict[str, object],
):
    content = json.loads(_path("job-success").read_text())
    (payload,) = content["events"][0]["workflowExecutionStartedEventAttributes"]["input"][
        "payloads"
    ]
    taken = json.loads(base64.b64decode(payload["data"]))
    taken["spec"] |= beyond
    payload["data"] = base64.b64encode(json.dumps({**taken, "misspelt": 1}).encode()).decode()
    replayer = Replayer(
        workflows=[job.JobWorkflow],
        data_converter=data_converter,
        workflow_runner=workflow_runner(strict=True),
    )
    await replayer.replay_workflow(WorkflowHistory.from_json("job-success", content))


@pytest.mark.parametrize("name", ["pool-cycles", "node-left", "block-ready.1", "buying-buys"])
async def test_what_an_earlier_version_took_under_another_id_replays(name: str):
    replayer = Replayer(
        workflows=WORKFLOWS,
        data_converter=data_converter,
        workflow_runner=workflow_runner(strict=True),
        interceptors=[FittingArguments()],
    )
    await replayer.replay_workflow(WorkflowHistory.from_json("foo", _path(name).read_text()))


def test_every_workflow_and_every_path_is_recorded():
    recorded = {path.stem for path in HISTORIES}
    assert PATHS.keys() <= recorded
    types = {_events(path)[0]["workflowExecutionStartedEventAttributes"]["workflowType"]["name"]
             for path in HISTORIES}  # fmt: skip
    assert types == {defn.__name__ for defn in WORKFLOWS}


def test_every_change_of_a_workflow_is_in_a_history():
    """By the ids given to `workflow.patched`: a new one comes with a recorded path."""
    recorded: set[str] = set()
    for path in HISTORIES:
        for event in json.loads(path.read_text())["events"]:
            if marker := event.get("markerRecordedEventAttributes"):
                (payload,) = marker["details"]["patch-data"]["payloads"]
                recorded.add(json.loads(base64.b64decode(payload["data"]))["id"])
    changes: set[str] = set()
    for source in (ROOT / "workflows").glob("*.py"):
        code = source.read_text()
        named = dict(re.findall(r'^(_[A-Z_]+) = "([a-z-]+)"$', code, re.MULTILINE))
        asked: list[str] = re.findall(r"workflow\.patched\(([^)]+)\)", code)
        changes |= {named.get(each, each.strip('"')) for each in asked}
    assert changes - recorded == UNRECORDED


@pytest.mark.parametrize(("name", "end"), PATHS.items())
def test_a_recorded_history_ends_as_its_path_says(name: str, end: str | None):
    last = _events(_path(name))[-1]["eventType"]
    assert last == end if end else last not in (COMPLETED, FAILED, CANCELED, CONTINUED)


@pytest.mark.parametrize("name", CHANGES)
async def test_a_changed_workflow_does_not_replay(name: str, tmp_path: Path):
    module, before, addition = CHANGES[name]
    changed = _changed_copy(module, before, addition, tmp_path)
    classes = [each for each in vars(changed).values() if _is_workflow(each)]
    replayer = Replayer(
        workflows=classes,
        data_converter=data_converter,
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    with pytest.raises(workflow.NondeterminismError):
        await replayer.replay_workflow(_history(_path(name)))


async def test_an_unchanged_copy_replays(tmp_path: Path):
    for name, (module, before, _) in CHANGES.items():
        same = _changed_copy(module, before, "", tmp_path)
        replayer = Replayer(
            workflows=[each for each in vars(same).values() if _is_workflow(each)],
            data_converter=data_converter,
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        await replayer.replay_workflow(_history(_path(name)))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_recorded_history_names_no_machine(path: Path):
    text = path.read_text()
    said = text + "".join(
        base64.b64decode(data).decode(errors="replace")
        for data in re.findall(r'"data": "([A-Za-z0-9+/=]+)"', text)
    )
    for private in (str(ROOT), str(Path.home()), "/tmp/", "/usr/", "site-packages", "postgres"):
        assert private not in said
    by = set(re.findall(r'"identity": "(.*?)"', said))
    assert by - {"history-service"} == {"recorder"}  # the server, for a signal of a workflow


def _path(name: str) -> Path:
    return ROOT / "tests" / "histories" / f"{name}.json"


def _history(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.name.partition(".")[0], path.read_text())


def _events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["events"]


def _changed_copy(module: ModuleType, before: str, addition: str, folder: Path) -> ModuleType:
    """Return a copy of the module with `addition` in front of the line `before`."""
    assert module.__file__
    source = Path(module.__file__).read_text()
    assert source.count(before) == 1, f"say anew which line of {module.__name__} to change"
    copy = folder / f"{module.__name__.rpartition('.')[2]}_copy.py"
    copy.write_text(source.replace(before, addition + before))
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _is_workflow(each: object) -> bool:
    return hasattr(each, "__temporal_workflow_definition")
