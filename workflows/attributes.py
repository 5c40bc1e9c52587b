"""The search attributes of a job, an array or a DAG, as its workflow sets them (models.search has
their names)."""

from collections.abc import Iterable
from typing import cast

from temporalio import workflow
from temporalio.common import SearchAttributePair, SearchAttributeUpdate

from longshore.activities.job_starts import FUNDING_CLASS, JOB_STATE, NODE_ID, Pair, of_spec
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.workflows.paying import Paying

LISTED_STATES = (JobState.QUEUED, JobState.HELD, JobState.RUNNING, JobState.RETRYING)
"""States that the search attribute tells; a change of it is a billed action."""
_Update = SearchAttributeUpdate[str] | SearchAttributeUpdate[int]


def tell(state: JobState, node_id: str | None, spec: JobSpec, paying: Paying) -> None:
    """Set the state of the running job, its node where it has a new one, and who pays where that
    is known and another than before: one billed action.

    With that comes what a starter that is not ours has left out.
    """
    updates: list[_Update] = [JOB_STATE.value_set(state.value)]
    if node_id is not None:
        updates.append(NODE_ID.value_set(node_id))
    updates += _funding(paying)
    updates += _left_out(of_spec(spec))
    # The SDK leaves a type argument of its parameter open.
    workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]


def tell_left_out(spec: JobSpec, *, held: bool) -> None:
    """Set what a starter that is not ours has left out, of an array: its slots tell the rest."""
    left_out = _left_out(of_spec(spec))
    if JOB_STATE not in workflow.info().typed_search_attributes:
        left_out.append(JOB_STATE.value_set((JobState.HELD if held else JobState.QUEUED).value))
    if left_out and workflow.patched("names-arrays"):
        workflow.upsert_search_attributes(left_out)  # pyright: ignore[reportUnknownMemberType]


def tell_state(state: JobState, said: Iterable[Pair]) -> None:
    """Set the state of an array or a DAG where it is another than before, and what a starter that
    is not ours has left out of what is `said` of it: one billed action."""
    if state not in LISTED_STATES:
        return
    updates = _left_out(said)
    if workflow.info().typed_search_attributes.get(JOB_STATE) != state.value:
        updates.append(JOB_STATE.value_set(state.value))
    if updates and workflow.patched("tells-states"):
        workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType]


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


def _left_out(said: Iterable[Pair]) -> list[_Update]:
    known = workflow.info().typed_search_attributes
    return [_set(pair) for pair in said if pair.key not in known]


def _set(pair: Pair) -> _Update:
    if isinstance(pair.value, str):
        return cast(SearchAttributePair[str], pair).key.value_set(pair.value)
    return cast(SearchAttributePair[int], pair).key.value_set(pair.value)
