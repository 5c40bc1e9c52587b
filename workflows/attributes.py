"""The search attributes of a job, as its workflow sets them (models.search has their names)."""

from typing import cast

from temporalio import workflow
from temporalio.common import SearchAttributePair, SearchAttributeUpdate

from longshore.activities.job_starts import FUNDING_CLASS, JOB_STATE, NODE_ID, of_spec
from longshore.models.job import JobSpec, JobState
from longshore.workflows.paying import Paying


def tell(state: JobState, node_id: str | None, spec: JobSpec, paying: Paying) -> None:
    """Set the state of the running job, its node where it has a new one, and who pays where that
    is known and another than before: one billed action.

    With that comes what a starter that is not ours has left out.
    """
    updates: list[SearchAttributeUpdate[str] | SearchAttributeUpdate[int]] = [
        JOB_STATE.value_set(state.value)
    ]
    if node_id is not None:
        updates.append(NODE_ID.value_set(node_id))
    updates += _funding(paying)
    known = workflow.info().typed_search_attributes
    updates += [_set(pair) for pair in of_spec(spec) if pair.key not in known]
    # The SDK leaves a type argument of its parameter open.
    workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]


def tell_left_out(spec: JobSpec, *, held: bool) -> None:
    """Set what a starter that is not ours has left out, of an array: its slots tell the rest."""
    known = workflow.info().typed_search_attributes
    left_out = [_set(pair) for pair in of_spec(spec) if pair.key not in known]
    if JOB_STATE not in known:
        left_out.append(JOB_STATE.value_set((JobState.HELD if held else JobState.QUEUED).value))
    if left_out and workflow.patched("names-arrays"):
        workflow.upsert_search_attributes(left_out)  # pyright: ignore[reportUnknownMemberType]


def tell_funding(paying: Paying) -> None:
    """Set who pays, where that has changed: a billed action of its own."""
    if updates := _funding(paying):
        workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]


def _funding(paying: Paying) -> list[SearchAttributeUpdate[str]]:
    funding = paying.funding.value if paying.funding else None
    if funding == paying.listed:
        return []
    paying.listed = funding
    return [FUNDING_CLASS.value_set(funding) if funding else FUNDING_CLASS.value_unset()]


def _set(
    pair: SearchAttributePair[str] | SearchAttributePair[int],
) -> SearchAttributeUpdate[str] | SearchAttributeUpdate[int]:
    if isinstance(pair.value, str):
        return cast(SearchAttributePair[str], pair).key.value_set(pair.value)
    return cast(SearchAttributePair[int], pair).key.value_set(pair.value)
