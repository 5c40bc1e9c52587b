"""Elements of an array per second, beside as many single jobs as are worth waiting for.

    python -m benchmarks.arrays [--elements N] [--jobs N] [--slots N] [--json]

An installation of its own (Temporal, PostgreSQL, control worker, an agent of simulated GPUs) runs
an array of no-op elements (the command `true`, each a process of its own), and then single jobs of
the same command, as many under way as the array has slots. Both are timed from the submit to the
client's hearing of the end of all.

Actions are what Temporal Cloud bills: of the array's own workflow and of all its slots, by
element; of the jobs' workflows, by job. Heartbeats, of which a history does not tell, are counted
as one for each 18 s that a batch ran. Those of the pool, which many jobs share, are not in either.

Where a Slurm answers here (`scontrol ping`), the same array goes there too, with `sbatch --array`
and the same limit, and is waited for; elsewhere a line says that it was left out.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError

from benchmarks.installation import forget_environment, installed
from longshore.activities.node.process import ELEMENTS_INTERVAL
from longshore.client.api import Longshore
from longshore.client.costs import billed
from longshore.client.process import leave, run
from longshore.models.elements import ElementState
from longshore.models.job import JobSpec, JobState
from longshore.models.messages import job_workflow_id
from longshore.models.settings import Settings

SPEC = JobSpec(name="noop", command=("true",))


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
    slurm_per_s: float | None
    """None where no Slurm answers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--elements", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=500, help="single jobs beside it")
    parser.add_argument("--slots", type=int, default=8, help="elements, and jobs, at a time")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    forget_environment()
    report = run(measure(arguments.elements, arguments.jobs, arguments.slots))
    print(json.dumps(asdict(report), indent=2) if arguments.json else _told(report))
    leave(0)


async def measure(elements: int, jobs: int, slots: int) -> Report:
    """Run both, one after the other, on one installation."""
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
        slurm_per_s=slurm(elements, slots),
    )  # fmt: skip


def slurm(elements: int, slots: int) -> float | None:
    """Return the elements a second of Slurm's own array; None where none answers."""
    if shutil.which("sbatch") is None or shutil.which("scontrol") is None:
        return None
    ping = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False)
    if ping.returncode or "UP" not in ping.stdout:
        return None
    began = time.perf_counter()
    subprocess.run(
        [
            "sbatch", "--quiet", f"--array=0-{elements - 1}%{slots}", "--output=/dev/null",
            "--wait", "--wrap=true",
        ],
        check=True,
    )  # fmt: skip
    return elements / (time.perf_counter() - began)


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
        "slurm   " + (
            f"{report.slurm_per_s:,.0f}/s" if report.slurm_per_s
            else "left out: no Slurm answers here (scontrol ping)"
        ),
    )  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
