"""The search attributes of a job, typed (models.search has their names)."""

from typing import cast

from temporalio import workflow
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)

from longshore.models import search
from longshore.models.job import JobSpec, JobState

JOB_STATE = SearchAttributeKey.for_keyword(search.JOB_STATE)
_NODE_ID = SearchAttributeKey.for_keyword(search.NODE_ID)
_TENANT = SearchAttributeKey.for_keyword(search.TENANT)
_POOL = SearchAttributeKey.for_keyword(search.POOL)
_GPU_TYPE = SearchAttributeKey.for_keyword(search.GPU_TYPE)
_GPU_COUNT = SearchAttributeKey.for_int(search.GPU_COUNT)
_PRIORITY_CLASS = SearchAttributeKey.for_int(search.PRIORITY_CLASS)


def at_submit(spec: JobSpec, *, held: bool) -> TypedSearchAttributes:
    """Return what is known when a job starts: given there, they cost nothing."""
    state = JobState.HELD if held else JobState.QUEUED
    return TypedSearchAttributes([SearchAttributePair(JOB_STATE, state.value), *_of_spec(spec)])


def tell(state: JobState, node_id: str | None, spec: JobSpec) -> None:
    """Set the state of the running job, and its node where it has a new one: one billed action.

    With that comes what a starter that is not ours has left out.
    """
    updates: list[SearchAttributeUpdate[str] | SearchAttributeUpdate[int]] = [
        JOB_STATE.value_set(state.value)
    ]
    if node_id is not None:
        updates.append(_NODE_ID.value_set(node_id))
    known = workflow.info().typed_search_attributes
    updates += [_set(pair) for pair in _of_spec(spec) if pair.key not in known]
    # The SDK leaves a type argument of its parameter open.
    workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]


def _set(
    pair: SearchAttributePair[str] | SearchAttributePair[int],
) -> SearchAttributeUpdate[str] | SearchAttributeUpdate[int]:
    if isinstance(pair.value, str):
        return cast(SearchAttributePair[str], pair).key.value_set(pair.value)
    return cast(SearchAttributePair[int], pair).key.value_set(pair.value)


def _of_spec(spec: JobSpec) -> list[SearchAttributePair[str] | SearchAttributePair[int]]:
    pairs: list[SearchAttributePair[str] | SearchAttributePair[int]] = [
        SearchAttributePair(_TENANT, spec.tenant),
        SearchAttributePair(_POOL, spec.pool),
        SearchAttributePair(_GPU_COUNT, spec.gpus),
        SearchAttributePair(_PRIORITY_CLASS, spec.priority),
    ]
    if spec.gpu_type:
        pairs.append(SearchAttributePair(_GPU_TYPE, spec.gpu_type))
    return pairs
