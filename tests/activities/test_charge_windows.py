"""A charge stays within the window of its envelope, also where that is set at the same moment."""

import asyncio

import pytest
from sqlalchemy import text

from longshore.activities.funding.rows import close_charges, open_charges
from tests.support.funding import charge, envelope, funding_drift, job_of, tenant, write_charge
from tests.support.ledger import Ledger
from tests.support.waiting import eventually

_OUTSIDE = """
    SELECT c.started_at, c.ended_at, e.starts_at, e.ends_at
      FROM charges c JOIN envelopes e ON e.id = c.envelope_id
     WHERE c.started_at < e.starts_at OR c.ended_at > e.ends_at
"""


@pytest.fixture
async def funded(ledger: Ledger) -> Ledger:
    """A tenant with a budget, and a node of two GPUs."""
    await ledger.register(gpus=2)
    await tenant(ledger, "a")
    return ledger


@pytest.mark.parametrize("how", ["its placement ends", "it is closed"])
async def test_the_end_of_a_window_that_is_being_set_ends_it(funded: Ledger, how: str):
    main = await envelope(funded, "a")
    await job_of(funded, "j", "a")
    await write_charge(funded, charge("j", main))

    async def end() -> None:
        if how == "its placement ends":
            await funded.finish("j")
            return
        async with funded.database.transaction() as connection:
            ids = list(await connection.scalars(text("SELECT id FROM charges")))
            assert await close_charges(connection, ids, "x") == set(ids)

    async with funded.database.transaction() as connection:
        await connection.execute(
            text("UPDATE envelopes SET ends_at = clock_timestamp() + interval '1 ms'")
        )

        async def over() -> bool:
            past = text("SELECT ends_at < clock_timestamp() - interval '1 ms' FROM envelopes")
            return bool(await connection.scalar(past))

        await eventually(over)
        ending = asyncio.create_task(end())

        async def waits() -> bool:
            blocked = (
                "SELECT count(*) FROM pg_locks WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            )
            return bool(await connection.scalar(text(blocked))) or ending.done()

        await eventually(waits)
        assert not ending.done()
    await ending
    assert await funded.rows("SELECT FROM charges WHERE ended_at IS NULL") == []
    assert await funded.rows(_OUTSIDE) == []
    assert await funding_drift(funded) == []


async def test_an_envelope_that_began_after_the_placement_pays_from_then_on(funded: Ledger):
    async with funded.database.transaction() as connection:
        began = await connection.scalar(text("SELECT now()"))
        await job_of(funded, "j", "a")  # after that, as what this transaction places
        main = await envelope(
            funded, "a", starts_at=await connection.scalar(text("SELECT clock_timestamp()"))
        )
        assert await open_charges(connection, [charge("j", main)]) == ()
    (found,) = await funded.rows(
        "SELECT p.placed_at, e.starts_at, c.started_at"
        "  FROM charges c JOIN envelopes e ON e.id = c.envelope_id, placements p"
    )
    assert began <= found["placed_at"] < found["starts_at"] == found["started_at"]
    assert await funded.rows(_OUTSIDE) == []
