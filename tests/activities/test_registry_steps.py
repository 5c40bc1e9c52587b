"""Nodes in the capacity database: registration, drain and end. Each may come twice."""

import pytest
from temporalio.exceptions import ApplicationError

from longshore.activities.views import Views
from longshore.models import proof
from longshore.models.node import HostFirmware, Inventory, NodeState
from longshore.models.node_messages import DrainRequest, NodeEnd, Registration
from tests.support.ledger import TOKEN, Ledger, registration

_NODE = "SELECT state, epoch FROM nodes WHERE id = 'node-a'"


async def test_a_repeat_of_the_same_boot_keeps_its_epoch_and_its_leases(ledger: Ledger):
    async with ledger.listening("a"):
        first = await ledger.register()
        await ledger.enqueue("a")
        await ledger.cycle("one")
        pokes = await ledger.pokes()
        assert await ledger.register(delivery=2) == first
        assert await ledger.pokes() == pokes + 1
        assert await ledger.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 1
        assert await ledger.told("a", "node_lost") == 0


async def test_a_new_boot_gets_a_new_epoch_and_ends_what_the_old_one_held(ledger: Ledger):
    async with ledger.listening("a"):
        await ledger.register(gpus=2)
        await ledger.enqueue("a")
        await ledger.cycle("one")
        assert (await ledger.register(boot="boot-2", gpus=3)).epoch == 2
        assert await ledger.rows("SELECT end_reason AS why FROM leases") == [{"why": "node-lost"}]
        assert await ledger.value("SELECT count(*) FROM gpus") == 3
        assert await ledger.told("a", "node_lost") == 1
        assert (await ledger.register(boot="boot-2", gpus=3, delivery=2)).epoch == 2
        assert await ledger.told("a", "node_lost") == 2, "the first may not have told it"
        assert await ledger.drift() == []


async def test_a_wrong_token_and_an_old_proof_are_refused(ledger: Ledger):
    right = registration(ledger.pool, "node-a")
    elsewhere = right.identity.model_copy(update={"pool": "elsewhere"})
    for request, why in (
        (registration(ledger.pool, "node-a", token="another"), "wrong join token"),
        (right.model_copy(update={"identity": elsewhere}), "signed something else than it says"),
        (
            right.model_copy(update={"inventory": _with_more(right.inventory)}),
            "signed something else than it says",
        ),
        (right.model_copy(update={"claim": ""}), "wrong join token"),
        (right.model_copy(update={"claim": right.claim.replace("16", "17")}), "wrong join token"),
    ):
        with pytest.raises(ApplicationError, match=why) as refusal:
            await ledger.run(ledger.registry.register_node, request)
        assert refusal.value.type == "TokenError"
        assert refusal.value.non_retryable
    assert await ledger.value("SELECT count(*) FROM nodes") == 0


async def test_what_an_agent_says_beyond_the_bounds_is_refused(ledger: Ledger):
    right = registration(ledger.pool, "node-a")
    many = {f"label-{number}": "" for number in range(101)}
    long = {"address": "a" * 254}
    twice = {"gpus": right.inventory.gpus[:1] * 2}
    for update, why in (
        ({"identity": right.identity.model_copy(update={"labels": many})}, "labels: has 101 ent"),
        ({"inventory": right.inventory.model_copy(update=long)}, "address: has 254 characters"),
        (
            {"inventory": right.inventory.model_copy(update={"hostname": "h\0"})},
            "hostname: must no",
        ),
        ({"inventory": right.inventory.model_copy(update={"cpus": 1e300})}, "cpus: must be from"),
        ({"inventory": right.inventory.model_copy(update=twice)}, "GPU indices must differ"),
    ):
        request = proof.sign(TOKEN, right.model_copy(update={**update, "claim": ""}))
        with pytest.raises(ApplicationError, match=f"node node-a: .*{why}") as refusal:
            await ledger.run(ledger.registry.register_node, request)
        assert (refusal.value.type, refusal.value.non_retryable) == ("RefusedError", True)
    assert await ledger.value("SELECT count(*) FROM nodes") == 0


async def test_an_agent_of_the_version_before_is_admitted(ledger: Ledger):
    unsigned = registration(ledger.pool, "node-a").model_copy(update={"claim": "", "proof": ""})
    older = proof.sign_as_before(TOKEN, unsigned)
    assert (await ledger.run(ledger.registry.register_node, older)).epoch == 1


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({}, 0),
        ({"counts_heartbeats": True}, 1),
        ({"counts_heartbeats": True, "protocol": 7}, 7),
        ({"protocol": 7, "of_a_later_version": "x"}, 7),
    ],
)
async def test_the_protocol_that_an_agent_speaks_is_kept(
    ledger: Ledger, sent: dict[str, object], kept: int
):
    """Also of one that sends none, as those of the version before; and with its last start."""
    await ledger.register()
    unsigned = registration(ledger.pool, "node-a", boot="boot-2")
    content = unsigned.model_dump(mode="json", exclude={"claim", "proof", "protocol"})
    received = proof.sign(TOKEN, Registration.model_validate({**content, **sent}))
    assert (await ledger.run(ledger.registry.register_node, received)).epoch == 2
    assert await ledger.value("SELECT agent_protocol FROM nodes") == kept


async def test_the_firmware_of_its_host_that_an_agent_tells_is_shown_with_the_node(ledger: Ledger):
    """Of an agent of protocol 4, which tells nothing, none is: not what an older start told."""
    views = Views(ledger.database)
    told = (
        HostFirmware(part="BIOS", facts=("bios_vendor A", "bios_version 3.2b")),
        HostFirmware(part="BMC", missing="there is no BMC"),
    )
    await ledger.register(conformance="1f0e", firmware=told)
    (node,) = await views.nodes()
    assert (node.conformance, node.firmware) == ("1f0e", told)
    sent = registration(ledger.pool, "node-a", boot="boot-2", conformance="1f0e")
    content = sent.model_dump(mode="json", exclude={"claim", "proof"})
    del content["inventory"]["firmware"]
    older = proof.sign(TOKEN, Registration.model_validate({**content, "protocol": 4}))
    await ledger.run(ledger.registry.register_node, older)
    (node,) = await views.nodes()
    assert (node.conformance, node.firmware) == ("1f0e", ())


async def test_a_drain_may_come_twice_and_its_end_pokes(ledger: Ledger):
    await ledger.register()
    for delivery in (1, 2):
        await _drain(ledger, True, delivery=delivery)
        assert await ledger.rows(_NODE) == [{"state": "DRAINING", "epoch": 1}]
    await ledger.cycle("one")
    pokes = await ledger.pokes()
    for delivery in (1, 2):
        await _drain(ledger, False, delivery=delivery)
        assert await ledger.rows(_NODE) == [{"state": "READY", "epoch": 1}]
        assert await ledger.pokes() == pokes + delivery, "the first may not have sent its poke"


@pytest.mark.parametrize("end", [NodeState.LOST, NodeState.GONE])
async def test_a_drain_stays_until_somebody_ends_it(ledger: Ledger, end: NodeState):
    await ledger.register()
    await _drain(ledger, True)
    await _end(ledger, end)
    back = await ledger.register(boot="boot-2")
    assert back.drain_reason
    assert await ledger.rows(_NODE) == [{"state": "DRAINING", "epoch": 2}]
    await _drain(ledger, False, epoch=2)
    assert (await ledger.register(boot="boot-3")).drain_reason is None
    assert await ledger.rows(_NODE) == [{"state": "READY", "epoch": 3}]


async def test_a_drain_has_the_pool_look_at_who_waits(ledger: Ledger):
    await ledger.register()
    await ledger.enqueue("a")
    await ledger.rows("UPDATE pools SET poked = false")  # a cycle has begun since
    before = await ledger.pokes()
    await _drain(ledger, True)
    assert await ledger.pokes() == before + 1
    await _drain(ledger, True)
    assert await ledger.pokes() == before + 1, "its next cycle has not begun yet"
    await _drain(ledger, True, delivery=2)
    assert await ledger.pokes() == before + 2, "the first may not have told it"


async def test_a_drain_wakes_no_pool_in_which_nobody_waits(ledger: Ledger):
    await ledger.register()
    await ledger.rows("UPDATE pools SET poked = false")
    before = await ledger.pokes()
    await _drain(ledger, True)
    assert await ledger.pokes() == before
    await _drain(ledger, False)
    assert await ledger.pokes() == before + 1


@pytest.mark.parametrize("state", [NodeState.LOST, NodeState.GONE])
async def test_the_end_of_a_node_has_the_pool_look_at_who_waits(ledger: Ledger, state: NodeState):
    await ledger.register()
    await ledger.enqueue("a")
    await ledger.rows("UPDATE pools SET poked = false")  # a cycle has begun since
    before = await ledger.pokes()
    await _end(ledger, state)
    assert await ledger.pokes() == before + 1
    await _end(ledger, state)
    assert await ledger.pokes() == before + 1, "its next cycle has not begun yet"
    await _end(ledger, state, delivery=2)
    assert await ledger.pokes() == before + 2, "the first may not have told it"


async def test_the_end_of_a_node_wakes_no_pool_in_which_nobody_waits(ledger: Ledger):
    await ledger.register()
    await ledger.rows("UPDATE pools SET poked = false")
    before = await ledger.pokes()
    await _end(ledger, NodeState.LOST, epoch=2)
    await _end(ledger, NodeState.LOST)
    assert await ledger.pokes() == before


@pytest.mark.parametrize("over", ["registered anew", "ended", "never there"])
async def test_a_drain_of_another_registration_is_refused(ledger: Ledger, over: str):
    if over != "never there":
        await ledger.register()
    if over == "registered anew":
        await ledger.register(boot="boot-2")
    if over == "ended":
        await _end(ledger, NodeState.GONE)
    before = await ledger.rows(_NODE)
    with pytest.raises(ApplicationError, match="has ended or was registered anew") as refusal:
        await _drain(ledger, True)
    assert refusal.value.type == "StaleError"
    assert await ledger.rows(_NODE) == before


@pytest.mark.parametrize("state", [NodeState.LOST, NodeState.GONE])
async def test_the_end_of_a_node_ends_its_leases_and_a_repeat_tells_the_jobs_again(
    ledger: Ledger, state: NodeState
):
    async with ledger.listening("a", "b"):
        await ledger.register(gpus=2)
        await ledger.enqueue("a")
        await ledger.enqueue("b")
        await ledger.cycle("one")
        for delivery in (1, 2):
            await _end(ledger, state, delivery=delivery)
            assert await ledger.rows(_NODE) == [{"state": state.value, "epoch": 1}]
            assert await ledger.told("a", "node_lost") == delivery
            assert await ledger.told("b", "node_lost") == delivery
        why = "SELECT DISTINCT end_reason AS why FROM leases"
        assert await ledger.rows(why) == [{"why": "node-lost"}]
        assert await ledger.drift() == []


async def test_a_late_end_of_an_older_registration_changes_nothing(ledger: Ledger):
    async with ledger.listening("a"):
        await ledger.register()
        await ledger.register(boot="boot-2")
        await ledger.enqueue("a")
        await ledger.cycle("one")
        await _end(ledger, NodeState.LOST, epoch=1)
        assert await ledger.rows(_NODE) == [{"state": "READY", "epoch": 2}]
        assert await ledger.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 1
        assert await ledger.told("a", "node_lost") == 0


async def test_an_end_does_not_wake_a_job_that_has_ended(ledger: Ledger):
    async with ledger.listening("a"):
        await ledger.register()
        await ledger.enqueue("a")
        await ledger.cycle("one")
        await ledger.finish("a")
        await _end(ledger, NodeState.LOST)
        assert await ledger.told("a", "node_lost") == 0


async def _drain(ledger: Ledger, draining: bool, *, epoch: int = 1, delivery: int = 1) -> None:
    request = DrainRequest(node_id="node-a", epoch=epoch, draining=draining, reason="for a test")
    await ledger.run(ledger.registry.drain_node, request, attempt=delivery)


async def _end(ledger: Ledger, state: NodeState, *, epoch: int = 1, delivery: int = 1) -> None:
    request = NodeEnd(node_id="node-a", epoch=epoch, state=state, reason="for a test")
    await ledger.run(ledger.registry.end_node, request, attempt=delivery)


def _with_more(inventory: Inventory) -> Inventory:
    return inventory.model_copy(update={"cpus": 1000.0})


@pytest.mark.parametrize("number", [-5, 10**30])
async def test_a_number_of_a_protocol_that_there_cannot_be_is_refused(ledger: Ledger, number: int):
    odd = registration(ledger.pool, "node-a").model_copy(update={"protocol": number})
    with pytest.raises(ApplicationError, match="protocol: must be from 0 to 1,000,000") as refused:
        await ledger.run(ledger.registry.register_node, proof.sign(TOKEN, odd))
    assert (refused.value.type, refused.value.non_retryable) == ("RefusedError", True)
    assert await ledger.value("SELECT count(*) FROM nodes") == 0
