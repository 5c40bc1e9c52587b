"""A purchase of a fleet that buys: begun, looked at, and let go."""

import uuid
from collections.abc import Sequence
from datetime import timedelta

from longshore.models.messages import CONTROL_TASK_QUEUE
from longshore.models.purchase import PurchaseOption, PurchaseRequest, purchase_workflow_id
from tests.faults import scenes
from tests.faults.fleet import Fleet


async def start_purchase(fleet: Fleet, pool: str, options: Sequence[PurchaseOption]) -> str:
    """Begin a purchase; return its id."""
    purchase = f"p-{uuid.uuid4().hex[:8]}"
    request = PurchaseRequest(
        pool=pool, options=tuple(options), ready_within=timedelta(seconds=60)
    )
    await fleet.longshore.temporal.start_workflow(
        "PurchaseWorkflow", request, id=purchase_workflow_id(purchase),
        task_queue=CONTROL_TASK_QUEUE,
    )  # fmt: skip
    return purchase


async def let_go(fleet: Fleet, purchase: str) -> None:
    """Have the blocks of a purchase end."""
    for row in fleet.rows("SELECT id FROM blocks WHERE purchase_id = %s", purchase):
        await scenes.tell(lambda id=row["id"]: fleet.longshore.let_go(id, "the test is over"))


def is_ready(fleet: Fleet, purchase: str) -> bool:
    """Fail unless all that was wanted is there and nothing more is bought."""
    rows = fleet.rows("SELECT state, reason, buying FROM purchases WHERE id = %s", purchase)
    assert [(row["state"], row["buying"]) for row in rows] == [("READY", False)], rows
    return True


def has_ended(fleet: Fleet, purchase: str) -> bool:
    """Fail unless nothing of the purchase is left."""
    rows = fleet.rows("SELECT state, reason FROM purchases WHERE id = %s", purchase)
    assert [row["state"] for row in rows] == ["ENDED"], rows
    return True
