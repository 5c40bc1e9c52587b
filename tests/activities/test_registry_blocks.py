"""An agent says the block that it was started for; what the database has learnt since holds."""

from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError

from longshore.activities.buying.handover import closed_nodes, hand_over
from longshore.models.block import ENDING, FOR_SALE
from longshore.models.node_messages import Registered
from tests.support.ledger import Ledger, registration

NOON = datetime(2030, 11, 20, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
NODE = "first.m1"


@pytest.fixture
async def node(ledger: Ledger) -> str:
    """A node on the machine of `first`, which ends at noon; `second` and `third` follow."""
    await restarts(ledger, "elsewhere")  # makes the pool
    for number, block in enumerate(("first", "second", "third")):
        await ledger.rows(
            "INSERT INTO purchases (id, pool, tenant, tier, state, request, planned, committed)"
            " VALUES (:id, :pool, 'default', 'FAST', 'READY', '{}', 0, 0)",
            id=f"p-{block}", pool=ledger.pool,
        )  # fmt: skip
        await ledger.rows(
            "INSERT INTO blocks (id, provider, instance_type, tier, price_micro_per_gpu_hour,"
            " purchase_id, pool, starts_at, ends_at)"
            " VALUES (:id, 'sfcompute', '8xH100', 'FAST', 1, :purchase, :pool, :start, :end)",
            id=block, purchase=f"p-{block}", pool=ledger.pool,
            start=NOON + (number - 1) * HOUR, end=NOON + number * HOUR,
        )  # fmt: skip
    await ledger.rows(
        "INSERT INTO machines (name, purchase_id, block_id, provider, machine_id, state)"
        " VALUES (:name, 'p-first', 'first', 'sfcompute', 'i-1', 'READY')",
        name=NODE,
    )
    assert await restarts(ledger, "boot-1") == NOON
    return NODE


async def goes_on(ledger: Ledger, block: str, next_block: str) -> None:
    await ledger.rows(
        "INSERT INTO block_nodes (block_id, node_id, next_block) VALUES (:block, :node, :next)",
        block=block, node=NODE, next=next_block,
    )  # fmt: skip


async def restarts(ledger: Ledger, boot: str) -> datetime | None:
    """Register as an agent that was started for `first`, and return when its node ends."""
    node, block = (NODE, "first") if boot != "elsewhere" else ("elsewhere", None)
    request = registration(ledger.pool, node, boot=boot, block=block, expires_at=NOON)
    answer: Registered = await ledger.run(ledger.registry.register_node, request)
    return answer.expires_at


async def block_of(ledger: Ledger, node: str) -> str:
    return await ledger.value("SELECT block_id FROM nodes WHERE id = :id", id=node)


async def test_an_agent_that_restarts_after_a_renewal_keeps_the_later_end(
    ledger: Ledger, node: str
):
    await goes_on(ledger, "first", "second")
    assert await restarts(ledger, "boot-2") == NOON + HOUR
    assert await block_of(ledger, node) == "first"


async def test_an_agent_that_restarts_after_it_was_handed_over_belongs_to_the_next_block(
    ledger: Ledger, node: str
):
    await goes_on(ledger, "first", "second")
    await hand_over(ledger.database, "first")
    assert await restarts(ledger, "boot-2") == NOON + HOUR
    assert await block_of(ledger, node) == "second"
    await goes_on(ledger, "second", "third")
    assert await restarts(ledger, "boot-3") == NOON + 2 * HOUR
    await hand_over(ledger.database, "second")
    assert await restarts(ledger, "boot-4") == NOON + 2 * HOUR
    assert await block_of(ledger, node) == "third"


async def test_an_agent_that_restarts_while_its_time_is_sold_ends_where_the_sale_begins(
    ledger: Ledger, node: str
):
    sold_from = NOON - HOUR / 2
    await ledger.rows(
        "INSERT INTO orders (key, side, block_id, number, machine, provider, starts_at, ends_at,"
        " request, is_machine, committed) VALUES ('first.s1', 'sell', 'first', 1, :name,"
        " 'sfcompute', :start, :end, '{}', false, 0)",
        name=node, start=sold_from, end=NOON,
    )  # fmt: skip
    await ledger.rows("UPDATE machines SET sale_key = 'first.s1' WHERE name = :id", id=node)
    assert await restarts(ledger, "boot-2") == sold_from


async def test_an_agent_of_a_block_that_nobody_has_stored_is_told_and_not_kept_waiting(
    ledger: Ledger,
):
    request = registration(ledger.pool, NODE, block="none.1")
    with pytest.raises(ApplicationError) as refused:
        await ledger.run(ledger.registry.register_node, request)
    assert (refused.value.type, refused.value.non_retryable) == ("NotFoundError", True)
    assert refused.value.message.startswith("there is no block none.1: `longshore blocks --all`")


@pytest.mark.parametrize(
    ("drained_for", "says", "of_block", "closed"),
    [
        (None, "its node ends at 12:00 UTC", "", True),
        ("fan", "its node ends at 12:00 UTC", "", True),
        (FOR_SALE, FOR_SALE, "", True),
        (f"{ENDING} 12:00 UTC", f"{ENDING} 12:00 UTC", "", True),
        ("nobody needs it", "nobody needs it", "nobody needs it", True),
        ("new disk", "new disk", "", False),
        ("new disk", "new disk", "nobody needs it", False),
    ],
)
@pytest.mark.parametrize("clearing", [True, False])
async def test_only_what_a_person_has_shut_may_be_let_in_again(
    ledger: Ledger, node: str, drained_for: str | None, says: str, of_block: str, closed: bool,
    clearing: bool,
):  # fmt: skip
    await ledger.rows("UPDATE blocks SET reason = :reason WHERE id = 'first'", reason=of_block)
    await ledger.rows(
        "UPDATE nodes SET state = 'DRAINING', drain_reason = :drained, state_reason = :says,"
        " clearing = :clearing WHERE id = :id",
        id=node, drained=drained_for, says=says, clearing=clearing,
    )  # fmt: skip
    async with ledger.database.transaction() as connection:
        assert await closed_nodes(connection, ledger.pool) == ({node} if closed else set())
