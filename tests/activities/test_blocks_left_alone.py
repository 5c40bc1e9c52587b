"""Blocks of which something cannot be read, or is not there: each comes to its end."""

import pytest

from longshore.activities.buying.block_end_views import BlockEndViews
from longshore.activities.buying.blocks import BlockActivities
from longshore.activities.providers import registry
from longshore.models.block import BlockLook, BlockRef
from longshore.models.purchase import PurchaseRequest
from longshore.models.settings import Settings
from tests.activities.test_ended_machines import Pods, lost
from tests.buying.buyer import block_option
from tests.support.ledger import Ledger

__all__ = ["lost"]


@pytest.fixture
def steps(lost: Ledger, monkeypatch: pytest.MonkeyPatch) -> BlockActivities:
    monkeypatch.setattr(registry, "connect", lambda *_: Pods())
    return BlockActivities(lost.database, lost.temporal, Settings())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("UPDATE purchases SET request = '{\"options\": [7]}'", "its purchase cannot be read"),
        ("UPDATE pools SET spec = '{\"buying\": 7}'", "the settings of its pool cannot be read"),
    ],
)
async def test_a_block_that_cannot_be_read_is_looked_at_and_nothing_is_decided(
    lost: Ledger, steps: BlockActivities, written: str, said: str
):
    views = BlockEndViews(lost.database)
    request = PurchaseRequest(pool=lost.pool, options=(block_option(),)).model_dump_json()
    await lost.rows("UPDATE purchases SET request = CAST(:request AS jsonb)", request=request)
    assert not (await views.of_block("p.1")).left_alone
    await lost.rows(written)
    look = await lost.run(steps.look_at_block, BlockRef(block_id="p.1"))
    assert look == BlockLook(ends_at=look.ends_at, drain_at=look.drain_at, look_at=look.look_at)
    assert look.drain_at < look.ends_at
    assert (await views.of_block("p.1")).left_alone.startswith(said)


async def test_a_block_that_is_not_there_is_over(lost: Ledger, steps: BlockActivities):
    """As after a database was restored from before it was bought: its market may list machines of
    it, which `market orphans` tells."""
    ref = BlockRef(block_id="p-unknown.1", reason="its machines have ended")
    assert (await lost.run(steps.look_at_block, ref)).over
    await lost.run(steps.drain_block, ref)
    await lost.run(steps.stop_machines, ref)
    end = await lost.run(steps.close_block, ref)
    assert (end.cost, end.used, end.idle) == (0, 0, 0)
    assert end.reason == "the capacity database has no such block"
