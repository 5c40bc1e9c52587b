"""The migrations make what the classes of `models/records` say, once, however often they run."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg import errors, sql
from sqlalchemy import create_engine, make_url

import longshore.models.records.arrays
import longshore.models.records.artifacts
import longshore.models.records.buying
import longshore.models.records.checkpoints
import longshore.models.records.funding
import longshore.models.records.jobs
import longshore.models.records.market
import longshore.models.records.preemption
import longshore.models.records.prices
import longshore.models.records.services
import longshore.models.records.serving  # noqa: F401 (its tables)
from longshore.activities.migrations import current_revision, upgrade
from longshore.activities.revisions import mismatch, newest_revision
from longshore.models.errors import RefusedError, UnavailableError
from longshore.models.records.tables import SQLModel
from longshore.workers.stack import Stack
from tests.support.databases import database_of
from tests.support.ledger import WAITING_FOR_LOCKS
from tests.support.local_stack import ROOT, free_ports
from tests.support.waiting import eventually

_UPGRADE = (
    "import sys; from longshore.activities.migrations import upgrade; print(upgrade(sys.argv[1]))"
)


@pytest.fixture
def empty_url(stack: Stack, database_url: str) -> Iterator[str]:
    """Makes a database without any table, and yields its URL; 0.1 s."""
    name = f"{make_url(database_url).database}_empty"
    with psycopg.connect(stack.postgres.url("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield stack.postgres.url(name)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_migrations_and_classes_are_equal(database_url: str):
    url = make_url(database_url).set(drivername="postgresql+psycopg")
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        differences = compare_metadata(context, SQLModel.metadata)
    engine.dispose()
    assert differences == []


def test_every_class_has_a_table(database_url: str):
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
    tables = {name for (name,) in rows}
    assert tables == {*SQLModel.metadata.tables, "alembic_version"}


def test_an_upgrade_may_be_repeated(empty_url: str):
    assert current_revision(empty_url) is None
    assert upgrade(empty_url) == newest_revision()
    assert upgrade(empty_url) == newest_revision() == current_revision(empty_url)


def test_a_gpu_whose_index_none_has_is_removed_by_an_upgrade(stack: Stack):
    with database_of(stack, "0065") as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_NODE_WITH_GPUS)
        assert upgrade(url) == newest_revision()
        left = connection.execute("SELECT index FROM gpus ORDER BY index").fetchall()
        assert left == [(0,), (1023,)]
        with pytest.raises(errors.CheckViolation, match="gpus_index_in_bounds"):
            connection.execute("UPDATE gpus SET index = 1024 WHERE index = 0")


_NODE_WITH_GPUS = """
    INSERT INTO pools (name, spec) VALUES ('pool', '{}');
    INSERT INTO nodes (id, pool, provider, tier, state, state_reason, epoch, agent_id, boot_id,
                       hostname, agent_version, simulated, gpu_type, cpu_milli, ram_mb, labels)
    VALUES ('node', 'pool', 'own', 'FAST', 'READY', '', 1, 'a', 'b', '', '', true, 'H100', 1000,
            1000, '{}');
    INSERT INTO gpus (node_id, index, model, uuid, vram_mb)
    SELECT 'node', index, 'H100', '', 80000 FROM unnest(ARRAY[0, 1023, 1024, 99999999]) AS index;
"""


@pytest.mark.exhaustive
def test_several_processes_may_upgrade_at_once(empty_url: str):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _UPGRADE, empty_url],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    ended = [(process.communicate(timeout=180), process.returncode) for process in processes]
    assert [code for _, code in ended] == [0] * 3, ended
    assert {out.strip() for (out, _), _ in ended} == {newest_revision()}
    assert current_revision(empty_url) == newest_revision()


async def test_an_upgrade_locks_what_workers_lock_in_their_order(stack: Stack):
    """From 0077: a worker has the row of a purchase, and writes a node before it commits."""
    with (
        database_of(stack, "0077") as url,
        psycopg.connect(url) as worker,
        psycopg.connect(url, autocommit=True) as other,
    ):
        worker.execute("SELECT FROM purchases FOR NO KEY UPDATE")
        upgrading = asyncio.create_task(asyncio.to_thread(upgrade, url))
        await eventually(lambda: other.execute(WAITING_FOR_LOCKS).fetchone() == (1,))
        worker.execute("UPDATE nodes SET expires_at = now()")
        worker.commit()
        assert await upgrading == newest_revision()


def test_a_server_that_is_not_there_is_said_to_be_away():
    (port,) = free_ports(1)
    with pytest.raises(UnavailableError, match="does not answer"):
        upgrade(f"postgresql://nobody@127.0.0.1:{port}/nothing")


def test_a_database_of_a_newer_version_is_refused(database_url: str):
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(RefusedError, match="revision 9999, which this version") as refused:
            upgrade(database_url)
        assert "a newer one has upgraded it" in str(refused.value)
        worker = subprocess.run(
            [sys.executable, "-P", "-m", "longshore.workers.control"],
            capture_output=True, text=True,
            env=os.environ | {"LONGSHORE_DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)},
            timeout=180,
        )  # fmt: skip
        assert worker.returncode == RefusedError.exit_code
        assert "revision 9999, which this version of Longshore does not know" in worker.stderr
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    assert mismatch(current_revision(database_url)).endswith("Run `longshore db upgrade`.")
    assert mismatch(newest_revision()) == ""
