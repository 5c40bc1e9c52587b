"""Shared GPUs in the database: what it refuses, and what a cycle commits."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.activities.held_differences import HELD_DIFFERENCES
from longshore.activities.snapshot import load_nodes, load_running
from longshore.activities.views import Views
from longshore.models.node import NodeState
from tests.support.ledger import Ledger

HALF: dict[str, Any] = {"milli": 500, "vram": 20_000, "cpu": 1, "ram": 1}
SLICE: dict[str, Any] = {"milli": 0, "vram": 10_000, "mig": "1g.10gb", "cpu": 1, "ram": 1}


@pytest.fixture
async def node(ledger: Ledger) -> Ledger:
    """A ledger with one node of three 80 GB GPUs, the third in MIG mode, and five jobs."""
    await ledger.register(gpus=3, mig=[2])
    for job in "abcde":
        await ledger.add_job(job)
    return ledger


async def test_of_twenty_who_want_the_last_share_at_once_exactly_one_gets_it(node: Ledger):
    await node.place("a", [0], **HALF)
    jobs = [f"job-{number}" for number in range(20)]
    for job in jobs:
        await node.add_job(job)
    outcomes = await asyncio.gather(
        *(node.place(job, [0], **HALF) for job in jobs), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert len(refused) == 19
    assert all("gpus_milli_within_size" in str(outcome) for outcome in refused)
    assert await node.value("SELECT milli_used FROM gpus WHERE index = 0") == 1000
    assert await node.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 2
    assert await node.drift() == []


async def test_shares_of_several_gpus_that_come_at_once_are_held_to_each(ledger: Ledger):
    """Pairs of four GPUs in both directions: each GPU has room for two halves."""
    await ledger.register(gpus=4)
    pairs = [[0, 1], [2, 3], [1, 2], [0, 3], [0, 2], [1, 3]]
    jobs = {f"job-{number:02}": pairs[number % 6] for number in range(24)}
    for job in jobs:
        await ledger.add_job(job)
    outcomes = await asyncio.gather(
        *(ledger.place(job, gpus, **HALF) for job, gpus in jobs.items()), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert all(isinstance(one, IntegrityError) for one in refused), refused
    assert all("gpus_milli_within_size" in str(one) for one in refused)
    by_job = await ledger.rows(
        "SELECT job_id, count(*) AS leases FROM leases WHERE ended_at IS NULL GROUP BY 1"
    )
    assert {row["leases"] for row in by_job} == {2}
    assert len(by_job) == len(jobs) - len(refused)
    used = [row["milli_used"] for row in await ledger.rows("SELECT milli_used FROM gpus")]
    assert max(used) <= 1000
    # Whatever came first: another pair has room nowhere.
    assert sum(used) >= 3000
    assert await ledger.drift() == []


async def test_one_gpu_that_is_full_refuses_the_share_of_all(node: Ledger):
    await node.place("a", [1], **{**HALF, "vram": 70_000})
    with pytest.raises(IntegrityError, match="gpus_vram_within_size"):
        await node.place("b", [0, 1], **HALF)
    with pytest.raises(IntegrityError, match="is in MIG mode: no lease as share"):
        await node.place("b", [0, 2], **HALF)
    assert await node.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 1
    await node.place("c", [0, 1], **{**HALF, "vram": 10_000})
    await _end(node, "a")
    assert await _kinds(node) == ["share", None]
    await _end(node, "c")
    assert await node.value("SELECT sum(milli_used + vram_mb_used) AS used FROM gpus") == 0
    assert await node.drift() == []


async def test_of_twenty_who_want_one_slice_at_once_exactly_one_gets_it(node: Ledger):
    jobs = [f"job-{number}" for number in range(20)]
    for job in jobs:
        await node.add_job(job)
    outcomes = await asyncio.gather(
        *(node.place(job, [2], slices=1, **SLICE) for job in jobs), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert len(refused) == 19
    assert all("slices 1 of GPU 2 of node node-a are leased" in str(one) for one in refused)
    assert await node.drift() == []


async def test_shares_and_whole_leases_that_come_at_once_never_mix(node: Ledger):
    jobs = [f"job-{number}" for number in range(12)]
    for job in jobs:
        await node.add_job(job)
    outcomes = await asyncio.gather(
        *(
            node.place(job, [0], **(HALF if number % 2 else {"cpu": 1, "ram": 1}))
            for number, job in enumerate(jobs)
        ),
        return_exceptions=True,
    )
    assert all(outcome is None or isinstance(outcome, IntegrityError) for outcome in outcomes)
    kinds = await node.rows(
        "SELECT lease_kind(milli, mig_profile) AS kind, count(*) AS leases FROM leases"
        " WHERE ended_at IS NULL GROUP BY 1"
    )
    assert kinds in ([{"kind": "share", "leases": 2}], [{"kind": "whole", "leases": 1}])
    assert await node.drift() == []


async def test_memory_is_held_against_the_gpu_that_it_is_on(node: Ledger):
    await node.place("a", [0], **{**HALF, "vram": 74_490})
    with pytest.raises(IntegrityError, match="gpus_vram_within_size"):
        await node.place("b", [0], **{**HALF, "vram": 14_685})
    await node.place("b", [1], **{**HALF, "vram": 14_685})
    with pytest.raises(IntegrityError, match="gpus_vram_within_size"):
        await node.place("c", [0], **{**HALF, "vram": 39_000})


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        ({"gpus": [0], **HALF}, {"gpus": [0]}, "leased as share, not free for a lease as whole"),
        ({"gpus": [0]}, {"gpus": [0], **HALF}, "leased as whole, not free for a lease as share"),
        ({"gpus": [0]}, {"gpus": [2]}, "is in MIG mode: no lease as whole"),
        ({"gpus": [0]}, {"gpus": [2], **HALF}, "is in MIG mode: no lease as share"),
        ({"gpus": [0]}, {"gpus": [1], "slices": 1, **SLICE}, "not in MIG mode: no lease as mig"),
        (
            {"gpus": [2], "slices": 0b1111, **SLICE, "mig": "3g.40gb"},
            {"gpus": [2], "slices": 0b1000, **SLICE},
            "slices 8 of GPU 2 of node node-a are leased already",
        ),
        ({"gpus": [0]}, {"gpus": [2], "slices": 0b11, **SLICE}, "are no position of 1g.10gb"),
        (
            {"gpus": [0]},
            {"gpus": [2], "slices": 0b110, **SLICE, "mig": "2g.20gb"},
            "slices 6 of GPU 2 of node node-a are no position of 2g.20gb",
        ),
        (
            {"gpus": [0]},
            {"gpus": [2], "slices": 1, **SLICE, "mig": "9g.90gb"},
            "are no position of 9g.90gb",
        ),
        ({"gpus": [0]}, {"gpus": [1], "milli": 0}, "leases_are_of_one_kind"),
        ({"gpus": [0]}, {"gpus": [2], **SLICE}, "leases_are_of_one_kind"),
    ],
)
async def test_kinds_are_not_mixed_and_slices_are_legal(
    node: Ledger, first: dict[str, Any], then: dict[str, Any], why: str
):
    await node.place("a", **first)
    with pytest.raises(IntegrityError, match=why):
        await node.place("b", **then)
    assert await node.drift() == []


async def test_what_ends_gives_back_its_part_and_the_gpu_is_whole_again(node: Ledger):
    await node.place("a", [0], **HALF)
    await node.place("b", [0], **HALF)
    await node.place("c", [2], slices=1, **SLICE)
    await node.place("d", [2], slices=64, **SLICE)
    for job, left in (("a", ["share", "mig"]), ("c", ["share", "mig"]), ("b", [None, "mig"])):
        await _end(node, job)
        assert await _kinds(node) == left
        assert await node.drift() == []
    await _end(node, "d")
    used = "SELECT sum(milli_used + slices_used + vram_mb_used) AS used FROM gpus"
    assert await node.value(used) == 0
    await node.place("e", [0, 1])


async def test_a_part_is_not_rewritten_not_even_as_it_ends(node: Ledger):
    await node.place("a", [0], **HALF)
    for change in ("milli = 400", "slices = 1", "mig_profile = '1g.10gb'"):
        for table in ("leases", "placements"):
            for also in ("", ", ended_at = now(), end_reason = 'finished'"):
                with pytest.raises(IntegrityError):
                    await node.rows(f"UPDATE {table} SET {change}{also}")


async def test_a_drift_of_parts_is_seen(node: Ledger):
    await node.place("a", [0], **HALF)
    assert await node.rows(HELD_DIFFERENCES) == []
    await node.rows("UPDATE gpus SET milli_used = 400 WHERE index = 0")
    await node.rows("UPDATE gpus SET slices_used = 3, kind = 'mig' WHERE index = 2")
    found = [(row["subject"], row["what"]) for row in await node.rows(HELD_DIFFERENCES)]
    assert found == [("node node-a GPU 0", "milli_used"), ("node node-a GPU 2", "slices_used")]
    assert len(await node.drift()) == 2


async def test_a_cycle_commits_parts_and_the_next_one_sees_them(ledger: Ledger):
    await ledger.register(gpus=2, mig=[1])
    share = {"milli": 600, "vram_per_gpu": 30, "ram": 1}
    jobs: dict[str, dict[str, Any]] = {
        "a-half": share, "b-other": {**share, "milli": 300}, "c-mig": {"mig": "3g.40gb", "ram": 1},
        "d-big": share, "e-whole": {"gpus": 1, "ram": 1},
    }  # fmt: skip
    async with ledger.listening(*jobs):
        for job, spec in jobs.items():
            await ledger.enqueue(job, **spec)
        assert (await ledger.cycle("c/1")).placed == 3
        assert await ledger.drift() == []
        async with ledger.database.transaction() as connection:
            (node,) = await load_nodes(connection, ledger.pool)
            running = await load_running(connection, ledger.pool)
        assert (node.gpus[0].milli_used, node.gpus[0].vram_used) == (900, 60)
        assert (node.gpus[1].slices_used, node.gpus[1].vram_used) == (0b11110000, 40)
        held = {job.job_id: (job.milli, job.slices, job.vram_per_gpu) for job in running}
        assert held == {"a-half": (600, 0, 30), "b-other": (300, 0, 30), "c-mig": (0, 240, 40)}
        await ledger.finish("b-other")
        await ledger.finish("a-half")
        assert (await ledger.cycle("c/2")).placed == 1
        assert await ledger.drift() == []
        by_id = {job.id: job for job in await Views(ledger.database).jobs(pool=ledger.pool)}
        # Both waited; the first in the order of ids takes the GPU.
        assert by_id["d-big"].node_id == "node-a"
        assert by_id["d-big"].milli == 600
        assert by_id["e-whole"].node_id is None
        assert by_id["c-mig"].slices == 0b11110000


async def test_a_cycle_commits_a_share_of_several_gpus(ledger: Ledger):
    await ledger.register(gpus=3)
    wide = {"gpus": 2, "milli": 400, "vram_per_gpu": 30, "ram": 1}
    jobs: dict[str, dict[str, Any]] = {
        "a-one": {"milli": 500, "vram_per_gpu": 60, "ram": 1}, "b-wide": wide, "c-wide": wide,
        "d-whole": {"gpus": 2, "ram": 1},
    }  # fmt: skip
    async with ledger.listening(*jobs):
        for job, spec in jobs.items():
            await ledger.enqueue(job, **spec)
        assert (await ledger.cycle("c/1")).placed == 3
        assert await ledger.drift() == []
        async with ledger.database.transaction() as connection:
            (node,) = await load_nodes(connection, ledger.pool)
            running = {job.job_id: job for job in await load_running(connection, ledger.pool)}
        # Two of GPU 0's 80 GB are taken: both wide ones are on the two others.
        assert [gpu.milli_used for gpu in node.gpus] == [500, 800, 800]
        assert [gpu.vram_used for gpu in node.gpus] == [60, 60, 60]
        assert (running["b-wide"].gpu_indices, running["b-wide"].gpus) == ((1, 2), 0.8)
        by_id = {job.id: job for job in await Views(ledger.database).jobs(pool=ledger.pool)}
        assert (by_id["c-wide"].gpu_indices, by_id["c-wide"].milli) == ((1, 2), 400)
        await ledger.finish("b-wide")
        await ledger.finish("c-wide")
        assert (await ledger.cycle("c/2")).placed == 1
        assert await ledger.drift() == []


async def test_people_see_who_has_which_part(node: Ledger):
    await node.place("a", [0], **{**HALF, "milli": 300})
    await node.place("b", [0], **HALF)
    await node.place("c", [1])
    await node.place("d", [2], slices=64, **SLICE)
    (view,) = await Views(node.database).nodes(pool=node.pool)
    shared, whole, mig = view.gpus
    assert [(part.job_id, part.milli, part.vram) for part in shared.parts] == [
        ("b", 500, 20), ("a", 300, 20),
    ]  # fmt: skip
    assert (shared.job_id, shared.milli_used, shared.mig) == (None, 800, False)
    assert (whole.job_id, whole.parts) == ("c", ())
    assert [(part.mig, part.slices) for part in mig.parts] == [("1g.10gb", 64)]
    assert mig.mig
    (pool,) = [p for p in await Views(node.database).pools() if p.spec.name == node.pool]
    assert (pool.gpus_used, pool.running) == (3, 4)


async def test_a_node_is_drained_only_when_its_last_part_has_ended(node: Ledger):
    await node.place("a", [0], **HALF)
    await node.rows("UPDATE nodes SET state = :state", state=NodeState.DRAINING.value)
    assert not (await Views(node.database).nodes(pool=node.pool))[0].drained
    await _end(node, "a")
    assert (await Views(node.database).nodes(pool=node.pool))[0].drained


async def _kinds(ledger: Ledger) -> list[str | None]:
    rows = await ledger.rows("SELECT kind FROM gpus WHERE index IN (0, 2) ORDER BY index")
    return [row["kind"] for row in rows]


async def _end(ledger: Ledger, job: str) -> None:
    await ledger.rows(
        "UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'finished'"
        " WHERE job_id = :job AND ended_at IS NULL",
        job=job,
    )
