"""Engines that run on as their agent registers anew: they keep their leases, all else ends."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from longshore.activities.observation import observe
from longshore.models import proof
from longshore.models.messages import LeaseEnd, ReleaseRequest
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd, Registered, Registration
from longshore.models.placement import PlacementKey
from longshore.models.reconcile import ReconcileRequest
from longshore.models.runtimes import BUILT_IN
from longshore.models.serving import EngineSpec, ModelSpec
from tests.support.ledger import TOKEN, Ledger, registration

MODEL = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
ENGINE = EngineSpec(model=MODEL, runtime=BUILT_IN["llama.cpp"], memory=1000)
CHAT, JOB = PlacementKey(job_id="chat", attempt=1), PlacementKey(job_id="job", attempt=1)
_LIVE = "SELECT job_id FROM placements WHERE ended_at IS NULL ORDER BY job_id"
_LEASED = "SELECT job_id, gpu_index FROM leases WHERE ended_at IS NULL ORDER BY job_id"


async def run_both(ledger: Ledger) -> None:
    """Have an engine and a job run on a node of two GPUs."""
    await ledger.register()
    await ledger.enqueue("chat", command=None, engine=ENGINE.model_dump(mode="json"))
    await ledger.enqueue("job")
    await ledger.cycle("one")
    assert len(await ledger.rows(_LIVE)) == 2


async def register(
    ledger: Ledger,
    *engines: PlacementKey,
    boot: str = "boot-2",
    agent: str = "",
    delivery: int = 1,
    **said: Any,
) -> Registered:
    claim = registration(ledger.pool, "node-a", boot=boot, **said)
    identity = claim.identity
    if agent:
        identity = identity.model_copy(update={"agent_id": agent})
    claim = claim.model_copy(
        update={"claim": "", "proof": "", "engines": engines, "identity": identity}
    )
    request: Registration = proof.sign(TOKEN, claim)
    return await ledger.run(ledger.registry.register_node, request, attempt=delivery)


async def test_an_engine_keeps_its_lease_and_a_job_loses_it(ledger: Ledger):
    async with ledger.listening("chat", "job"):
        await run_both(ledger)
        leased = [each for each in await ledger.rows(_LEASED) if each["job_id"] == "chat"]
        for delivery in (1, 2):
            found = await register(ledger, CHAT, JOB, delivery=delivery)
            assert (found.epoch, found.adopted) == (2, (CHAT,))
            assert await ledger.rows(_LEASED) == leased
            assert await ledger.drift() == []
        assert await ledger.told("chat", "node_lost") == 0
        (told, _) = await ledger.signals("job", "node_lost")
        assert told["epoch"] == 1
        assert (await register(ledger, CHAT, boot="boot-3")).adopted == (CHAT,)
        assert (await ledger.value("SELECT count(*) FROM gpus")) == 2
        await ledger.enqueue("job", attempt=2)
        await ledger.cycle("two")
        assert len(await ledger.rows(_LEASED)) == 2, "on the other GPU"


async def test_one_that_is_lost_later_hears_of_it_under_the_epoch_that_it_began_in(
    ledger: Ledger,
):
    async with ledger.listening("chat", "job"):
        await run_both(ledger)
        await register(ledger, CHAT)
        end = NodeEnd(node_id="node-a", epoch=2, state=NodeState.LOST, reason="for a test")
        for delivery in (1, 2):
            await ledger.run(ledger.registry.end_node, end, attempt=delivery)
        assert [each["epoch"] for each in await ledger.signals("chat", "node_lost")] == [1, 1]
        assert await ledger.told("job", "node_lost") == 1, "as it was lost itself"
        assert await ledger.rows(_LIVE) == []
        assert await ledger.drift() == []
        assert (await register(ledger, CHAT, boot="boot-3")).adopted == ()
        await ledger.enqueue("chat", attempt=2, command=None, engine=ENGINE.model_dump())
        await ledger.cycle("two")
        await register(ledger, boot="boot-4")
        assert (await ledger.signals("chat", "node_lost"))[-1]["epoch"] == 3


async def test_one_that_began_anew_on_the_same_registration_is_not_told_that_it_is_lost(
    ledger: Ledger,
):
    """Its process had failed with the node; what it was told then it took for the one since."""
    async with ledger.listening("chat", "job"):
        await run_both(ledger)
        failed = ReleaseRequest(key=CHAT, reason=LeaseEnd.NODE_LOST, message="it was killed")
        await ledger.run(ledger.queue.release, failed)
        await ledger.enqueue("chat", attempt=2, command=None, engine=ENGINE.model_dump())
        await ledger.cycle("two")
        second = PlacementKey(job_id="chat", attempt=2)
        assert (await register(ledger, second)).adopted == (second,)
        assert await ledger.told("chat", "node_lost") == 0
        assert await ledger.told("job", "node_lost") == 1


async def test_reconcile_says_of_a_lost_node_how_many_engines_may_run_on(ledger: Ledger):
    async def engines(fence: timedelta = timedelta(minutes=10)) -> list[int]:
        seen = await observe(
            ledger.database, ledger.temporal, ReconcileRequest(), timedelta(seconds=12), fence
        )
        return [node.engines for node in seen.nodes]

    async with ledger.listening("chat", "job"):
        await run_both(ledger)
        assert await engines() == [0], "it is there"
        end = NodeEnd(node_id="node-a", epoch=1, state=NodeState.LOST, reason="for a test")
        await ledger.run(ledger.registry.end_node, end)
        assert await engines() == [1]
        assert await engines(timedelta(0)) == [0], "their fence has fallen"
        await register(ledger)
        assert await engines() == [0], "its agent has ended them"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"gpus": 1}, id="without its GPU"),
        pytest.param({"mig": (0, 1)}, id="its GPU in parts"),
        pytest.param({"cpus": 8}, id="smaller"),
        pytest.param({"ram": 32}, id="less memory"),
        pytest.param({"power": 1000.0}, id="less power"),
        pytest.param({"agent": "another"}, id="another machine"),
    ],
)
async def test_none_goes_on_where_the_node_is_another(ledger: Ledger, said: dict[str, Any]):
    async with ledger.listening("chat", "job"):
        await ledger.register()
        gpus = (1,)
        await ledger.enqueue("chat", command=None, engine=ENGINE.model_dump(mode="json"))
        await ledger.rows("DELETE FROM queue WHERE job_id = 'chat'")
        await ledger.place("chat", gpus)
        assert (await register(ledger, CHAT, **said)).adopted == ()
        assert await ledger.rows(_LEASED) == []
        assert await ledger.told("chat", "node_lost") == 1
        assert await ledger.drift() == []


async def test_one_that_is_not_named_or_of_another_attempt_ends(ledger: Ledger):
    async with ledger.listening("chat", "job"):
        await run_both(ledger)
        later = PlacementKey(job_id="chat", attempt=2)
        assert (await register(ledger, later)).adopted == ()
        assert await ledger.rows(_LIVE) == []


async def test_no_job_is_alone_beside_one_that_went_on(ledger: Ledger):
    async with ledger.listening("chat", "job"):
        await run_both(ledger)
        await register(ledger, CHAT)
        await ledger.add_job("alone")
        (held,) = await ledger.rows(_LEASED)
        with pytest.raises(DBAPIError, match="another job is on node"):
            await ledger.place("alone", (1 - held["gpu_index"],), epoch=2, alone=True)
