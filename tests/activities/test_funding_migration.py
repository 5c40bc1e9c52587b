"""A database of before budgets goes on as it was: its jobs end, nothing is charged for them."""

import psycopg
import pytest

from longshore.activities.migrations import upgrade
from longshore.activities.revisions import newest_revision
from longshore.workers.stack import Stack
from tests.support.databases import database_of

BEFORE = "0050"
_ROWS = """
    INSERT INTO pools (name, spec) VALUES ('pool', '{}');
    INSERT INTO nodes (id, pool, provider, tier, state, state_reason, epoch, agent_id, boot_id,
                       hostname, agent_version, simulated, gpu_type, cpu_milli, ram_mb, labels)
    VALUES ('n', 'pool', 'local', 'FAST', 'READY', '', 1, 'a', 'b', 'h', '1', true, 'H100', 9, 9,
            '{}');
    INSERT INTO gpus (node_id, index, model, uuid, vram_mb)
    VALUES ('n', 0, 'H100', 'u', 9), ('n', 1, 'H100', 'v', 9);
    INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)
    VALUES ('j', 'job', 'default', 'pool', '{}', now(), ''),
           ('k', 'job', 'default', 'pool', '{}', now(), '');
    INSERT INTO cycles (id, pool, queued, placed, refused, took_ms)
    VALUES ('c', 'pool', 2, 2, 0, 0);
    INSERT INTO placements (job_id, attempt, rank, cycle_id, node_id, epoch, gpu_indices,
                            cpu_milli, ram_mb, vram_mb, expected_seconds, decision)
    VALUES ('j', 1, 0, 'c', 'n', 1, '{0}', 1, 1, 1, 60, '{}'),
           ('k', 1, 0, 'c', 'n', 1, '{1}', 1, 1, 1, 60, '{}');
    INSERT INTO leases (job_id, attempt, rank, node_id, epoch, gpu_index, vram_mb, tenant)
    VALUES ('j', 1, 0, 'n', 1, 0, 1, 'default'), ('k', 1, 0, 'n', 1, 1, 1, 'default');
"""


def test_jobs_of_before_end_as_they_did_and_a_tenant_can_get_a_budget(stack: Stack):
    with (
        database_of(stack, BEFORE) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        connection.execute(_ROWS)
        before = connection.execute("SELECT * FROM placements ORDER BY job_id").fetchall()
        assert upgrade(url) == newest_revision()
        after = connection.execute("SELECT * FROM placements ORDER BY job_id").fetchall()
        assert [row[: len(before[0])] for row in after] == before
        for table in ("tenants", "envelopes", "funding_caps", "charges"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]  # pyright: ignore[reportArgumentType]
        connection.execute("UPDATE placements SET ended_at = clock_timestamp(),"
                           " end_reason = 'finished' WHERE job_id = 'j'")  # fmt: skip
        connection.execute(
            "INSERT INTO tenants (name, budget_since) VALUES ('default', now());"
            "INSERT INTO envelopes (tenant, name, milli) VALUES ('default', 'main', 1000)"
        )
        charge = (
            "INSERT INTO charges (job_id, attempt, rank, envelope_id, gpu_indices, milli, since)"
            " SELECT %s, 1, 0, id, gpu_indices, 1000, now() FROM envelopes, placements"
            "  WHERE job_id = %s"
        )
        with pytest.raises(psycopg.errors.IntegrityError, match="does not hold"):
            connection.execute(charge, ["j", "j"])
        connection.execute(charge, ["k", "k"])
        connection.execute("UPDATE placements SET ended_at = clock_timestamp(),"
                           " end_reason = 'finished' WHERE job_id = 'k'")  # fmt: skip
        assert connection.execute("SELECT end_reason FROM charges").fetchall() == [("finished",)]
        assert connection.execute("SELECT cpu_milli_used FROM nodes").fetchall() == [(0,)]
