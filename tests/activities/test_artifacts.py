"""What the artifact store holds: leases, what keeps it, and sweeps beside uploads."""

import asyncio
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from longshore.activities.artifacts import rows
from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.artifacts.rows import (
    announce_objects,
    hold_snapshot,
    lease_objects,
    lease_snapshot,
    release_snapshots,
    store_snapshot,
    sweep_artifacts,
    sweep_outputs,
)
from longshore.activities.artifacts.store import ArtifactStore, object_name
from longshore.models.checkpoint import Manifest
from longshore.models.errors import DamagedError, StaleError
from longshore.models.output_pattern import OutputPatterns
from longshore.models.snapshot import Part, Snapshot, SnapshotFile
from tests.support.ledger import SUBMITTED_AT, WAITING_FOR_LOCKS, Ledger
from tests.support.waiting import eventually

KEEP = timedelta(days=7)


class Shelf:
    """A store with its rows, for a tenant of its own."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.store = ArtifactStore(folder.as_uri())
        self.tenant = f"t-{uuid.uuid4().hex[:8]}"

    async def put(self, *contents: bytes) -> tuple[str, ...]:
        names = tuple(map(object_name, contents))
        sizes = dict(zip(names, map(len, contents), strict=True))
        async with self.ledger.database.transaction() as connection:
            await announce_objects(connection, self.tenant, sizes)
        for name, data in zip(names, contents, strict=True):
            self.store.put(self.tenant, name, data)
        return names

    async def upload(self, *contents: bytes) -> Snapshot:
        snapshot = self.snapshot(*await self.put(*contents))
        await store_snapshot(self.ledger.database, self.store, self.tenant, snapshot)
        return snapshot

    def snapshot(self, *names: str) -> Snapshot:
        files: list[SnapshotFile] = []
        for number, name in enumerate(names):
            size = len(self.store.get(self.tenant, name))
            digest = name.partition(".")[0]
            part = Part(object=name, size=size)
            files.append(
                SnapshotFile(path=f"{number}.py", size=size, sha256=digest, parts=(part,))
            )
        return Snapshot(files=tuple(files))

    async def leased(self, digest: str) -> bool:
        async with self.ledger.database.transaction() as connection:
            return await lease_snapshot(connection, self.tenant, digest)

    async def leases_pass(self) -> None:
        for table in ("artifact_objects", "snapshots"):
            await self.ledger.rows(
                f"UPDATE {table} SET leased_until = now() - interval '1 minute'"
                " WHERE tenant = :tenant",
                tenant=self.tenant,
            )

    async def sweep(self) -> tuple[int, int]:
        return await sweep_artifacts(self.ledger.database, self.store, KEEP)

    async def job(self, snapshot: Snapshot, name: str = "job", **fields: Any) -> str:
        job_id = f"{name}-{self.tenant}"
        code = {"snapshot": snapshot.digest, "files": 1, "bytes": 1}
        reply = await self.ledger.enqueue(job_id, tenant=self.tenant, code=code, **fields)
        return reply.refusal


@pytest.fixture
def shelf(ledger: Ledger, tmp_path: Path) -> Shelf:
    """A folder as the store, and a tenant that nobody else has; no cost."""
    return Shelf(ledger, tmp_path)


async def test_equal_content_is_stored_once_and_read_back(shelf: Shelf) -> None:
    snapshot = await shelf.upload(b"one", b"two")
    assert await shelf.leased(snapshot.digest)
    assert not await shelf.leased("0" * 64)
    again = await shelf.upload(b"one", b"two")
    assert again.digest == snapshot.digest
    # What the store has is what is on record: the first, whose objects the snapshot keeps.
    assert shelf.store.snapshot(shelf.tenant, snapshot.digest).objects == snapshot.objects
    await shelf.leases_pass()
    await shelf.job(snapshot)
    assert await shelf.sweep() == (0, 2)
    for name in snapshot.objects:
        assert shelf.store.get(shelf.tenant, name) in (b"one", b"two")


async def test_a_job_keeps_its_code_and_one_that_ended_for_a_time(shelf: Shelf) -> None:
    snapshot = await shelf.upload(b"one")
    assert await shelf.job(snapshot) == ""
    await shelf.leases_pass()
    assert await shelf.sweep() == (0, 0)
    ended = "UPDATE jobs SET ended_at = now() - CAST(:ago AS interval), end_state = 'SUCCEEDED'"
    where = " WHERE tenant = :tenant"
    await shelf.ledger.rows(ended + where, tenant=shelf.tenant, ago=timedelta(days=6))
    assert await shelf.sweep() == (0, 0)
    await shelf.ledger.rows(ended + where, tenant=shelf.tenant, ago=timedelta(days=8))
    assert await shelf.sweep() == (1, 1)
    assert await shelf.sweep() == (0, 0)
    with pytest.raises(DamagedError, match="has gone"):
        shelf.store.snapshot(shelf.tenant, snapshot.digest)


async def test_a_job_whose_code_has_gone_is_refused(shelf: Shelf) -> None:
    snapshot = await shelf.upload(b"one")
    await shelf.leases_pass()
    assert await shelf.sweep() == (1, 1)
    assert "is not stored" in await shelf.job(snapshot)
    other = await shelf.upload(b"one")
    assert other.digest == snapshot.digest
    assert await shelf.job(other, "again") == ""


async def test_a_folder_that_was_not_stored_is_refused(shelf: Shelf) -> None:
    reply = await shelf.ledger.enqueue(f"j-{shelf.tenant}", code={"folder": "."})
    assert "code: was not stored" in reply.refusal


async def test_a_job_reads_files_of_ended_jobs_of_its_tenant_alone(
    shelf: Shelf, ledger: Ledger
) -> None:
    async def refusal(job: str, source: str, tenant: str = "default") -> str:
        data = {"model": f"job:{source}"}
        return (await ledger.enqueue(job, data=data, tenant=tenant)).refusal

    await ledger.register()
    await ledger.enqueue("theirs", tenant="theirs")
    await ledger.enqueue("ours")
    assert "job ours has not ended: wait for it" in await refusal("early", "ours")
    for job in ("ours", "theirs"):
        await ledger.rows(
            "UPDATE jobs SET ended_at = now(), end_state = 'SUCCEEDED' WHERE id = :id", id=job
        )
    assert await refusal("b", "ours") == ""
    # That there is such a job is no business of another tenant.
    for source in ("theirs", "nobody"):
        said = await refusal(f"c-{source}", source)
        assert said.startswith(f"data.model: tenant default has no job '{source}': job: goes ")
    assert await refusal("d", "theirs", "theirs") == ""


async def test_outputs_stay_while_a_job_or_its_dag_may_read_them(
    ledger: Ledger, tmp_path: Path
) -> None:
    outputs = OutputStore(tmp_path.as_uri())
    (tmp_path / "r").write_text("1")
    for job in ("read", "free", "kept"):
        draft = Manifest(
            job_id=job, attempt=1, number=1, prefix="", files=(), bytes=0, node_id="n",
            saved_at=SUBMITTED_AT, published_at=SUBMITTED_AT,
        )  # fmt: skip
        outputs.keep(tmp_path, OutputPatterns(["r"]), draft, threading.Event())
        await ledger.enqueue(job)
    await ledger.rows(
        "UPDATE jobs SET ended_at = now() - interval '9 days', end_state = 'SUCCEEDED'"
    )
    await ledger.enqueue("old", data=["a-name-alone"])
    await ledger.enqueue("reader", data={"model": "job:read", "own": "1GB"})
    await ledger.rows(
        "INSERT INTO dags (id, name, tenant, spec, submitted_at)"
        " VALUES ('d', 'd', 't', '{}', now())"
    )
    await ledger.rows(
        "INSERT INTO dag_jobs (dag_id, name, job_id, state)"
        " VALUES ('d', 'kept', 'kept', 'SUBMITTED')"
    )
    await sweep_outputs(ledger.database, outputs, KEEP)
    assert outputs.jobs() == ("kept", "read")
    await ledger.rows("UPDATE jobs SET ended_at = now(), end_state = 'FAILED' WHERE id = 'reader'")
    await ledger.rows("UPDATE dags SET ended_at = now(), state = 'SUCCEEDED'")
    await sweep_outputs(ledger.database, outputs, KEEP)
    assert outputs.jobs() == ()


async def test_a_dag_and_a_schedule_keep_theirs(shelf: Shelf) -> None:
    of_dag, of_schedule = await shelf.upload(b"one"), await shelf.upload(b"two")
    await shelf.ledger.rows(
        "INSERT INTO dags (id, name, tenant, spec, submitted_at) VALUES"
        " (:id, 'd', :id, CAST(:spec AS json), now())",
        id=shelf.tenant, spec=f'{{"jobs": {{"a": {{"code": "{of_dag.digest}"}}}}}}',
    )  # fmt: skip
    async with shelf.ledger.database.transaction() as connection:
        await hold_snapshot(connection, shelf.tenant, of_schedule.digest, "schedule:nightly")
    with pytest.raises(StaleError):
        async with shelf.ledger.database.transaction() as connection:
            await hold_snapshot(connection, shelf.tenant, "0" * 64, "schedule:nightly")
    await shelf.leases_pass()
    assert await shelf.sweep() == (0, 0)
    async with shelf.ledger.database.transaction() as connection:
        await release_snapshots(connection, "schedule:nightly")
    assert await shelf.sweep() == (1, 1)
    assert await shelf.leased(of_dag.digest)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE artifact_objects SET going = true WHERE tenant = :tenant",
        "UPDATE snapshots SET going = true WHERE tenant = :tenant",
        "DELETE FROM artifact_objects WHERE tenant = :tenant",
    ],
)
async def test_the_database_refuses_to_delete_what_is_needed(shelf: Shelf, statement: str) -> None:
    assert await shelf.job(await shelf.upload(b"one")) == ""
    with pytest.raises(IntegrityError):
        await shelf.ledger.rows(statement, tenant=shelf.tenant)


async def test_what_goes_can_be_counted_on_no_more(shelf: Shelf) -> None:
    snapshot = await shelf.upload(b"one")
    (name,) = snapshot.objects
    await shelf.leases_pass()
    await shelf.ledger.rows(
        "UPDATE snapshots SET going = true WHERE tenant = :tenant", tenant=shelf.tenant
    )
    assert not await shelf.leased(snapshot.digest)
    with pytest.raises(StaleError):
        await store_snapshot(shelf.ledger.database, shelf.store, shelf.tenant, snapshot)
    assert await shelf.sweep() == (1, 1)
    async with shelf.ledger.database.transaction() as connection:
        assert await lease_objects(connection, shelf.tenant, [name]) == frozenset()
    with pytest.raises(StaleError):
        await store_snapshot(shelf.ledger.database, shelf.store, shelf.tenant, snapshot)
    with pytest.raises(DamagedError):
        shelf.store.snapshot(shelf.tenant, snapshot.digest)


async def test_an_upload_that_died_leaves_nothing_for_good(shelf: Shelf) -> None:
    await shelf.put(b"one", b"two")
    assert await shelf.sweep() == (0, 0)
    await shelf.leases_pass()
    assert await shelf.sweep() == (0, 2)
    found = await shelf.ledger.rows(
        "SELECT FROM artifact_objects WHERE tenant = :tenant", tenant=shelf.tenant
    )
    assert found == []


async def test_a_job_that_comes_while_its_code_is_marked_waits_and_is_refused(
    shelf: Shelf,
) -> None:
    snapshot = await shelf.upload(b"one")
    await shelf.leases_pass()
    async with shelf.ledger.database.transaction() as connection:
        await connection.execute(
            text("UPDATE snapshots SET going = true WHERE tenant = :tenant"),
            {"tenant": shelf.tenant},
        )
        coming = asyncio.create_task(shelf.job(snapshot))
        await eventually(lambda: shelf.ledger.value(WAITING_FOR_LOCKS))
    assert "is not stored" in await coming


async def test_a_mark_waits_for_a_job_that_comes_and_is_refused(shelf: Shelf) -> None:
    snapshot = await shelf.upload(b"one")
    await shelf.leases_pass()
    mark = "UPDATE snapshots SET going = true WHERE tenant = :tenant"
    async with shelf.ledger.database.transaction() as connection:
        values = {"tenant": shelf.tenant, "digest": snapshot.digest}
        await connection.execute(text(rows._COUNT_ON_SNAPSHOT), values)  # pyright: ignore[reportPrivateUsage]
        marking = asyncio.create_task(shelf.ledger.rows(mark, tenant=shelf.tenant))
        await eventually(lambda: shelf.ledger.value(WAITING_FOR_LOCKS))
        assert await shelf.sweep() == (0, 0)  # it passes over what is locked
        await connection.execute(
            text("INSERT INTO snapshot_holders VALUES (:tenant, :digest, 'schedule:s')"), values
        )
    with pytest.raises(IntegrityError):
        await marking
    assert await shelf.leased(snapshot.digest)


async def test_sweeps_and_uploads_beside_each_other_lose_nothing(shelf: Shelf) -> None:
    """Leases are over at once: whatever is not needed may go at any moment."""
    over = threading.Event()

    async def sweep() -> None:
        while not over.is_set():
            await shelf.leases_pass()
            await shelf.sweep()

    async def submit(number: int) -> None:
        content = f"content {number % 3}".encode()
        for _ in range(200):
            try:
                snapshot = await shelf.upload(content)
            except StaleError:
                continue
            if await shelf.job(snapshot, f"job-{number}-{uuid.uuid4().hex[:6]}") == "":
                break
        else:
            raise AssertionError("it never came through")
        stored = shelf.store.snapshot(shelf.tenant, snapshot.digest)
        for file in stored.files:
            assert shelf.store.get(shelf.tenant, file.parts[0].object) == content

    sweeping = [asyncio.create_task(sweep()) for _ in range(2)]
    try:
        await asyncio.gather(*(submit(number) for number in range(6)))
    finally:
        over.set()
        await asyncio.gather(*sweeping)
