"""What the capacity database knows of deadlines: judged, noted once, counted at the end."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from longshore.activities import later_starts
from longshore.activities.buying.inputs import read_need
from longshore.activities.metrics import DEADLINES, JOBS_LATE, Metric, Metrics
from longshore.activities.queue_views import QueueViews
from longshore.activities.snapshot import load_pool
from longshore.activities.views import Views, set_pool
from longshore.models.buying import BuyingPolicy
from longshore.models.deadline import DeadlineOutlook
from longshore.models.job import Tier
from longshore.models.job_status import JobState
from longshore.models.messages import EnqueueRequest
from longshore.models.pool import PoolPacking, PoolSpec
from longshore.models.views import JobView
from tests.support.ledger import Ledger

HOUR = timedelta(hours=1)
ROWS = "SELECT id, deadline_at, late_since FROM jobs ORDER BY id"


class Counted(Metrics):
    """Metrics that are counted here."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Metric, dict[str, str]]] = []

    def add(self, metric: Metric, count: int = 1, **labels: str) -> None:
        self.found.append((metric, labels))

    def of(self, metric: Metric) -> list[dict[str, str]]:
        return [labels for found, labels in self.found if found is metric]


@pytest.fixture
def counted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()
    monkeypatch.setattr(ledger.cycles, "_metrics", found)
    monkeypatch.setattr(ledger.queue, "_metrics", found)
    return found


async def submit(ledger: Ledger, job: str, *, held: bool = False, **spec: object) -> None:
    """Put a job into the queue that was submitted now."""
    request = EnqueueRequest(
        job_id=job, attempt=1, spec=ledger.spec(**spec), submitted_at=datetime.now(UTC), held=held
    )
    assert (await ledger.run(ledger.queue.enqueue, request)).queued


async def seen(ledger: Ledger) -> dict[str, JobView]:
    return {job.id: job for job in await Views(ledger.database).jobs()}


def outlooks(found: Sequence[JobView]) -> dict[str, DeadlineOutlook | None]:
    return {job.id: job.deadline and job.deadline.outlook for job in found}


async def test_a_deadline_counts_from_the_submit_and_is_judged_in_every_list(
    ledger: Ledger,
) -> None:
    await ledger.register(gpus=1)
    await submit(ledger, "runs", expected_duration="2h", deadline="3h")
    async with ledger.listening("runs"):
        assert (await ledger.cycle("one")).placed == 1
    await submit(ledger, "in-time", expected_duration="1h", deadline="4h")
    await submit(ledger, "late", expected_duration="1h", deadline="90m")
    await submit(ledger, "unknown", deadline="30h")
    await submit(ledger, "held", held=True, expected_duration="1h", deadline="90m")
    await submit(ledger, "none")
    async with ledger.listening("late"):
        await ledger.cycle("two")
    found = await seen(ledger)
    (row,) = [row for row in await ledger.rows(ROWS) if row["id"] == "runs"]
    assert row["deadline_at"] == found["runs"].submitted_at + 3 * HOUR
    late = DeadlineOutlook.LATE
    assert outlooks(tuple(found.values())) == {
        "runs": DeadlineOutlook.ON_TIME, "in-time": DeadlineOutlook.ON_TIME, "late": late,
        "unknown": DeadlineOutlook.UNKNOWN, "held": DeadlineOutlook.UNKNOWN, "none": None,
    }  # fmt: skip
    judged = found["late"].deadline
    assert judged is not None
    assert judged.latest_start is not None
    assert found["late"].estimated_start is not None
    assert judged.latest_start < found["late"].estimated_start
    assert judged.at == found["late"].submitted_at + 1.5 * HOUR
    queue = await QueueViews(ledger.database).queue(ledger.pool)
    for job in queue.jobs:
        of_list = found[job.job_id].deadline
        assert (job.deadline and job.deadline.outlook) == (of_list and of_list.outlook)


async def test_no_job_is_late_by_a_start_for_which_no_place_is_kept(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each newcomer that goes first moves it, and a miss is noted once, for good."""
    monkeypatch.setattr(later_starts, "_EVERY", 0.0)
    await ledger.register(gpus=1)
    await submit(ledger, "runs", expected_duration="2h")
    async with ledger.listening("runs"):
        assert (await ledger.cycle("one")).placed == 1
    spec = PoolSpec(name=ledger.pool, packing=PoolPacking(max_reservations=1))
    async with ledger.database.transaction() as connection:
        await set_pool(connection, spec)
    await submit(ledger, "first", expected_duration="2h")
    await submit(ledger, "second", expected_duration="1h", deadline="3h")
    async with ledger.listening("first", "second"):
        await ledger.cycle("two")
    job = (await seen(ledger))["second"]
    assert job.estimated_start is not None
    assert job.estimated_start > job.submitted_at + 3 * HOUR
    assert job.deadline is not None
    assert job.deadline.outlook is DeadlineOutlook.UNKNOWN
    (queued,) = [
        each
        for each in (await QueueViews(ledger.database).queue(ledger.pool)).jobs
        if each.job_id == "second"
    ]
    assert queued.starts_at == job.estimated_start
    assert queued.deadline is not None
    assert queued.deadline.outlook is DeadlineOutlook.UNKNOWN
    for judged in (job.deadline, queued.deadline):
        assert judged.says.startswith("no place is kept for it yet: it may start at ")


async def test_a_job_that_waits_is_told_once_that_it_will_be_late(
    ledger: Ledger, counted: Counted
) -> None:
    await ledger.register(gpus=1)
    await submit(ledger, "runs", expected_duration="2h")
    async with ledger.listening("runs"):
        await ledger.cycle("one")
    await submit(ledger, "late", expected_duration="1h", deadline="90m")
    await submit(ledger, "in-time", expected_duration="1h", deadline="20h")
    async with ledger.listening("late"):
        await ledger.cycle("two")
        told = await ledger.signals("late", "waiting")
        assert told[-1]["reason"].startswith("its deadline: late by ")
        assert "it may start at" in told[-1]["reason"]
        rows = {row["id"]: row["late_since"] for row in await ledger.rows(ROWS)}
        assert rows["late"] is not None
        assert rows["in-time"] is rows["runs"] is None
        assert counted.of(JOBS_LATE) == [{"pool": ledger.pool}]
        await ledger.cycle("three")
        await ledger.cycle("three")  # a repeat
        assert len(await ledger.signals("late", "waiting")) == len(told)
    assert {row["id"]: row["late_since"] for row in await ledger.rows(ROWS)} == rows
    assert len(counted.of(JOBS_LATE)) == 1
    judged = (await seen(ledger))["late"].deadline
    assert judged is not None
    assert judged.late_since == rows["late"]


async def test_one_that_is_held_is_noted_and_hears_nothing(
    ledger: Ledger, counted: Counted
) -> None:
    """Its deadline passes though nobody estimates a start."""
    await submit(ledger, "held", held=True, deadline=datetime.now(UTC) + 20 * HOUR)
    await ledger.rows("UPDATE jobs SET deadline_at = now() - interval '1 minute'")
    await ledger.cycle("one")
    (row,) = await ledger.rows(ROWS)
    assert row["late_since"] is not None
    assert await ledger.told("held", "waiting") == 0
    assert len(counted.of(JOBS_LATE)) == 1


async def test_the_end_says_whether_it_was_met(ledger: Ledger, counted: Counted) -> None:
    await ledger.register(gpus=3)
    for job, deadline in (("met", "5h"), ("missed", "6h"), ("none", None)):
        await submit(ledger, job, deadline=deadline)
    async with ledger.listening("met"):
        assert (await ledger.cycle("one")).placed == 3
    await ledger.rows(
        "UPDATE jobs SET deadline_at = now() - interval '12 minutes' WHERE id = 'missed'"
    )
    for job in ("met", "missed", "none"):
        await ledger.finish(job)
        await ledger.finish(job, delivery=2)
    outcomes = [each["outcome"] for each in counted.of(DEADLINES)]
    assert outcomes == ["met", "missed"]
    found = await seen(ledger)
    judged = {job: found[job].deadline for job in found}
    assert judged["none"] is None
    assert judged["met"] is not None
    assert judged["met"].outlook is DeadlineOutlook.MET
    assert judged["missed"] is not None
    assert judged["missed"].says.startswith("missed by 12m")
    assert found["missed"].state is JobState.SUCCEEDED


async def test_what_somebody_wrote_by_hand_says_nothing(ledger: Ledger) -> None:
    await submit(ledger, "odd", expected_duration="1h", deadline="9h")
    await ledger.rows("UPDATE jobs SET spec = jsonb_set(spec, '{expected_duration}', '\"soon\"')")
    await ledger.cycle("one")
    judged = (await seen(ledger))["odd"].deadline
    assert judged is not None
    assert judged.outlook is DeadlineOutlook.UNKNOWN
    assert "nobody says how long it takes" in judged.says


async def test_what_is_bought_counts_the_latest_start(ledger: Ledger) -> None:
    policy = BuyingPolicy(enabled=True, flex_deadline=24 * HOUR)
    async with ledger.database.transaction() as connection:
        await set_pool(connection, PoolSpec(name=ledger.pool, buying=policy))
    for job, deadline in (("soon", "10h"), ("later", "40h"), ("none", None)):
        await submit(ledger, job, deadline=deadline, tier=Tier.FLEX, expected_duration="2h")
    async with ledger.database.transaction() as connection:
        pool = await load_pool(connection, ledger.pool)
        need = await read_need(connection, pool)
    latest = {job.request.id: job.start_by for job in need.unmet.jobs}
    (submitted,) = [row for row in await ledger.rows(ROWS) if row["id"] == "soon"]
    assert latest == {"soon": submitted["deadline_at"] - 2 * HOUR, "later": None, "none": None}
