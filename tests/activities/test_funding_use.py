"""Who held GPUs and who paid, from leases and charges: each GPU-second is of exactly one class."""

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from longshore.activities.funding.use import (
    Used,
    in_use,
    leases_at,
    paid_now,
    payers_of,
    usage,
    used,
    with_slots,
)
from longshore.client.use_view import usage_table
from longshore.models.funding import Envelope, FundingClass
from longshore.models.funding_use import Usage, UsedBy
from longshore.scheduling.funding.facts import Branch, Facts, Owned, Share, Use, Where
from longshore.scheduling.funding.split import classes_of
from tests.support.funding import charge, envelope, job_of, tenant, write_charge
from tests.support.ledger import Ledger
from tests.support.screens import drawn

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def own(ledger: Ledger, name: str, owner: str, gpus: tuple[int, ...], **fields: Any) -> str:
    """Let a job of a tenant run, whose leases say so."""
    await job_of(ledger, name, owner, gpus, **fields)
    async with ledger.database.transaction() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(
            text("UPDATE leases SET tenant = :t WHERE job_id = :id"), {"t": owner, "id": name}
        )
    return name


async def written(ledger: Ledger, table: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as they are, whatever the database would say of them."""
    async with ledger.database.transaction() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        for row in rows:
            names = ", ".join(row)
            values = ", ".join(f":{name}" for name in row)
            await connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)


async def asked(
    ledger: Ledger, since: datetime, until: datetime, by: UsedBy = UsedBy.TENANT, **only: Any
) -> tuple[Used, ...]:
    async with ledger.database.snapshot() as connection:
        return await used(connection, since, until, by, **only)


async def used_since(ledger: Ledger, since: datetime, by: UsedBy, **only: Any) -> Usage:
    async with ledger.database.snapshot() as connection:
        return await usage(connection, since, None, by, **only)


def moment(numbers: random.Random, before: float = 100) -> datetime:
    return NOW - timedelta(seconds=round(numbers.uniform(0, before * 3600), 6))


async def history(ledger: Ledger, numbers: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Write a past at random: leases, and charges that begin, end, overlap and outlive as no
    worker would leave them."""
    await ledger.register(gpus=8)
    for name in ("root", "red", "blue"):
        await tenant(ledger, name, budget=False)
    since = {"red": moment(numbers, 60), "blue": moment(numbers, 60), "root": NOW - 200 * HOUR}
    for name, at in since.items():
        await ledger.rows("UPDATE tenants SET budget_since = :at WHERE name = :n", at=at, n=name)
    envelopes: list[dict[str, Any]] = []
    for number, owner in enumerate(("root", "red", "blue", "red")):
        ends = moment(numbers, 50) if numbers.random() < 0.5 else None
        envelopes.append({
            "id": 1000 + number, "tenant": owner, "name": f"e{number}", "milli": 8000,
            "starts_at": NOW - 300 * HOUR, "ends_at": ends,
        })  # fmt: skip
    await written(ledger, "envelopes", envelopes)
    leases: list[dict[str, Any]] = []
    charges: list[dict[str, Any]] = []
    for number in range(12):
        owner = numbers.choice(("red", "blue", "default"))
        job = f"j{number}"
        gpus = [10 * number + gpu for gpu in range(numbers.randint(1, 4))]
        await ledger.add_job(job)
        begins = moment(numbers)
        ends = begins + numbers.random() * 40 * HOUR if numbers.random() < 0.7 else None
        share = numbers.choice(
            [
                {"milli": 1000, "slices": 0, "mig_profile": None},
                {"milli": 125, "slices": 0, "mig_profile": None},
                {"milli": 0, "slices": 7, "mig_profile": "3g.40gb"},
            ]
        )
        over = {"ended_at": ends, "end_reason": ends and "finished"}
        leases += [
            {
                "job_id": job, "attempt": 1, "node_id": "node-a", "epoch": 1, "gpu_index": gpu,
                "vram_mb": 1, "tenant": owner, "started_at": begins, **over, **share,
            }
            for gpu in gpus
        ]  # fmt: skip
        for _ in range(numbers.randint(0, 4)):
            paid = moment(numbers)
            until = paid + numbers.random() * 30 * HOUR if numbers.random() < 0.8 else None
            charges.append({
                "job_id": job, "attempt": 1, "rank": 0,
                "envelope_id": numbers.choice(envelopes)["id"],
                "gpu_indices": numbers.sample(gpus, numbers.randint(1, len(gpus))),
                "milli": 1000, "lent": numbers.random() < 0.3, "since": paid, "started_at": paid,
                "ended_at": until, "end_reason": until and "finished",
            })  # fmt: skip
    await written(ledger, "leases", leases)
    await written(ledger, "charges", charges)
    return {
        "leases": leases, "charges": charges, "envelopes": envelopes,
        "since": [since],
    }  # fmt: skip


def by_hand(past: dict[str, list[dict[str, Any]]], at: datetime) -> dict[tuple[str, ...], int]:
    """Return thousandths of GPUs in use at a moment by tenant, class and payer."""
    found: dict[tuple[str, ...], int] = {}
    envelopes = {each["id"]: each for each in past["envelopes"]}
    for lease in past["leases"]:
        if not lease["started_at"] <= at < (lease["ended_at"] or NOW + HOUR):
            continue
        owner = lease["tenant"]
        milli = 375 if lease["slices"] else lease["milli"]
        pays = None
        for each in sorted(past["charges"], key=lambda each: each["started_at"]):
            envelope = envelopes[each["envelope_id"]]
            ends = min(filter(None, (each["ended_at"], envelope["ends_at"], NOW + HOUR)))
            mine = each["job_id"] == lease["job_id"] and lease["gpu_index"] in each["gpu_indices"]
            if mine and each["started_at"] <= at < ends:
                own = envelope["tenant"] == owner
                pays = ("BORROWED" if each["lent"] else "OWNED" if own else "SHARED",
                        envelope["tenant"])  # fmt: skip
                break
        if pays is None:
            budget = past["since"][0].get(owner)
            itself = budget is None or at < budget
            pays = ("OWNED", owner) if itself else ("UNFUNDED", "")
        found[owner, *pays] = found.get((owner, *pays), 0) + milli
    return found


@pytest.mark.parametrize("seed", range(5))
async def test_each_gpu_second_is_of_exactly_one_class(ledger: Ledger, seed: int):
    numbers = random.Random(seed)
    await history(ledger, numbers)
    for since, until in ((NOW - 400 * HOUR, NOW), (NOW - 30 * HOUR, NOW - 7 * HOUR)):
        held = await ledger.value(
            "SELECT sum(extract(epoch FROM greatest(least(coalesce(ended_at, :until), :until)"
            " - greatest(started_at, :since), interval '0'))"
            " * CASE WHEN slices > 0 THEN 375 ELSE milli END) / 1000 FROM leases",
            since=since, until=until,
        )  # fmt: skip
        assert held > 0
        for by in UsedBy:
            found = await asked(ledger, since, until, by)
            assert sum(each.gpu_seconds for each in found) == held
            assert all(each.gpu_seconds > 0 for each in found)


@pytest.mark.parametrize("seed", range(5))
async def test_the_class_of_each_is_that_of_a_plain_count(ledger: Ledger, seed: int):
    """Between two events that follow one another nothing changes: the use there is known."""
    numbers = random.Random(100 + seed)
    past = await history(ledger, numbers)
    times = {
        each[name]
        for rows in past.values()
        for each in rows
        for name in ("started_at", "ended_at", "ends_at", "red", "blue")
        if each.get(name)
    }
    marks = sorted(at for at in times if at < NOW)
    for place in numbers.sample(range(len(marks) - 1), 12):
        begin, end = marks[place], marks[place + 1]
        middle = begin + (end - begin) / 2
        expected = by_hand(past, middle)
        found: dict[tuple[str, ...], Decimal] = {
            (each.tenant, each.funding, each.payer or ""): each.gpu_seconds
            for each in await asked(ledger, begin, end)
        }
        seconds = Decimal((end - begin) // timedelta(microseconds=1)) / 1_000_000
        assert found == {key: seconds * milli / 1000 for key, milli in expected.items()}


@pytest.mark.parametrize("seed", range(5))
async def test_the_database_and_the_code_have_one_rule_of_classes(ledger: Ledger, seed: int):
    """`scheduling.funding.split` says for decisions of which class a GPU is, statements for what
    was: of a random past both say the same, for all GPUs in use at random moments, of tenants
    with a budget. (Charges of others, which the past has too, are refused.)"""
    numbers = random.Random(200 + seed)
    past = await history(ledger, numbers)
    seen: set[FundingClass] = set()
    begin = max(past["since"][0].values())
    for at in [begin + numbers.random() * (NOW - begin) for _ in range(20)]:
        async with ledger.database.snapshot() as connection:
            found = await in_use(connection, at)
        seen |= {each.funding for each in found}
        sums = Counter[tuple[str, FundingClass]]()
        for each in found:
            if each.tenant in past["since"][0]:
                sums[each.tenant, each.funding] += round(1000 * each.gpus)
        assert sums == by_the_code(past, at)
    assert len(seen) > 1


def by_the_code(
    past: dict[str, list[dict[str, Any]]], at: datetime
) -> Counter[tuple[str, FundingClass]]:
    """Return thousandths of GPUs in use at a moment by tenant and class, as decisions have it."""
    budgets = {name: since if since <= at else None for name, since in past["since"][0].items()}
    envelopes = {each["id"]: each for each in past["envelopes"]}
    owned = {
        id: Owned(id, each["tenant"], Envelope(name=each["name"], gpus=8, end=each["ends_at"]))
        for id, each in envelopes.items()
    }
    facts = Facts({name: Branch(None, since) for name, since in budgets.items()}, owned)
    held: dict[tuple[str, str, int], list[int]] = {}
    for lease in past["leases"]:
        if lease["started_at"] <= at < (lease["ended_at"] or NOW + HOUR):
            of_each = lease["slices"].bit_count() * 125 or lease["milli"]
            key = lease["job_id"], lease["tenant"], of_each
            held.setdefault(key, []).append(lease["gpu_index"])
    found = Counter[tuple[str, FundingClass]]()
    for (job, owner, of_each), gpus in held.items():
        if owner not in budgets:
            continue
        share = Share(0, Where("pool", None, None), tuple(gpus), of_each)
        charges = [
            charge(
                job, each["envelope_id"], tuple(set(each["gpu_indices"]).intersection(gpus)),
                lent=each["lent"],
            )
            # Where two pay for one GPU, the first does: it has the last word here.
            for each in sorted(past["charges"], key=lambda each: each["started_at"], reverse=True)
            if each["job_id"] == job and each["started_at"] <= at
            and at < min(filter(None, (
                each["ended_at"], envelopes[each["envelope_id"]]["ends_at"], NOW + HOUR
            )))
        ]  # fmt: skip
        use = Use(job, 1, owner, at, (share,))
        for of in classes_of(use, charges, facts).values():
            found[owner, of] += of_each
    return found


async def test_parts_move_from_one_class_to_the_next_as_they_are_paid_for(ledger: Ledger):
    await ledger.register(gpus=4)
    for name, above in (("root", None), ("red", "root"), ("bank", None)):
        await tenant(ledger, name, above)
    main = await envelope(ledger, "red", milli=2000)
    shared = await envelope(ledger, "root", "pool", milli=500)
    lent = await envelope(ledger, "bank", "loan", milli=1000, lend_to=["red"], lend_milli=1000)
    await own(ledger, "j", "red", (0, 1))
    await own(ledger, "half", "red", (2,), milli=500)
    await own(ledger, "free", "default", (3,))
    await write_charge(ledger, charge("j", main, (0,)))
    await write_charge(ledger, charge("j", lent, (1,), lent=True))
    async with ledger.database.snapshot() as connection:
        found = await paid_now(connection, ["j", "half", "free"], datetime.now(UTC))
    assert {job: [each.words for each in paid] for job, paid in found.items()} == {
        "j": ["1 OWNED by red/main", "1 BORROWED by bank/loan"],
        "half": ["0.5 UNFUNDED: preempted first"],
        "free": ["1 OWNED by default, which has no budget"],
    }
    await write_charge(ledger, charge("half", shared, (2,), milli=500))
    await ledger.finish("j")
    async with ledger.database.snapshot() as connection:
        of_j = await payers_of(connection, "j")
        of_half = await payers_of(connection, "half")
    assert of_j is not None
    assert of_half is not None
    assert of_j.now == ()
    assert [(each.funding, each.by) for each in of_j.hours] == [
        ("OWNED", "red/main"), ("BORROWED", "bank/loan"), ("UNFUNDED", ""),
    ]  # fmt: skip
    assert of_half.words == "0.5 SHARED by root/pool"
    assert of_half.hours_words == "under 0.01 SHARED by root/pool, under 0.01 UNFUNDED"


async def test_each_payer_of_an_array_is_named_once_with_the_gpus_of_all_slots(ledger: Ledger):
    await ledger.register(gpus=4)
    await tenant(ledger, "red")
    main = await envelope(ledger, "red", milli=2000)
    await ledger.add_job("sweep")
    await ledger.rows(
        "INSERT INTO arrays (id, elements, first, last, slots) VALUES ('sweep', 9, 0, 8, 3)"
    )
    for number in (1, 2, 3):
        await own(ledger, f"sweep.s{number}", "red", (number,))
        await ledger.rows(
            "INSERT INTO array_slots (array_id, number, job_id, generation, submitted_at)"
            " VALUES ('sweep', :n, :job, 1, now())", n=number, job=f"sweep.s{number}",
        )  # fmt: skip
    for number in (1, 2):
        await write_charge(ledger, charge(f"sweep.s{number}", main, (number,)))
    async with ledger.database.snapshot() as connection:
        payers = await payers_of(connection, "sweep")
        slots = await with_slots(connection, "sweep")
        held = await leases_at(connection, datetime.now(UTC), job_ids=slots)
    assert payers is not None
    assert payers.words == "2 OWNED by red/main, 1 UNFUNDED: preempted first"
    assert [lease.gpu_index for lease in held] == [1, 2, 3]
    await own(ledger, "chat-r1", "red", (0,))
    async with ledger.database.transaction() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(
            text("INSERT INTO replicas (job_id, service, revision) VALUES ('chat-r1', 'chat', 1)")
        )
    found = await used_since(ledger, datetime.now(UTC) - HOUR, UsedBy.JOB)
    assert sorted((row.job_id or "", row.service, row.funding.value) for row in found.rows) == [
        ("", "chat", "UNFUNDED"), ("sweep", None, "OWNED"), ("sweep", None, "UNFUNDED"),
    ]  # fmt: skip
    names = [cells.split()[:2] for cells in drawn(usage_table(found), 120)]
    assert ["service", "chat"] in names


async def test_without_a_budget_nothing_is_said_of_payers(ledger: Ledger):
    await ledger.register(gpus=1)
    await own(ledger, "j", "red", (0,))
    async with ledger.database.snapshot() as connection:
        assert await payers_of(connection, "j") is None
    found = await used_since(ledger, datetime.now(UTC) - HOUR, UsedBy.JOB)
    [row] = found.rows
    assert (row.funding, row.payer, row.tenant, row.job_id) == ("OWNED", "red", "red", "j")
    assert found.by_class == {FundingClass.OWNED: found.gpu_hours}


async def test_a_lease_of_the_past_has_the_class_of_then(ledger: Ledger):
    await ledger.register(gpus=2)
    await tenant(ledger, "root")
    await tenant(ledger, "red", "root", budget=False)
    main = await envelope(ledger, "root", milli=1000)
    await own(ledger, "j", "red", (0,))
    before = datetime.now(UTC)
    await ledger.rows("UPDATE tenants SET budget_since = :at WHERE name = 'red'", at=before)
    between = await ledger.value("SELECT clock_timestamp()")
    await write_charge(ledger, charge("j", main, (0,)))
    now = await ledger.value("SELECT clock_timestamp()")

    async def at(moment: datetime, **only: Any) -> list[tuple[str, str | None]]:
        async with ledger.database.snapshot() as connection:
            found = await leases_at(connection, moment, **only)
        return [(each.funding.value, each.payer) for each in found]

    assert await at(now, node_id="node-a", gpu_index=0) == [("SHARED", "root")]
    assert await at(between) == [("UNFUNDED", None)]
    assert await at(before - timedelta(microseconds=1)) == [("OWNED", "red")]
    assert await at(now, gpu_index=1) == []
    assert await at(now - HOUR) == []
    assert await at(now, job_ids=["other"]) == []


async def test_use_is_of_one_tenant_and_by_whom_it_is_asked(ledger: Ledger):
    await ledger.register(gpus=4)
    await tenant(ledger, "red")
    main = await envelope(ledger, "red", milli=3000)
    await own(ledger, "big", "red", (0, 1))
    await own(ledger, "small", "red", (2,))
    await own(ledger, "other", "blue", (3,))
    await write_charge(ledger, charge("big", main, (0, 1)))
    since = datetime.now(UTC) - HOUR
    jobs = await used_since(ledger, since, UsedBy.JOB, tenant="red")
    assert {row.job_id for row in jobs.rows} == {"big", "small"}
    assert jobs.rows[0].job_id == "big"
    envelopes = await used_since(ledger, since, UsedBy.ENVELOPE)
    assert {(row.by, row.tenant, row.funding) for row in envelopes.rows} == {
        ("red/main", "red", "OWNED"), ("", "red", "UNFUNDED"), ("blue", "blue", "OWNED"),
    }  # fmt: skip
    assert json.loads(envelopes.model_dump_json())["by_class"].keys() == {"OWNED", "UNFUNDED"}
