"""Starting a job's workflow: what it is given beside its input."""

import hashlib
import json
import shlex
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import yaml
from temporalio.client import Client
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from longshore.models import search
from longshore.models.dag import DagSpec, in_our_words
from longshore.models.job import ASSUMED_DURATION, JobSpec
from longshore.models.job_status import JobState
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    JobInput,
    job_workflow_id,
    workflow_of,
)
from longshore.models.service import ServiceSpec
from longshore.models.text import count
from longshore.models.units import format_gb, format_gb_per_second, format_watts
from longshore.models.visible import visible

JOB_STATE = SearchAttributeKey.for_keyword(search.JOB_STATE)
NODE_ID = SearchAttributeKey.for_keyword(search.NODE_ID)
FUNDING_CLASS = SearchAttributeKey.for_keyword(search.FUNDING_CLASS)
_TENANT = SearchAttributeKey.for_keyword(search.TENANT)
_POOL = SearchAttributeKey.for_keyword(search.POOL)
_DAG = SearchAttributeKey.for_keyword(search.DAG)
_GPU_TYPE = SearchAttributeKey.for_keyword(search.GPU_TYPE)
_LABELS = SearchAttributeKey.for_keyword_list(search.LABELS)
_GPU_COUNT = SearchAttributeKey.for_int(search.GPU_COUNT)
_PRIORITY_CLASS = SearchAttributeKey.for_int(search.PRIORITY_CLASS)

_PATIENCE = timedelta(seconds=15)
_LARGEST = 2_000
"""Bytes that Temporal takes of one search attribute, with some to spare: 2 kB."""

Spec = TypeVar("Spec", bound=JobSpec)
Pair = SearchAttributePair[str] | SearchAttributePair[int]


async def start_job(
    temporal: Client, job_id: str, job: JobInput, digest: str, dag_id: str | None = None
) -> None:
    """Start the workflow of a job; `digest` tells it from another of the same id.

    Raises WorkflowAlreadyStartedError where the id was used, also by a job that has ended.
    """

    async def start(attributes: TypedSearchAttributes) -> None:
        await temporal.start_workflow(
            workflow_of(job.spec),
            job,
            id=job_workflow_id(job_id),
            task_queue=CONTROL_TASK_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            memo={"digest": digest},
            static_summary=summary_of(job.spec),
            static_details=details_of(job.spec),
            search_attributes=attributes,
            rpc_timeout=_PATIENCE,
        )

    await with_labels(job.spec, at_submit(job.spec, held=job.held, dag_id=dag_id), start)


async def with_labels(
    spec: JobSpec,
    attributes: TypedSearchAttributes,
    start: Callable[[TypedSearchAttributes], Awaitable[None]],
) -> None:
    """Start a job's workflow with its labels beside the other search attributes, and without them
    where the namespace lacks that attribute: `longshore setup` of this version did not run yet."""
    labels = labels_of(spec)
    try:
        await start(TypedSearchAttributes([*attributes, *labels]))
    except RPCError as error:
        unknown = error.status is RPCStatusCode.INVALID_ARGUMENT and search.LABELS in error.message
        if not (labels and unknown):
            raise
        await start(attributes)


def at_submit(spec: JobSpec, *, held: bool, dag_id: str | None = None) -> TypedSearchAttributes:
    """Return what is known when a job starts: given there, search attributes cost nothing."""
    state = JobState.HELD if held else JobState.QUEUED
    of_dag: list[Pair] = [SearchAttributePair(_DAG, dag_id)] if dag_id else []
    return TypedSearchAttributes(
        [SearchAttributePair(JOB_STATE, state.value), *of_spec(spec), *of_dag]
    )


def labels_of(spec: JobSpec) -> list[SearchAttributePair[Sequence[str]]]:
    """Return the search attribute of a job's labels; nothing where there are none, or more than a
    search attribute holds.

    A workflow may not give it: where the namespace lacks it, its task would fail again and again.
    """
    told = [f"{name}={value}" for name, value in sorted(spec.labels.items())]
    fits = told and len(json.dumps(told).encode()) <= _LARGEST
    return [SearchAttributePair(_LABELS, told)] if fits else []


def of_spec(spec: JobSpec) -> list[Pair]:
    """Return the search attributes that a job's spec says."""
    pairs: list[Pair] = [
        SearchAttributePair(_TENANT, spec.tenant),
        SearchAttributePair(_POOL, spec.pool),
        SearchAttributePair(_GPU_COUNT, spec.gpus),
        SearchAttributePair(_PRIORITY_CLASS, spec.priority),
    ]
    if spec.gpu_type:
        pairs.append(SearchAttributePair(_GPU_TYPE, spec.gpu_type))
    return pairs


def dag_at_submit(spec: DagSpec, *, held: bool) -> TypedSearchAttributes:
    """Return the same of a DAG: it runs from its start, or is held."""
    state = JobState.HELD if held else JobState.RUNNING
    return TypedSearchAttributes([SearchAttributePair(JOB_STATE, state.value), *of_dag(spec)])


def of_service(spec: ServiceSpec) -> TypedSearchAttributes:
    """Return what is known of a service when it starts."""
    pairs: list[Pair] = [
        SearchAttributePair(_TENANT, spec.tenant), SearchAttributePair(_POOL, spec.pool),
    ]  # fmt: skip
    return TypedSearchAttributes(pairs)


def of_dag(spec: DagSpec) -> list[Pair]:
    """Return the search attributes that a DAG's spec says."""
    return [SearchAttributePair(_TENANT, spec.tenant), SearchAttributePair(_POOL, spec.pool)]


def digest_of(spec: JobSpec | DagSpec) -> str:
    """Return what tells one content from another under the same id."""
    if isinstance(spec, DagSpec):
        same = in_our_words(spec)
        jobs = {name: _without_digest(job) for name, job in same.jobs.items()}
        same = same.model_copy(update={"jobs": jobs})
    elif spec.expected_duration is None:
        # As versions wrote it for which an hour was the default: it may be told again to this one.
        same = spec.model_copy(update={"expected_duration": ASSUMED_DURATION})
    else:
        same = spec
    if not isinstance(same, DagSpec):
        same = _without_digest(same)
    return hashlib.sha256(same.model_dump_json().encode()).hexdigest()[:16]


def _without_digest(spec: Spec) -> Spec:
    """Return a job without the digest of its environment, which follows from the rest, and which
    versions of before did not write."""
    asked = spec.environment
    if asked is None or asked.digest is None:
        return spec
    return spec.model_copy(update={"environment": asked.as_asked})


def summary_of_dag(spec: DagSpec) -> str:
    """Return the DAG in one line, at most 200 bytes, as the summary of its workflow."""
    return as_summary(f"DAG {spec.name}: {count(len(spec.jobs), 'job')}, tenant {spec.tenant}")


def summary_of(spec: JobSpec) -> str:
    """Return the job in one line, at most 200 bytes, as the summary of its workflow."""
    wants = spec.gpu.text(spec.gpu_type)
    return as_summary(
        f"{spec.name}: {wants}, {spec.tier.value}, "
        f"class {spec.priority}, tenant {spec.tenant}, pool {spec.pool}"
    )


def as_summary(text: str) -> str:
    """Return the text as a summary on Temporal's screens: escaped, at most 200 bytes."""
    # Cut first: a step that stops a gang asks for one for each node, of the same long reason.
    return visible(text[:200]).encode()[:200].decode(errors="ignore")


def details_of(spec: JobSpec) -> str:
    """Return the job file as Markdown, for the Temporal UI; without values of its environment."""
    told = spec.model_dump(mode="json", exclude_defaults=True, exclude={"env", "command", "array"})
    if spec.array is not None:
        told["array"] = str(spec.array)
    lines = [f"- **{name}** {_value_of(name, value)}" for name, value in told.items()]
    if spec.env:
        lines.append(f"- **env** sets {', '.join(sorted(spec.env))}")
    if spec.command is not None:
        text = spec.command if isinstance(spec.command, str) else shlex.join(spec.command)
        lines += ["", "````sh", text.strip("\n"), "````"]
    return visible("\n".join(lines))[:8000]


def _value_of(name: str, value: object) -> str:
    if name in ("vram_per_gpu", "ram") and isinstance(value, float):
        return format_gb(value)
    if name == "storage_bandwidth" and isinstance(value, float):
        return format_gb_per_second(value)
    if name == "power_per_gpu" and isinstance(value, float):
        return format_watts(value)
    if isinstance(value, dict):
        return yaml.safe_dump(
            value, default_flow_style=True, width=10_000, sort_keys=False
        ).strip()
    return str(value)
