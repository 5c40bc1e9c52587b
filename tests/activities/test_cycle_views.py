"""The cycles of pools summed up, as people look at them."""

import pytest

from longshore.activities.cycle_views import CycleViews
from longshore.activities.views import Views
from longshore.models.cycles import AT_MOST
from longshore.models.pool import Growth
from tests.support.ledger import Ledger


@pytest.fixture
def views(ledger: Ledger) -> CycleViews:
    return CycleViews(ledger.database)


async def add(ledger: Ledger, number: int, seconds_ago: float, took: float, **row: object) -> None:
    """Store a cycle as the activity does; without parts in `row`, as an earlier version did."""
    values = {"placed": 0, "refused": 0, "looked_at": None, "plan_ms": None, **row}
    await ledger.rows(
        "INSERT INTO cycles (id, pool, committed_at, queued, placed, refused, took_ms, looked_at,"
        " read_ms, plan_ms, commit_ms, explain_ms)"
        " VALUES (:id, :pool, clock_timestamp() - make_interval(secs => :ago), 5, :placed,"
        " :refused, :took, :looked_at, :plan_ms, :plan_ms, :plan_ms, :plan_ms) RETURNING id",
        id=f"c{number}", pool=ledger.pool, ago=seconds_ago, took=took, **values,
    )  # fmt: skip


async def test_a_pool_without_cycles_has_no_times(ledger: Ledger, views: CycleViews):
    await ledger.set_growth(Growth.OPEN)
    (found,) = await views.cycles(ledger.pool, last=5)
    assert (found.cycles, found.per_minute, found.since, found.p50_ms) == (0, 0, None, None)
    assert (found.waiting, found.simulated, found.latest) == (0, False, ())


async def test_the_last_hour_is_summed_up(ledger: Ledger, views: CycleViews):
    await ledger.register(gpus=2)
    async with ledger.listening("a"):
        await ledger.enqueue("a", gpus=8)
    await add(ledger, 1, 7200, 999)
    for number in range(2, 12):
        await add(ledger, number, 600 - number, number, placed=2, refused=1, looked_at=4,
                  plan_ms=number / 2)  # fmt: skip
    (found,) = await views.cycles(ledger.pool, last=2)
    assert (found.cycles, found.placed, found.refused, found.waiting) == (10, 20, 10, 1)
    assert found.per_minute == pytest.approx(1, rel=0.1)
    assert (found.p50_ms, found.p95_ms) == (6.5, pytest.approx(10.55))
    assert (found.plan_ms, found.looked_at, found.simulated) == (3.25, 4.0, True)
    pools = {pool.spec.name: pool for pool in await Views(ledger.database).pools()}
    assert pools[ledger.pool].simulated, "as the list of pools says"
    assert [(each.id, each.took_ms, each.plan_ms) for each in found.latest] == [
        ("c11", 11, 5.5), ("c10", 10, 5.0),
    ]  # fmt: skip


async def test_cycles_of_an_earlier_version_have_no_parts(ledger: Ledger, views: CycleViews):
    await ledger.set_growth(Growth.OPEN)
    await add(ledger, 1, 90, 30)
    await add(ledger, 2, 30, 10, plan_ms=4, looked_at=3)
    (found,) = await views.cycles(ledger.pool, last=2)
    assert (found.cycles, found.p50_ms, found.plan_ms, found.looked_at) == (2, 20, 4, 3)
    assert [each.plan_ms for each in found.latest] == [4, None]


async def test_of_many_cycles_the_latest_are_summed_up(ledger: Ledger, views: CycleViews):
    await ledger.set_growth(Growth.OPEN)
    await ledger.rows(
        "INSERT INTO cycles (id, pool, committed_at, queued, placed, refused, took_ms)"
        " SELECT 'c' || n, :pool, clock_timestamp() - make_interval(secs => n), 0, 0, 0, n"
        " FROM generate_series(1, :many) n RETURNING id",
        pool=ledger.pool, many=2 * AT_MOST,
    )  # fmt: skip
    (found,) = await views.cycles()
    assert found.cycles == AT_MOST
    assert found.per_minute == pytest.approx(60, rel=0.1)
    assert found.p50_ms == pytest.approx((AT_MOST + 1) / 2)
    assert found.latest == ()
