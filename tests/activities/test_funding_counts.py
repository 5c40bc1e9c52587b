"""What is counted of who pays: gauges, demotions, recalls, and sums that differ."""

from typing import Any, cast

import pytest
from sqlalchemy import text

from longshore.activities.funding.differences import FUNDING_DIFFERENCES
from longshore.activities.metrics import FUNDING_DEMOTIONS, FUNDING_RECALLS, Metric, Metrics
from longshore.workers import sampling
from longshore.workers.sampling import OTHERS, sample_funding
from tests.support.funding import cap, envelope, tenant
from tests.support.ledger import Ledger


class Noted:
    """Notes what is measured."""

    def __init__(self) -> None:
        self.counted: dict[tuple[str, ...], float] = {}

    def add(self, metric: Metric, count: int = 1, **labels: str) -> None:
        key = metric.name, *(labels[name] for name in metric.labels if name != "pool")
        self.counted[key] = self.counted.get(key, 0) + count

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        self.counted[tuple(labels[name] for name in metric.labels)] = value

    def observe(self, metric: Metric, seconds: float, **labels: str) -> None:
        pass


@pytest.fixture
async def funded(ledger: Ledger) -> Ledger:
    """`red`, which has four GPUs, and `blue` below `root`, and a node of eight GPUs."""
    await ledger.register(gpus=8)
    await tenant(ledger, "root")
    await tenant(ledger, "red", "root")
    await tenant(ledger, "blue", "root")
    return ledger


async def runs(ledger: Ledger, job: str, owner: str, gpus: int, *others: str) -> None:
    await ledger.enqueue(job, gpus=gpus, tenant=owner)
    async with ledger.listening(job, *others):
        await ledger.cycle(f"cycle-{job}")


async def differences(ledger: Ledger) -> list[tuple[Any, ...]]:
    rows = await ledger.rows(FUNDING_DIFFERENCES)
    return [(row["subject"], row["what"], row["counted"], row["held"]) for row in rows]


async def without_triggers(ledger: Ledger, statement: str) -> None:
    async with ledger.database.transaction() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))
        await connection.execute(text(statement))


async def test_gauges_tell_gpus_by_tenant_and_class(
    funded: Ledger, monkeypatch: pytest.MonkeyPatch
):
    noted = Noted()
    metrics = cast(Metrics, noted)
    await envelope(funded, "red", milli=4000)
    await runs(funded, "owner", "red", 3)
    await runs(funded, "guest", "blue", 1)
    await runs(funded, "idle", "blue", 2)
    shown = await sample_funding(funded.database, metrics)
    assert noted.counted == {
        ("red", "OWNED"): 3, ("blue", "SHARED"): 1, ("blue", "UNFUNDED"): 2,
    }  # fmt: skip
    await funded.finish("idle")
    await sample_funding(funded.database, metrics, shown)
    assert noted.counted["blue", "UNFUNDED"] == 0
    noted.counted.clear()
    monkeypatch.setattr(sampling, "MOST_TENANTS", 1)
    await sample_funding(funded.database, metrics)
    assert noted.counted == {("red", "OWNED"): 3, (OTHERS, "SHARED"): 1}


async def test_nothing_is_measured_where_no_tenant_has_a_budget(ledger: Ledger):
    await ledger.register(gpus=1)
    await runs(ledger, "j", "red", 1)
    noted = Noted()
    assert await sample_funding(ledger.database, cast(Metrics, noted)) == frozenset()
    assert noted.counted == {}


async def test_a_cycle_counts_who_lost_a_payer(funded: Ledger, monkeypatch: pytest.MonkeyPatch):
    noted = Noted()
    monkeypatch.setattr(funded.cycles, "_metrics", cast(Metrics, noted))
    await envelope(funded, "red", milli=4000)
    await runs(funded, "guest", "blue", 4)
    assert (FUNDING_DEMOTIONS.name, "NO_ROOM") not in noted.counted
    await runs(funded, "owner", "red", 4, "guest")
    assert noted.counted[FUNDING_DEMOTIONS.name, "NO_ROOM"] == 1
    assert noted.counted[FUNDING_RECALLS.name,] == 1


async def test_sums_that_are_not_those_of_the_charges_are_found(funded: Ledger):
    one = await envelope(funded, "red", milli=4000)
    await cap(funded, "red", 4000, one)
    await runs(funded, "owner", "red", 3)
    await runs(funded, "other", "red", 1)
    await funded.finish("other")
    assert await differences(funded) == []
    await without_triggers(funded, "UPDATE envelopes SET used = 4000, lent = 1000")
    await without_triggers(funded, "UPDATE funding_caps SET used = 0")
    await without_triggers(
        funded, "UPDATE placements SET ended_at = now(), end_reason = 'finished'"
        " WHERE job_id = 'owner'",
    )  # fmt: skip
    assert await differences(funded) == [
        ("envelope red/main", "used", 4000, 3000), ("envelope red/main", "lent", 1000, 0),
        ("cap red/all", "used", 0, 3000), ("job owner", "attempt 1", 3000, 0),
    ]  # fmt: skip
