"""A pool that is made has the profile balanced; one that is there keeps what is stored."""

from collections.abc import Awaitable, Callable

import pytest
from temporalio.testing import ActivityEnvironment

from longshore.activities.views import set_pool
from longshore.models.messages import CycleRequest, EnqueueRequest
from longshore.models.pool import PoolSpec
from longshore.models.score import ScoreProfile
from tests.support.ledger import SUBMITTED_AT, Ledger, registration

Begin = Callable[[Ledger, str], Awaitable[None]]
_STORED = "SELECT spec #>> '{packing,score,profile}' AS profile, spec #>> '{packing,order}' AS by"


async def _by_node(ledger: Ledger, pool: str) -> None:
    await ledger.run(ledger.registry.register_node, registration(pool, "node-b", boot="b", gpus=1))


async def _by_job(ledger: Ledger, pool: str) -> None:
    spec = ledger.spec().model_copy(update={"pool": pool})
    request = EnqueueRequest(job_id=f"in-{pool}", attempt=1, spec=spec, submitted_at=SUBMITTED_AT)
    await ledger.run(ledger.queue.enqueue, request)


async def _by_cycle(ledger: Ledger, pool: str) -> None:
    request = CycleRequest(pool=pool, cycle_id=f"first-{pool}")
    await ActivityEnvironment().run(ledger.cycles.run_cycle, request)


@pytest.mark.parametrize("begin", [_by_node, _by_job, _by_cycle])
async def test_whatever_makes_a_pool_makes_it_balanced(ledger: Ledger, begin: Begin):
    await begin(ledger, "fresh")
    (stored,) = await ledger.rows(f"{_STORED} FROM pools WHERE name = 'fresh'")
    assert stored == {"profile": "balanced", "by": "attained-service"}
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name="of-before"))
    await begin(ledger, "of-before")
    (kept,) = await ledger.rows(f"{_STORED} FROM pools WHERE name = 'of-before'")
    assert kept == {"profile": None, "by": None}


def test_settings_that_say_nothing_go_by_age():
    assert not PoolSpec(name="told").packing.by_rank
    made = PoolSpec.new("made")
    assert made.packing.by_rank
    assert made.packing.score is not None
    assert made.packing.score.profile is ScoreProfile.BALANCED
    assert PoolSpec.model_validate(made.model_dump()) == made
