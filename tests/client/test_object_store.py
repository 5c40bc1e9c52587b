"""Code, outputs and logs of jobs where the stores are object stores."""

import os
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.artifacts.rows import sweep_artifacts
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.database import Database
from longshore.activities.logstore import LogStore
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.code_folder import WORK, unpack
from longshore.activities.storage import connect
from longshore.client.api import Longshore
from longshore.client.calls import known_job
from longshore.client.code_cache import CodeCache
from longshore.client.code_files import find_files
from longshore.client.code_upload import UploadTo, upload
from longshore.models.checkpoint import Manifest
from longshore.models.errors import DamagedError
from longshore.models.output_pattern import OutputPatterns
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.checkpoints import tree_of, write_tree
from tests.support.object_store import object_store

AT = datetime(2026, 11, 25, tzinfo=UTC)
LEASE_PASSED = "UPDATE {} SET leased_until = now() - interval '1 s'"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Starts an S3 server of moto, unless TEST_OBJECT_STORE names an object store; 2 s."""
    with object_store() as url:
        yield url


@pytest.fixture
async def api(settings: Settings, longshore: Command) -> AsyncIterator[Longshore]:
    """A client beside the command line; starts nothing."""
    api = await Longshore.connect(settings)
    yield api
    await api.close()


@pytest.fixture(autouse=True)
def stores(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has commands find code, outputs and logs in the bucket."""
    monkeypatch.setenv("LONGSHORE_ARTIFACT_STORE", f"{bucket}/artifacts")
    monkeypatch.setenv("LONGSHORE_LOG_STORE", f"{bucket}/logs")


async def test_code_is_sent_once_a_node_gets_it_and_what_nothing_needs_goes(
    bucket: str, database_url: str, tmp_path: Path
) -> None:
    store = ArtifactStore(f"{bucket}/code")
    # A pack of small files, and a file in three chunks.
    tree = {f"src/{at}.py": b"%d" % at for at in range(30)} | {"big": os.urandom(33_000_000)}
    folder = write_tree(tmp_path / "code", tree)
    database = Database(database_url)
    try:
        with CodeCache(tmp_path / "code.sqlite") as cache:
            to = UploadTo(database, store, "default", cache)
            sent = await upload(folder, find_files(folder), to)
            (folder / "src/0.py").write_bytes(b"other")
            changed = await upload(folder, find_files(folder), to)
        assert sent.sent_bytes == sum(map(len, tree.values()))
        assert (changed.sent_files, changed.sent_bytes) == (1, 5)
        given_up = threading.Event()
        node = ArtifactCache(tmp_path / "cache", store)
        held = node.hold("default", changed.code.snapshot or "", given_up)
        unpack(held.snapshot, lambda name: node.path_of("default", name), tmp_path, given_up)
        held.release()
        assert tree_of(tmp_path / WORK) == tree | {"src/0.py": b"other"}
        async with database.transaction() as connection:
            for table in ("artifact_objects", "snapshots"):
                await connection.exec_driver_sql(LEASE_PASSED.format(table))
        assert await sweep_artifacts(database, store, timedelta(0)) == (2, 5)
        fs, root = connect(store.url)
        assert fs.find(root) == []
        with pytest.raises(DamagedError, match="has gone"):
            store.snapshot("default", changed.code.snapshot or "")
    finally:
        await database.close()


@pytest.mark.exhaustive
async def test_a_submit_sends_its_folder_and_pull_brings_what_the_job_gave_back(
    bucket: str,
    longshore: Command,
    api: Longshore,
    pool: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = write_tree(tmp_path / "code", {"train.py": b"print('trained')\n"})
    monkeypatch.chdir(tmp_path)
    given = ("--pool", pool, "--name", "give", "--upload", str(code), "--output", "*.txt")
    submitted = await longshore("submit", *given, "--hold", "--", "true")
    assert "1 file, 17B sent" in submitted.out + submitted.err
    again = await longshore("submit", *given, "--hold", "-q", "--", "true")
    job_id = again.out.strip()
    await known_job(api, job_id)
    made = write_tree(tmp_path / "made", {"a.txt": b"one", "in/b.txt": b"two", "c.log": b"no"})
    draft = Manifest(
        job_id=job_id, attempt=1, rank=0, ranks=1, number=1, prefix="", files=(), bytes=0,
        saved_at=AT, published_at=AT, node_id="node-a",
    )  # fmt: skip
    OutputStore(f"{bucket}/artifacts").keep(
        made, OutputPatterns(["*.txt"]), draft, threading.Event()
    )
    pulled = await longshore("pull", job_id)
    assert pulled.out == f"{job_id}: 2 files, 6B of attempt 1: 2 files, 6B brought\n"
    pulled_tree = tree_of(tmp_path / job_id)
    del pulled_tree[".gitignore"], pulled_tree[".longshoreignore"]
    assert pulled_tree == {"a.txt": b"one", "in/b.txt": b"two"}
    repeated = await longshore("pull", job_id)
    assert repeated.out.endswith("nothing differs\n")


async def test_logs_shows_what_lies_in_the_bucket(
    bucket: str, longshore: Command, api: Longshore, pool: str
) -> None:
    job_id = (await longshore("submit", "-q", "--pool", pool, "--hold", "--", "true")).out.strip()
    await known_job(api, job_id)
    store = LogStore(f"{bucket}/logs")
    store.write(job_id, 1, "node-a", "stdout", 0, b"step 1\n")
    store.write(job_id, 1, "node-a", "stdout", 7, b"step 2\n")
    store.write_end(job_id, 1, "node-a")
    shown = await longshore("logs", job_id)
    assert (shown.code, shown.out) == (0, "step 1\nstep 2\n"), shown.err
