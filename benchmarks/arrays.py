"""Elements of an array per second, beside as many single jobs as are worth waiting for.

    python -m benchmarks.arrays [--elements N] [--jobs N] [--slots N] [--json]

An installation of its own (Temporal, PostgreSQL, control worker, an agent of simulated GPUs) runs
an array of no-op elements (the command `true`, each a process of its own), and then single jobs of
the same command, as many under way as the array has slots. Both are timed from the submit to the
client's hearing of the end of all.

Actions are what Temporal Cloud bills: of the array's own workflow and of all its slots, by
element; of the jobs' workflows, by job. Heartbeats, of which a history does not tell, are counted
as one for each 18 s that a batch ran. Those of the pool, which many jobs share, are not in either.

Where Slurm is installed (Debian: `apt install slurmctld slurmd slurm-client`), the same array goes
there too, or its first `--slurm-elements`: a `slurmctld` and a `slurmd` of its own, with a node of
as many processors as the array has slots, run `sbatch --array --wait`. Its SchedulerParameters are
named, and can be given; with few slots Slurm is bound by its passes, one or so a second, and with
hundreds (`--slots 256`) by the processor. Elsewhere a line says that it was left out.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError

from benchmarks.costs import billed
from benchmarks.installation import forget_environment, installed
from benchmarks.slurm_controller import MISSING_TO_RUN, Controller, running_slurm
from longshore.activities.node.process import ELEMENTS_INTERVAL
from longshore.client.api import Longshore
from longshore.client.process import leave, run
from longshore.models.elements import ElementState
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import job_workflow_id
from longshore.models.settings import Settings

SPEC = JobSpec(name="noop", command=("true",))
PARAMETERS = "sched_min_interval=0,sched_interval=1,batch_sched_delay=0,bf_interval=1"
"""Slurm looks for work as often as it can: what a site sets for many short jobs."""


@dataclass(frozen=True)
class Report:
    """What was measured."""

    elements: int
    slots: int
    """At a time at most."""
    opened: int
    """Slots over the whole array."""
    batches: int
    array_seconds: float
    elements_per_s: float
    jobs: int
    jobs_seconds: float
    jobs_per_s: float
    ratio: float
    """elements / jobs, per second."""
    actions_per_element: float
    heartbeats: int
    """Of the actions of the array."""
    actions_per_job: float
    slurm: str
    """Its version; empty where it is not installed."""
    slurm_elements: int
    slurm_per_s: float | None
    scheduler_parameters: str


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--elements", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=500, help="single jobs beside it")
    parser.add_argument("--slots", type=int, default=8, help="elements, and jobs, at a time")
    parser.add_argument("--slurm-elements", type=int, default=500, help="at most; 0 for none")
    parser.add_argument("--slurm-parameters", default=PARAMETERS, help="SchedulerParameters")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    forget_environment()
    report = run(measure(arguments))
    print(json.dumps(asdict(report), indent=2) if arguments.json else _told(report))
    leave(0)


async def measure(asked: argparse.Namespace) -> Report:
    """Run both, one after the other, on one installation; then Slurm's."""
    elements, jobs, slots = asked.elements, asked.jobs, asked.slots
    with installed({"node-1": f"{slots}xH100-80GB"}) as stack:
        api = await Longshore.connect(Settings(state_dir=stack.folder))
        temporal = await Client.connect(stack.temporal.address)
        try:
            await _array(api, slots, slots)  # the first of everything takes longer
            await _jobs(api, slots, slots)
            array_id, took = await _array(api, elements, slots)
            opened, batches, actions, heartbeats = await _cost(temporal, array_id)
            ids, jobs_took = await _jobs(api, jobs, slots)
            histories = [await _history(temporal, job_id) for job_id in ids[:20]]
        finally:
            await api.close()
    each = sum(billed(history).total() for history in histories) / len(histories)
    return Report(
        elements=elements, slots=slots, opened=opened, batches=batches, array_seconds=took,
        elements_per_s=elements / took, jobs=jobs, jobs_seconds=jobs_took,
        jobs_per_s=jobs / jobs_took, ratio=elements / took / (jobs / jobs_took),
        actions_per_element=actions / elements, heartbeats=heartbeats, actions_per_job=each,
        **slurm(min(elements, asked.slurm_elements), slots, asked.slurm_parameters),
    )  # fmt: skip


def slurm(elements: int, slots: int, parameters: str) -> dict[str, Any]:
    """Return what Slurm's own array of so many elements came to, as fields of the report."""
    found: dict[str, Any] = {
        "slurm": "", "slurm_elements": elements, "slurm_per_s": None,
        "scheduler_parameters": parameters,
    }  # fmt: skip
    if MISSING_TO_RUN or not elements:
        return found
    with running_slurm(slots, parameters) as controller:
        _slurm_array(controller, slots, slots)  # the first of everything takes longer
        began = time.perf_counter()
        _slurm_array(controller, elements, slots)
        per_s = elements / (time.perf_counter() - began)
        return found | {"slurm": controller.version, "slurm_per_s": per_s}


def _slurm_array(controller: Controller, elements: int, slots: int) -> None:
    controller.said(
        "sbatch", "--quiet", f"--array=0-{elements - 1}%{slots}", "--ntasks=1", "--mem=1M",
        "--chdir=/", "--output=/dev/null", "--wait", "--wrap=true",
    )  # fmt: skip


async def _array(api: Longshore, elements: int, slots: int) -> tuple[str, float]:
    began = time.perf_counter()
    spec = JobSpec.model_validate(
        {**SPEC.model_dump(), "array": {"indices": f"0-{elements - 1}", "limit": slots}}
    )
    array_id = (await api.submit(spec)).job_id
    result = await api.wait(array_id)
    took = time.perf_counter() - began
    view = (await api.report(array_id)).array
    if result.state is not JobState.SUCCEEDED or view is None:
        sys.exit(f"{array_id} ended as {result.state}: {result.message}")
    if view.counts != {ElementState.SUCCEEDED: elements} or view.attempts != elements:
        sys.exit(f"{array_id} ran {view.attempts} attempts of {elements} elements: {view.counts}")
    return array_id, took


async def _jobs(api: Longshore, jobs: int, under_way: int) -> tuple[list[str], float]:
    left = iter(range(jobs))

    async def lane() -> list[str]:
        ids: list[str] = []
        for _ in left:
            job_id = (await api.submit(SPEC)).job_id
            ids.append(job_id)
            result = await api.wait(job_id)
            if result.state is not JobState.SUCCEEDED:
                sys.exit(f"{job_id} ended as {result.state}: {result.message}")
        return ids

    began = time.perf_counter()
    lanes = await asyncio.gather(*(lane() for _ in range(under_way)))
    return [job_id for ids in lanes for job_id in ids], time.perf_counter() - began


async def _cost(temporal: Client, array_id: str) -> tuple[int, int, int, int]:
    """Return slots, batches, actions with heartbeats, and heartbeats of an array."""
    own = await _history(temporal, array_id)
    slots: list[WorkflowHistory] = []
    with contextlib.suppress(RPCError):  # after the last there is none
        while True:
            slots.append(await _history(temporal, f"{array_id}.s{len(slots) + 1}"))
    heartbeats = sum(map(_heartbeats, slots))
    actions = sum(billed(each).total() for each in (own, *slots)) + heartbeats
    return len(slots), sum(_started(each)["run_elements"] for each in slots), actions, heartbeats


def _started(history: WorkflowHistory) -> Counter[str]:
    return Counter(
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    )


def _heartbeats(history: WorkflowHistory) -> int:
    """Return how many heartbeats the batches of a slot sent, by how long they ran."""
    begun: dict[int, float] = {}
    count = 0
    for event in history.events:
        at = event.event_time.ToMilliseconds() / 1000
        asked = event.activity_task_scheduled_event_attributes
        if asked.activity_type.name == "run_elements":
            begun[event.event_id] = at
        for ended in (
            event.activity_task_completed_event_attributes,
            event.activity_task_canceled_event_attributes,
        ):
            if ended.scheduled_event_id in begun:
                count += int((at - begun[ended.scheduled_event_id]) / (0.9 * ELEMENTS_INTERVAL))
    return count


async def _history(temporal: Client, job_id: str) -> WorkflowHistory:
    return await temporal.get_workflow_handle(job_workflow_id(job_id)).fetch_history()


def _told(report: Report) -> str:
    lines: Sequence[str] = (
        f"array   {report.elements:,} elements in {report.array_seconds:.1f} s: "
        f"{report.elements_per_s:,.0f}/s, {report.actions_per_element:.4f} actions an element "
        f"({report.heartbeats} heartbeats), {report.opened} slots, {report.batches} batches",
        f"jobs    {report.jobs:,} jobs in {report.jobs_seconds:.1f} s: {report.jobs_per_s:.1f}/s, "
        f"{report.actions_per_job:.1f} actions a job",
        f"ratio   {report.ratio:.0f}",
        "slurm   " + _slurm_told(report),
    )  # fmt: skip
    return "\n".join(lines)


def _slurm_told(report: Report) -> str:
    if report.slurm_per_s is None:
        missing = ", ".join(MISSING_TO_RUN)
        return f"left out: {f'{missing} not installed' if missing else 'as asked'}"
    faster = report.elements_per_s / report.slurm_per_s
    return (
        f"{report.slurm_elements:,} elements of {report.slurm}'s own array with as many slots: "
        f"{report.slurm_per_s:,.0f}/s; the array above is {faster:.1f} times as fast "
        f"(SchedulerParameters={report.scheduler_parameters})"
    )


if __name__ == "__main__":
    main()
