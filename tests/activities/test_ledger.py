"""What the capacity database refuses, whatever the code does."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from tests.support.ledger import Ledger


@pytest.fixture
async def node(ledger: Ledger) -> Ledger:
    """A ledger with one node of two 80 GB GPUs, 16 cores and 64 GB, and two jobs."""
    await ledger.register()
    await ledger.add_job("a")
    await ledger.add_job("b")
    return ledger


async def test_of_twenty_who_want_one_gpu_at_once_exactly_one_gets_it(node: Ledger):
    jobs = [f"job-{number}" for number in range(20)]
    for job in jobs:
        await node.add_job(job)
    outcomes = await asyncio.gather(
        *(node.place(job, cpu=1, ram=1) for job in jobs), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert len(refused) == 19
    assert all(isinstance(outcome, IntegrityError) for outcome in refused)
    assert all("leases_one_per_gpu" in str(outcome) for outcome in refused)
    live = "SELECT count(*) FROM {} WHERE ended_at IS NULL"
    assert await node.value(live.format("leases")) == 1
    assert await node.value(live.format("placements")) == 1
    assert await node.drift() == []


async def test_a_node_that_is_not_ready_takes_no_placement(node: Ledger):
    for state in ("DRAINING", "LOST", "GONE"):
        await node.rows("UPDATE nodes SET state = :state", state=state)
        with pytest.raises(IntegrityError, match="node node-a is not ready in epoch 1"):
            await node.place("a")


async def test_a_placement_of_another_epoch_is_refused(node: Ledger):
    assert (await node.register(boot="boot-2")).epoch == 2
    for epoch in (0, 1, 3):
        with pytest.raises(IntegrityError, match=f"not ready in epoch {epoch}"):
            await node.place("a", epoch=epoch)
    await node.place("a", epoch=2)


async def test_one_thousandth_over_the_size_is_refused_and_the_size_itself_is_not(node: Ledger):
    size: dict[str, Any] = {"cpu": 16_000, "ram": 64_000, "vram": 80_000}
    for what, constraint in (
        ("cpu", "nodes_cpu_within_size"),
        ("ram", "nodes_ram_within_size"),
        ("vram", "gpus_vram_within_size"),
    ):
        with pytest.raises(IntegrityError, match=constraint):
            await node.place("a", **{**size, what: size[what] + 1})
    await node.place("a", **size)
    assert await node.drift() == []


async def test_what_two_placements_take_together_is_held_against_the_node(node: Ledger):
    await node.place("a", [0], cpu=9_000)
    with pytest.raises(IntegrityError, match="nodes_cpu_within_size"):
        await node.place("b", [1], cpu=8_000)
    await node.place("b", [1], cpu=7_000)


async def test_a_gpu_that_is_not_there_cannot_be_leased(node: Ledger):
    with pytest.raises(IntegrityError, match="node node-a has no GPU 2"):
        await node.place("a", [1, 2])
    assert await node.value("SELECT count(*) FROM placements") == 0


async def test_a_job_has_one_live_placement_at_a_time(node: Ledger):
    await node.place("a", [0])
    with pytest.raises(IntegrityError, match="placements_live"):
        await node.place("a", [1], attempt=2)
    await _end(node, "a")
    await node.place("a", [1], attempt=2)


async def test_one_attempt_is_placed_once(node: Ledger):
    await node.place("a")
    await _end(node, "a")
    with pytest.raises(IntegrityError, match="placements_pkey"):
        await node.place("a")


async def test_a_placement_is_not_rewritten_not_even_as_it_ends(node: Ledger):
    await node.register("node-b")
    await node.rows("INSERT INTO cycles VALUES ('other', :p, now(), 0, 0, 0, 0)", p=node.pool)
    await node.place("a")
    for change in (
        "node_id = 'node-b'", "epoch = 2", "gpu_indices = '{1}'", "cpu_milli = 0", "ram_mb = 0",
        "storage_mb_s = 1", "milliwatts = 1",
        "vram_mb = 0", "cycle_id = 'other'", "expected_seconds = 1", "attempt = 2",
        "job_id = 'b'", "decision = '[]'", "placed_at = now()",
    ):  # fmt: skip
        await _refuses_change(node, "placements", change)


async def test_a_lease_is_not_rewritten_not_even_as_it_ends(node: Ledger):
    await node.register("node-b")
    await node.place("a")
    for change in (
        "node_id = 'node-b'", "epoch = 2", "gpu_index = 1", "vram_mb = 0", "tenant = 'other'",
        "started_at = now()", "attempt = 2", "job_id = 'b'",
    ):  # fmt: skip
        await _refuses_change(node, "leases", change)


async def test_an_end_is_for_ever(node: Ledger):
    await node.place("a")
    await _end(node, "a")
    for table in ("placements", "leases"):
        for change in (
            "ended_at = now(), end_reason = 'again'",
            "ended_at = NULL, end_reason = NULL",
            "end_reason = 'another'",
        ):
            with pytest.raises(IntegrityError, match="ends once"):
                await node.rows(f"UPDATE {table} SET {change}")
        assert await node.value(f"SELECT end_reason FROM {table}") == "finished"
    assert await node.drift() == []


@pytest.mark.parametrize("how", ["DELETE FROM {}", "TRUNCATE {} CASCADE"])
async def test_nothing_is_removed(node: Ledger, how: str):
    await node.place("a")
    for _live_then_ended in range(2):
        for table in ("placements", "leases"):
            with pytest.raises(IntegrityError, match="never removed"):
                await node.rows(how.format(table))
        await _end(node, "a")


async def test_an_end_has_a_reason(node: Ledger):
    await node.place("a")
    for table in ("placements", "leases"):
        with pytest.raises(IntegrityError, match=f"{table}_end_has_reason"):
            await node.rows(f"UPDATE {table} SET ended_at = now()")


async def test_the_end_of_a_placement_ends_its_leases_and_gives_back_what_they_took(node: Ledger):
    await node.place("a", [0, 1], cpu=5000, ram=6000, vram=7000)
    used = "SELECT cpu_milli_used AS cpu, ram_mb_used AS ram FROM nodes"
    assert await node.rows(used) == [{"cpu": 5000, "ram": 6000}]
    assert await node.rows("SELECT vram_mb_used AS v FROM gpus") == [{"v": 7000}, {"v": 7000}]
    await _end(node, "a")
    assert await node.rows(used) == [{"cpu": 0, "ram": 0}]
    assert await node.rows("SELECT vram_mb_used AS v FROM gpus") == [{"v": 0}, {"v": 0}]
    assert await node.rows("SELECT end_reason AS why FROM leases") == [{"why": "finished"}] * 2


async def test_a_job_ends_whole(node: Ledger):
    for half in ("ended_at = now()", "end_state = 'SUCCEEDED'"):
        with pytest.raises(IntegrityError, match="jobs_end_is_whole"):
            await node.rows(f"UPDATE jobs SET {half}")


async def test_a_key_names_one_job_of_a_tenant_and_name(node: Ledger):
    await node.rows("UPDATE jobs SET key = 'k' WHERE id = 'a'")
    with pytest.raises(IntegrityError, match="jobs_by_key"):
        await node.rows("UPDATE jobs SET key = 'k' WHERE id = 'b'")


async def test_a_refused_transaction_leaves_nothing(node: Ledger):
    before = await node.value("SELECT count(*) FROM cycles")
    with pytest.raises(IntegrityError):
        await node.place("a", cpu=99_000)
    assert await node.value("SELECT count(*) FROM cycles") == before
    assert await node.drift() == []


async def _refuses_change(ledger: Ledger, table: str, change: str) -> None:
    for also in ("", ", ended_at = now(), end_reason = 'finished'"):
        with pytest.raises(IntegrityError):
            await ledger.rows(f"UPDATE {table} SET {change}{also}")
    assert await ledger.drift() == []


async def _end(ledger: Ledger, job: str) -> None:
    await ledger.rows(
        "UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'finished'"
        " WHERE job_id = :job AND ended_at IS NULL",
        job=job,
    )
