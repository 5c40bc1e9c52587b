"""Charges in the database: what it refuses, and that they close with their placement."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.commit import commit
from longshore.activities.database import clock
from longshore.activities.funding.planning import Settlement, read_funding, settlement_of
from longshore.activities.funding.rows import (
    close_charges,
    load_facts,
    lock_funding,
    open_charges,
)
from longshore.activities.snapshot import load_nodes
from longshore.models.funding import FundingCode, Sharing
from longshore.models.messages import CycleRequest
from longshore.models.node import NodeState
from longshore.models.node_messages import NodeEnd
from longshore.models.packing import PackingPolicy
from longshore.scheduling.cycle import plan
from longshore.scheduling.funding.evaluate import Funded
from longshore.scheduling.funding.facts import Charge, Where
from longshore.scheduling.funding.holding import Ended
from tests.support.funding import (
    SINCE,
    cap,
    charge,
    envelope,
    funding_drift,
    job_of,
    sums,
    tenant,
    write_charge,
)
from tests.support.ledger import Ledger
from tests.support.packing import a_job


async def open_of(connection: AsyncConnection, job_id: str) -> list[Charge]:
    """Return the charges of a job that are open."""
    facts = await load_facts(connection, None)
    return [each for each in facts.charges if each.job_id == job_id] if facts else []


@pytest.fixture
async def funded(ledger: Ledger) -> Ledger:
    """A tree `root` over `a` and `b`, and a node of eight GPUs."""
    await ledger.register(gpus=8)
    await tenant(ledger, "root")
    await tenant(ledger, "a", "root")
    await tenant(ledger, "b", "root")
    return ledger


async def opened(ledger: Ledger, *charges: Charge) -> list[str]:
    """Open charges as a cycle does; return why the database refused some."""
    async with ledger.database.transaction() as connection:
        return [refused.why for refused in await open_charges(connection, charges)]


async def test_an_envelope_pays_for_as_many_gpus_as_it_has(funded: Ledger):
    main = await envelope(funded, "a", milli=2500)
    await job_of(funded, "j", "a", (0, 1, 2))
    await job_of(funded, "half", "a", (3,), milli=500)
    with pytest.raises(IntegrityError, match=r"envelope a/main: 0 \+ 3 > 2.5 GPUs"):
        await write_charge(funded, charge("j", main, (0, 1, 2)))
    assert (
        await opened(funded, charge("j", main, (0, 1)), charge("half", main, (3,), milli=500))
        == []
    )
    assert await sums(funded) == {"a/main": 2500}
    with pytest.raises(IntegrityError, match=r"a/main: 2.5 \+ 1 > 2.5"):
        await write_charge(funded, charge("j", main, (2,)))
    assert await funding_drift(funded) == []


async def test_parts_of_several_gpus_are_paid_for_as_parts(funded: Ledger):
    main = await envelope(funded, "a", milli=1000)
    await job_of(funded, "wide", "a", (0, 1), milli=400)
    await job_of(funded, "more", "a", (0, 1), milli=150)
    assert await opened(funded, charge("wide", main, (0, 1), milli=400)) == []
    assert await sums(funded) == {"a/main": 800}
    why = await opened(funded, charge("more", main, (0, 1), milli=150))
    assert why == ["envelope a/main: 0.8 + 0.3 > 1 GPUs"]
    assert await funding_drift(funded) == []


async def test_what_is_refused_is_told_and_the_rest_is_open(funded: Ledger):
    main = await envelope(funded, "a", milli=2000)
    for gpu in range(3):
        await job_of(funded, f"j{gpu}", "a", (gpu,))
    why = await opened(funded, *(charge(f"j{gpu}", main, (gpu,)) for gpu in range(3)))
    assert why == ["envelope a/main: 2 + 1 > 2 GPUs"]
    # Again: what is open stays as it is.
    before = await funded.rows("SELECT * FROM charges ORDER BY id")
    assert await opened(funded, charge("j0", main), charge("j1", main, (1,))) == []
    assert await funded.rows("SELECT * FROM charges ORDER BY id") == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"starts_at": SINCE + timedelta(days=4000)}, "envelope a/main is not open"),
        ({"ends_at": SINCE + timedelta(seconds=1)}, "envelope a/main is not open"),
    ],
)
async def test_outside_its_window_it_pays_for_nothing(
    funded: Ledger, fields: dict[str, Any], said: str
):
    main = await envelope(funded, "a", **fields)
    await job_of(funded, "j", "a")
    with pytest.raises(IntegrityError, match=said):
        await write_charge(funded, charge("j", main))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpus": (0, 2)}, "does not hold 1000/1000 of each of GPUs"),
        ({"rank": 1}, "not present in table .placements"),
        ({"attempt": 2}, "not present in table .placements"),
        ({"milli": 500}, "does not hold 500/1000"),
        ({"gpus": (0, 0)}, "does not hold"),
        ({"job": "nobody"}, "not present in table .placements"),
    ],
)
async def test_only_gpus_that_a_placement_holds_are_charged(
    funded: Ledger, fields: dict[str, Any], said: str
):
    main = await envelope(funded, "a", milli=9000)
    await job_of(funded, "j", "a", (0, 1))
    values: dict[str, Any] = {"job": "j", "envelope": main, **fields}
    with pytest.raises(IntegrityError, match=said):
        await write_charge(funded, charge(**values))


async def test_a_gpu_is_charged_once_and_not_when_its_placement_is_over(funded: Ledger):
    main = await envelope(funded, "a", milli=9000)
    other = await envelope(funded, "root", milli=9000)
    await job_of(funded, "j", "a", (0, 1))
    await write_charge(funded, charge("j", main, (0,)))
    with pytest.raises(IntegrityError, match="some are charged already"):
        await write_charge(funded, charge("j", other, (0, 1)))
    await write_charge(funded, charge("j", other, (1,)))
    await funded.finish("j")
    with pytest.raises(IntegrityError, match="does not hold"):
        await write_charge(funded, charge("j", main, (0,)))
    assert await sums(funded) == {"a/main": 0, "root/main": 0}


@pytest.mark.parametrize(
    ("owner", "fields", "lent", "said"),
    [
        ("b", {}, False, None),
        ("b", {"sharing": "none"}, False, "is not shared with tenant b"),
        ("b", {"lend_to": ["c"], "lend_milli": 1000}, True, "is not lent to tenant b"),
        ("b", {"lend_to": ["b"], "lend_milli": 1000}, True, None),
        ("b", {"lend_to": ["b"], "lend_milli": 500}, True, r"lends no more: 0 \+ 1 > 0.5 GPUs"),
        ("b", {}, True, "lends no more"),
        ("nobody", {}, False, "tenant nobody of job j has no budget"),
        ("late", {}, False, "tenant late of job j has no budget"),
    ],
)
async def test_who_may_use_an_envelope(
    funded: Ledger, owner: str, fields: dict[str, Any], lent: bool, said: str | None
):
    await tenant(funded, "late", budget=False)
    main = await envelope(funded, "a", **fields)
    await job_of(funded, "j", owner)
    asked = charge("j", main, lent=lent)
    if said is None:
        await write_charge(funded, asked)
        assert await funding_drift(funded) == []
        return
    with pytest.raises(IntegrityError, match=said):
        await write_charge(funded, asked)
    assert await sums(funded) == {"a/main": 0}


async def test_a_cap_is_over_its_envelopes_and_over_those_made_later(funded: Ledger):
    first = await envelope(funded, "a", milli=4000)
    await cap(funded, "a", 3000, first, name="own")
    await cap(funded, "root", 2000)
    later = await envelope(funded, "b", milli=4000)
    await job_of(funded, "ja", "a", (0, 1))
    await job_of(funded, "jb", "b", (2,))
    await write_charge(funded, charge("ja", first, (0, 1)))
    with pytest.raises(IntegrityError, match=r"cap root/all: 2 \+ 1 > 2 GPUs"):
        await write_charge(funded, charge("jb", later, (2,)))
    assert await sums(funded, "funding_caps") == {"a/own": 2000, "root/all": 2000}
    # b leaves the tree: no cap is over it any more.
    await funded.rows("UPDATE tenants SET parent = NULL WHERE name = 'b'")
    await write_charge(funded, charge("jb", later, (2,)))
    assert await sums(funded, "funding_caps") == {"a/own": 2000, "root/all": 2000}
    # And comes back: what it uses counts again, over the cap too, until somebody closes it.
    await funded.rows("UPDATE tenants SET parent = 'a' WHERE name = 'b'")
    assert await sums(funded, "funding_caps") == {"a/own": 2000, "root/all": 3000}
    await funded.finish("ja")
    assert await sums(funded, "funding_caps") == {"a/own": 0, "root/all": 1000}
    assert await funding_drift(funded) == []


async def test_a_charge_ends_once_and_is_never_rewritten(funded: Ledger):
    main = await envelope(funded, "a")
    await job_of(funded, "j", "a")
    await write_charge(funded, charge("j", main))
    for change in (
        "milli = 1", "lent = true", "since = now()", "gpu_indices = '{1}'", "rank = 1",
        "envelope_id = envelope_id + 1, ended_at = clock_timestamp(), end_reason = 'x'",
        "started_at = now()",
    ):  # fmt: skip
        with pytest.raises(IntegrityError, match="never rewritten"):
            await funded.rows(f"UPDATE charges SET {change}")
    for statement in ("DELETE FROM charges", "TRUNCATE charges", "DELETE FROM envelopes"):
        with pytest.raises(IntegrityError, match="never removed"):
            await funded.rows(statement)
    async with funded.database.transaction() as connection:
        (one,) = await open_of(connection, "j")
        assert one == charge("j", main, id=one.id)
        assert await close_charges(connection, [one.id], "recalled") == {one.id}
        assert await close_charges(connection, [one.id], "recalled") == frozenset()
    with pytest.raises(IntegrityError, match="never rewritten"):
        await funded.rows("UPDATE charges SET ended_at = NULL, end_reason = NULL")
    with pytest.raises(IntegrityError, match="opened before it is closed"):
        await funded.rows(
            "INSERT INTO charges (job_id, attempt, rank, envelope_id, gpu_indices, milli, since,"
            " ended_at, end_reason) SELECT job_id, attempt, rank, envelope_id, gpu_indices, milli,"
            " since, clock_timestamp(), 'x' FROM charges"
        )
    assert await sums(funded) == {"a/main": 0}


async def test_a_charge_begins_when_it_is_written_and_ends_by_now(funded: Ledger):
    main = await envelope(funded, "a")
    await job_of(funded, "j", "a")
    insert = (
        "INSERT INTO charges (job_id, attempt, rank, envelope_id, gpu_indices, milli, since,"
        f" started_at) VALUES ('j', 1, 0, {main}, '{{{{0}}}}', 1000, now(), "
        "now() + interval '{}')"
    )
    for moment in ("-1 minute", "1 hour"):
        with pytest.raises(IntegrityError, match="it begins now"):
            await funded.rows(insert.format(moment))
    await write_charge(funded, charge("j", main))
    end = "UPDATE charges SET end_reason = 'x', ended_at = now() + interval '1 hour'"
    with pytest.raises(IntegrityError, match="still to come"):
        await funded.rows(end)
    assert await sums(funded) == {"a/main": 1000}


@pytest.mark.parametrize("way", ["finish", "release", "node-lost", "by-hand"])
async def test_charges_close_with_their_placement(funded: Ledger, way: str):
    main = await envelope(funded, "a", milli=8000)
    await job_of(funded, "j", "a", (0, 1))
    await job_of(funded, "k", "a", (2,))
    await write_charge(funded, charge("j", main, (0,)))
    await write_charge(funded, charge("j", main, (1,)))
    await write_charge(funded, charge("k", main, (2,)))
    if way == "finish":
        await funded.finish("j")
    elif way == "release":
        await funded.release("j")
    elif way == "node-lost":
        end = NodeEnd(node_id="node-a", epoch=1, state=NodeState.LOST, reason="gone")
        await funded.run(funded.registry.end_node, end)
    else:
        await funded.rows(
            "UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'x'"
            " WHERE job_id = 'j'"
        )
    rows = await funded.rows(
        "SELECT c.ended_at = p.ended_at AS alike, c.end_reason = p.end_reason AS why"
        "  FROM charges c JOIN placements p USING (job_id, attempt, rank) WHERE job_id = 'j'"
    )
    assert rows == [{"alike": True, "why": True}] * 2
    assert await sums(funded) == {"a/main": 0 if way == "node-lost" else 1000}
    assert await funding_drift(funded) == []


async def test_a_charge_ends_with_its_envelope_whenever_it_is_closed(funded: Ledger):
    main = await envelope(funded, "a", milli=8000)
    await job_of(funded, "j", "a")
    await job_of(funded, "k", "a", (1,))
    for job, gpu in (("j", 0), ("k", 1)):
        await write_charge(funded, charge(job, main, (gpu,)))
    end = await funded.value("UPDATE envelopes SET ends_at = clock_timestamp() RETURNING ends_at")
    async with funded.database.transaction() as connection:
        (one,) = await open_of(connection, "j")
        await close_charges(connection, [one.id], "its envelope has ended")
    await funded.finish("k")
    ends = await funded.rows("SELECT DISTINCT ended_at FROM charges")
    assert ends == [{"ended_at": end}]
    with pytest.raises(IntegrityError, match="has ended at"):
        await funded.rows("UPDATE envelopes SET ends_at = NULL")


async def test_of_sixteen_at_once_one_gets_the_last_gpu(ledger: Ledger):
    await ledger.register(gpus=17)
    await tenant(ledger, "a")
    main = await envelope(ledger, "a", milli=2000)
    jobs = [await job_of(ledger, f"j{gpu}", "a", (gpu,)) for gpu in range(17)]
    await write_charge(ledger, charge("j16", main, (16,)))
    outcomes = await asyncio.gather(
        *(opened(ledger, charge(job, main, (gpu,))) for gpu, job in enumerate(jobs[:16]))
    )
    assert sorted(outcomes) == [[]] + [["envelope a/main: 2 + 1 > 2 GPUs"]] * 15
    assert await funding_drift(ledger) == []


async def test_two_cycles_on_the_same_envelopes_in_crossed_order_never_lock_each_other(
    funded: Ledger,
):
    made = [await envelope(funded, name, milli=8000) for name in ("a", "b", "root")]
    await cap(funded, "root", 99000)
    await cap(funded, "a", 99000, made[0], name="own")
    for gpu in range(8):
        await job_of(funded, f"j{gpu}", "a", (gpu,))

    async def cycle(gpus: range, order: list[int]) -> None:
        """Close what is open and open it at other envelopes, in one transaction each time."""
        for turn in range(12):
            wanted = [charge(f"j{gpu}", order[(gpu + turn) % 3], (gpu,)) for gpu in gpus]
            async with funded.database.transaction() as connection:
                await lock_funding(connection, order)
                for gpu in gpus:
                    before = await open_of(connection, f"j{gpu}")
                    await close_charges(connection, [one.id for one in before], "again")
                assert await open_charges(connection, wanted[::-1]) == ()

    async with asyncio.timeout(60):
        await asyncio.gather(cycle(range(4), made), cycle(range(4, 8), made[::-1]))
    assert await funding_drift(funded) == []


async def test_two_settlements_of_cycles_never_lock_each_other(funded: Ledger):
    """Each closes charges for several reasons and opens others, in a statement for each."""
    made = [await envelope(funded, name, milli=8000) for name in ("a", "b", "root")]
    for gpu in range(8):
        await job_of(funded, f"j{gpu}", "a", (gpu,))
    codes = (FundingCode.NO_ROOM, FundingCode.CAP, FundingCode.NOT_OPEN)

    async def cycle(gpus: list[int], order: list[int]) -> None:
        for turn in range(12):
            async with funded.database.transaction() as connection:
                held = [await open_of(connection, f"j{gpu}") for gpu in gpus]
            ended = tuple(
                Ended(one, one.gpus, codes[one.envelope % 3]) for each in held for one in each
            )
            wanted = tuple(charge(f"j{gpu}", order[(gpu + turn) % 3], (gpu,)) for gpu in gpus)
            async with funded.database.transaction() as connection:
                await Settlement(Funded(ended, wanted, {})).settle(connection)

    async with asyncio.timeout(60):
        await asyncio.gather(cycle([0, 1, 2, 3], made), cycle([7, 6, 5, 4], made[::-1]))
    assert sum((await sums(funded)).values()) == 8000
    assert await funding_drift(funded) == []


async def test_a_placement_that_is_ending_gets_no_charge(funded: Ledger):
    main = await envelope(funded, "a")
    await job_of(funded, "j", "a")
    async with funded.database.transaction() as connection:
        await connection.execute(
            text("UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'x'")
        )
        assert "does not hold" in (await opened(funded, charge("j", main)))[0]
    assert await funded.rows("SELECT FROM charges") == []


async def test_facts_are_none_without_a_budget_and_all_of_it_with_one(ledger: Ledger):
    await ledger.register(gpus=4, mig=(3,))
    await ledger.rows("""UPDATE nodes SET labels = '{"zone": "z"}'""")
    await tenant(ledger, "a", budget=False)
    async with ledger.database.transaction() as connection:
        assert await load_facts(connection, ledger.pool) is None
    await ledger.rows("UPDATE tenants SET budget_since = :since", since=SINCE)
    main = await envelope(ledger, "a", milli=4000, gpu_type="H100", lend_to=["x"], lend_milli=1000)
    joint = await cap(ledger, "a", 3000, main)
    await job_of(ledger, "j", "a", (0, 1))
    await job_of(ledger, "m", "a", (3,), milli=0, slices=0b1111, mig="3g.40gb")
    await job_of(ledger, "other", "x", (2,))
    await ledger.rows(
        """UPDATE jobs SET spec = spec || '{"funding": {"allow_borrow": true, "sponsors": ["x"]},
           "preemptible": false}' WHERE id = 'j'"""
    )
    await write_charge(ledger, charge("j", main, (1,)))
    async with ledger.database.transaction() as connection:
        facts = await load_facts(connection, ledger.pool)
        elsewhere = await load_facts(connection, "elsewhere")
        everywhere = await load_facts(connection, None)
    assert facts
    assert elsewhere
    assert everywhere
    assert facts == everywhere
    assert elsewhere == facts._replace(uses=())
    owned = facts.envelopes[main]
    assert (owned.tenant, owned.spec.gpus, owned.spec.gpu_type) == ("a", 4.0, "H100")
    assert owned.spec.lending
    assert owned.spec.lending.to == ("x",)
    assert owned.spec.sharing is Sharing.FAMILY
    assert owned.spec.end is None
    (capped,) = facts.caps
    assert (capped.id, capped.envelopes, capped.spec.gpus) == (joint, {main}, 3.0)
    job, mig = facts.uses
    assert job.terms.sponsors == ("x",)
    assert not job.preemptible
    assert mig.preemptible
    (share,) = job.shares
    assert share.where == Where(ledger.pool, "H100", frozenset({("zone", "z")}))
    assert (share.gpus, share.milli, mig.shares[0].milli) == ((0, 1), 1000, 500)
    (paid,) = facts.charges
    assert paid == charge("j", main, (1,), id=paid.id)


async def test_what_is_not_placed_takes_nothing_back(ledger: Ledger):
    """The database refuses the owner its GPUs, so its guest goes on being paid for."""
    await ledger.register(gpus=8)
    await tenant(ledger, "root")
    for name in ("red", "blue"):
        await tenant(ledger, name, "root")
    await envelope(ledger, "red", milli=2000)
    await ledger.enqueue("guest", gpus=2, tenant="blue")
    async with ledger.listening("guest"):
        await ledger.cycle("first")
    own = a_job("own", 2, tenant="red", cpus=0, ram=0)
    async with ledger.database.transaction() as connection:
        nodes = await load_nodes(connection, ledger.pool)
        funding = await read_funding(connection, ledger.pool, [own])
        now = await clock(connection)
        made = plan([own], nodes, (), PackingPolicy(), now)
        settlement = settlement_of(funding, ledger.pool, made, [own], nodes, now)
        assert settlement is not None
        assert [each.for_job for each in settlement.funded.ended] == ["own"]
        request = CycleRequest(pool=ledger.pool, cycle_id="second")
        # It is not in the queue any more.
        assert await commit(connection, request, made, [own], nodes, settlement) == set()
    open_now = "SELECT job_id FROM charges WHERE ended_at IS NULL"
    assert [row["job_id"] for row in await ledger.rows(open_now)] == ["guest"]
    assert settlement.of_those([]).news == ()
