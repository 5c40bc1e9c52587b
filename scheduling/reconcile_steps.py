"""Steps of bought time that are tried again and again, without an end of that in sight. Pure."""

from collections.abc import Iterator

from longshore.models.block import block_workflow_id
from longshore.models.purchase import purchase_workflow_id
from longshore.models.reconcile import Finding, FindingKind
from longshore.models.reconcile_seen import Observed

MANY_TRIES = 8
"""Of a step at a market: two minutes."""


def failing_steps(seen: Observed) -> Iterator[Finding]:
    """Yield what blocks and purchases are held up by: what is to be done at a market, or in the
    database, is not done meanwhile. Nothing mends it: it is tried on, as often as is of use."""
    followed = [(f"block {each.id}", block_workflow_id(each.id)) for each in seen.blocks]
    followed += [(f"purchase {e.id}", purchase_workflow_id(e.id)) for e in seen.purchases]
    for subject, workflow_id in followed:
        flow = seen.workflows.get(workflow_id)
        if flow is not None and flow.tries >= MANY_TRIES:
            yield Finding(kind=FindingKind.STEP_FAILS, subject=subject, problem=flow.trouble)
