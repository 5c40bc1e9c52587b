"""Many placements at one moment, by plain SQL: of each amount no more is held than there is."""

import asyncio
import random
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.models.mig import positions_of
from tests.support.ledger import Ledger

AT_ONCE = 16
SHARE: dict[str, Any] = {"milli": 1, "vram": 1, "cpu": 1, "ram": 1}


@pytest.mark.parametrize(
    ("node", "wish", "used", "fit"),
    [
        ({"gpus": 16}, {"cpu": 5000}, "cpu_milli_used FROM nodes", 3),
        ({"gpus": 16}, {"ram": 20_000}, "ram_mb_used FROM nodes", 3),
        (
            {"gpus": 16, "storage_bandwidth": 4}, {"storage": 900},
            "storage_mb_s_used FROM nodes", 4,
        ),
        ({"gpus": 16, "power": 3000}, {"power": 700_000}, "milliwatts_used FROM nodes", 4),
        ({"gpus": 1}, {**SHARE, "vram": 30_000}, "vram_mb_used FROM gpus", 2),
        ({"gpus": 1}, {**SHARE, "milli": 334}, "milli_used FROM gpus", 2),
        ({"gpus": 1}, {"vram": 0}, "vram_mb_used FROM gpus", 1),
    ],
    ids=["cores", "ram", "storage", "power", "memory", "thousandths", "holders"],
)  # fmt: skip
async def test_of_many_at_once_as_many_are_placed_as_fit(
    ledger: Ledger,
    node: dict[str, Any],
    wish: dict[str, Any],
    used: str,
    fit: int,
):
    await ledger.register(**node)
    jobs = [f"job-{number}" for number in range(AT_ONCE)]
    for job in jobs:
        await ledger.add_job(job)
    outcomes = await asyncio.gather(
        *(ledger.place(job, [i % node["gpus"]], **wish) for i, job in enumerate(jobs)),
        return_exceptions=True,
    )
    assert all(outcome is None or isinstance(outcome, IntegrityError) for outcome in outcomes)
    assert outcomes.count(None) == fit
    largest = max(wish.values())  # what the case is about
    assert await ledger.value(f"SELECT {used}") == fit * largest
    assert await ledger.drift() == []


async def test_instances_that_come_at_once_never_overlap(ledger: Ledger):
    """Every position of every profile is asked for at one moment, in some order."""
    await ledger.register(gpus=1, mig=[0])
    positions = positions_of("H100", 80)
    assert positions is not None
    wishes = [(profile, mask) for profile, masks in positions.items() for mask in masks]
    random.Random(5).shuffle(wishes)
    for number in range(len(wishes)):
        await ledger.add_job(f"job-{number}")
    outcomes = await asyncio.gather(
        *(
            ledger.place(
                f"job-{number}", [0], milli=0, mig=profile, slices=mask,
                vram=10_000 * mask.bit_count(), cpu=1, ram=1,
            )
            for number, (profile, mask) in enumerate(wishes)
        ),
        return_exceptions=True,
    )  # fmt: skip
    assert all(outcome is None or isinstance(outcome, IntegrityError) for outcome in outcomes)
    taken = [row["slices"] for row in await ledger.rows("SELECT slices FROM leases")]
    assert taken
    union = 0
    for mask in taken:
        assert not union & mask
        union |= mask
    assert await ledger.value("SELECT slices_used FROM gpus") == union
    # Nothing was refused that would have fitted beside what is there.
    assert all(mask & union for _, mask in wishes)
    assert await ledger.drift() == []


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("nodes SET cpu_milli_used = cpu_milli + 1", "nodes_cpu_within_size"),
        ("nodes SET ram_mb_used = ram_mb + 1", "nodes_ram_within_size"),
        ("nodes SET storage_mb_s_used = storage_mb_s + 1", "nodes_storage_within_size"),
        ("nodes SET milliwatts_used = milliwatts + 1", "nodes_power_within_size"),
        ("nodes SET milliwatts_used = -1", "nodes_power_within_size"),
        ("gpus SET vram_mb_used = vram_mb + 1", "gpus_vram_within_size"),
        ("gpus SET milli_used = 1001", "gpus_milli_within_size"),
        ("gpus SET milli_used = 0", "gpus_kind_is_of_use"),
        ("gpus SET kind = NULL", "gpus_kind_is_of_use"),
    ],
)
async def test_sums_are_not_written_over_what_there_is(
    ledger: Ledger, change: str, constraint: str
):
    await ledger.register(gpus=1, storage_bandwidth=4, power=700)
    await ledger.add_job("a")
    await ledger.place("a", [0], **{**SHARE, "milli": 500})
    with pytest.raises(IntegrityError, match=constraint):
        await ledger.rows(f"UPDATE {change}")
    assert await ledger.drift() == []
