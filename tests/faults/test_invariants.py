"""Every check that faults are judged by can fail: each is shown a state that violates it."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.database import Database
from longshore.models.job import JobSpec
from tests.faults import scenes
from tests.faults.chaos.counting import Counting, counting_job, result_of
from tests.faults.fleet import Fleet
from tests.faults.invariants import MUST_BE_EMPTY, check
from tests.faults.journal import Journal, ended, violations
from tests.support.control import new_pool
from tests.support.ledger import Ledger
from tests.support.waiting import eventually

UNGUARDED = "SET LOCAL session_replication_role = replica"
"""Without triggers and foreign keys: else the database would refuse what is tried here."""
_COPY_LEASE = (
    "INSERT INTO leases (job_id, attempt, rank, node_id, epoch, gpu_index, vram_mb, milli, tenant,"
    " started_at, ended_at, end_reason) SELECT job_id, attempt, rank, node_id, epoch, gpu_index,"
    " vram_mb, milli, tenant, started_at, ended_at, end_reason FROM leases"
)
_A_CHARGE = (
    "INSERT INTO tenants (name, budget_since) VALUES ('red', now() - interval '1 day')",
    "INSERT INTO envelopes (tenant, name, milli, starts_at)"
    " VALUES ('red', 'main', 1000, now() - interval '1 day')",
    "INSERT INTO charges (job_id, attempt, rank, envelope_id, gpu_indices, milli, since,"
    " started_at, ended_at, end_reason)"
    " SELECT job_id, attempt, rank, e.id, p.gpu_indices, 1000, placed_at, placed_at, p.ended_at,"
    " 'finished' FROM placements p, envelopes e",
)
_A_REPLICA = (
    "INSERT INTO replicas (job_id, service, revision) SELECT id, 'chat', 1 FROM jobs LIMIT 1"
)
VIOLATIONS = {
    "a GPU was leased twice at one time": (_COPY_LEASE,),
    "a GPU was used by a job and by the gang that lends it": (
        _COPY_LEASE, "UPDATE leases SET borrowed_from = job_id WHERE id = 1",
    ),
    "a GPU was borrowed that nobody lent": (
        "INSERT INTO placements SELECT (jsonb_populate_record(p, '{\"job_id\": \"other\","
        " \"rank\": 1, \"spare\": true, \"lendable\": true}')).* FROM placements p",
        "UPDATE leases SET borrowed_from = 'other', ended_at = ended_at + interval '2 s'",
    ),
    "a GPU was paid for by the job that borrowed it": (
        *_A_CHARGE, "UPDATE leases SET borrowed_from = job_id",
    ),
    "a GPU was shared beyond its size": (
        "UPDATE leases SET milli = 501, vram_mb = 1", _COPY_LEASE,
    ),
    "a lease is open": ("UPDATE leases SET ended_at = NULL, end_reason = NULL",),
    "a placement is open": ("UPDATE placements SET ended_at = NULL, end_reason = NULL",),
    "a job is still queued": (
        "INSERT INTO queue (job_id, attempt, pool, held, priority, request, submitted_at)"
        " SELECT id, 2, pool, false, 5, '{}', now() FROM jobs",
    ),
    "a job has not ended": ("UPDATE jobs SET ended_at = NULL, end_state = NULL",),
    "a node's ledger is not at zero": ("UPDATE nodes SET ram_mb_used = 1",),
    "a node is held alone by a job that has left": (
        "UPDATE nodes SET held_alone_by = (SELECT id FROM jobs LIMIT 1)",
    ),
    "a job ran beside one that holds its node alone": (
        "UPDATE placements SET alone = true",
        "INSERT INTO placements SELECT (jsonb_populate_record(p, '{\"job_id\": \"other\"}')).*"
        " FROM placements p",
    ),
    "a charge is open": (
        *_A_CHARGE, "UPDATE charges SET ended_at = NULL, end_reason = NULL",
    ),
    "the sum of an envelope or a cap is not at zero": (
        *_A_CHARGE, "UPDATE envelopes SET used = 1000",
    ),
    "a GPU was paid for twice at one time": (*_A_CHARGE, _A_CHARGE[-1]),
    "a charge is longer than its placement": (
        *_A_CHARGE, "UPDATE charges SET ended_at = ended_at + interval '1 second'",
    ),
    "a charge is outside the window of its envelope": (
        *_A_CHARGE, "UPDATE envelopes SET ends_at = starts_at + interval '1 microsecond'",
    ),
    "a GPU's ledger is not at zero": ("UPDATE gpus SET vram_mb_used = 1 WHERE index = 0",),
    "an element of an array has not ended": (
        "INSERT INTO elements (array_id, index) VALUES ('of-none', 0)",
    ),
    "an array is not on record with all its elements": (
        "INSERT INTO arrays (id, elements, first, last, slots) VALUES ('of-one', 1, 0, 0, 1)",
    ),
    "a replica of a service has not ended": (_A_REPLICA,),
    "a replica of a service ran, and its job has not ended": (
        _A_REPLICA, "UPDATE replicas SET attempt = 1, ended_at = now(), job_id = 'gone'",
    ),
    "a lease's placement ended at another time": (
        "UPDATE leases SET ended_at = ended_at + interval '1 second'",
    ),
}  # fmt: skip
PATIENCE_WITH_WRONG = 2.0
"""Seconds that a check may wait for what never becomes right."""


@pytest.fixture
async def ledger(temporal: Client, database_url: str) -> AsyncIterator[Ledger]:
    """A database in which a job has run on a node of two GPUs, and has ended."""
    database = Database(database_url, pool_size=4)
    ledger = Ledger(database, temporal, new_pool())
    await ledger.register()
    await ledger.add_job("a")
    await ledger.place("a")
    await ledger.finish("a")
    yield ledger
    await database.close()


@pytest.mark.parametrize("what", MUST_BE_EMPTY)
async def test_each_look_at_the_database_sees_its_violation(ledger: Ledger, what: str):
    assert [found for each in MUST_BE_EMPTY.values() for found in await ledger.rows(each)] == []
    async with ledger.database.transaction() as connection:
        for statement in (UNGUARDED, *VIOLATIONS[what]):
            await connection.execute(text(statement))
    assert await ledger.rows(MUST_BE_EMPTY[what])


_A_JOB = """
    INSERT INTO jobs SELECT (jsonb_populate_record(jobs, '{"id": "other", "key": "other"}')).*
      FROM jobs WHERE id = ':job'
"""
_A_POOL = """
    INSERT INTO pools SELECT (jsonb_populate_record(pools, '{"name": "other"}')).*
      FROM pools LIMIT 1
"""


def exhaustive(*values: str) -> Any:
    """Return parameters that `make faults` alone tries."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(
    ("harm", "mend", "found"),
    [
        ("UPDATE jobs SET attempts = attempts + 1 WHERE id = ':job'",
         "UPDATE jobs SET attempts = attempts - 1 WHERE id = ':job'",
         "the workflow says"),
        exhaustive(
            "UPDATE jobs SET end_state = 'CANCELLED' WHERE id = ':job'",
            "UPDATE jobs SET end_state = 'SUCCEEDED' WHERE id = ':job'",
            "the workflow says"),
        exhaustive("UPDATE jobs SET id = id || '-x' WHERE id = ':job'",
                   "UPDATE jobs SET id = ':job' WHERE id = ':job-x'", "has no row"),
        (_A_JOB, "DELETE FROM jobs WHERE id = 'other'", "job other ended SUCCEEDED"),
        exhaustive(_A_POOL, "DELETE FROM pools WHERE name = 'other'",
                   "the workflow of pool other is None"),
        exhaustive("UPDATE nodes SET epoch = epoch + 1", "UPDATE nodes SET epoch = epoch - 1",
                   "its workflow says"),
    ],
    ids=["attempts", "end", "no-row", "no-workflow", "pool", "epoch"],
)  # fmt: skip
async def test_rows_and_workflows_are_compared(fleet: Fleet, harm: str, mend: str, found: str):
    job_id = await scenes.submit(fleet, fleet.journal.job("compared"))
    await check(fleet, [job_id])
    _change(fleet, harm.replace(":job", job_id))
    with pytest.raises(AssertionError, match=found):
        await check(fleet, [job_id], patience=PATIENCE_WITH_WRONG)
    _change(fleet, mend.replace(":job", job_id))
    await check(fleet, [job_id])


async def test_a_job_that_ends_otherwise_is_told(fleet: Fleet):
    cancelled = await scenes.submit(fleet, fleet.journal.job("cancelled", 60))
    await scenes.tell(lambda: fleet.longshore.cancel(cancelled))
    with pytest.raises(AssertionError, match="ended as CANCELLED"):
        await check(fleet, [cancelled])
    await check(fleet, [], [cancelled])


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["start j 1 0 5 n 1.0", "TWICE j 1 0 6 n 2.0"], "ran beside another"),
        (["BUSY j 1 0 5 n 1.0", "start j 1 0 5 n 2.0"], "a GPU that was held"),
        (["start j 1 0 5 n 1.0", "start j 1 0 6 n 2.0"], "attempt started twice"),
        (["start j 1 0 5 n 1.0", "start j 2 0 6 n 2.0", "end j 1 0 5 n 3.0"], "began before"),
    ],
)
def test_two_processes_of_a_job_are_seen_in_the_journal(
    tmp_path: Path, lines: list[str], found: str
):
    journal = Journal(tmp_path / "journal")
    (journal.folder / "lines").write_text("\n".join(lines))
    assert found in "\n".join(violations(journal.by_job()["j"]))
    assert not violations(journal.by_job()["another"])


def test_a_job_that_did_not_come_to_its_end_has_not_ended(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    lines = ["start j 1 0 5 n 1.0", "start j 1 1 6 n 1.0", "end j 1 0 5 n 2.0"]
    (journal.folder / "lines").write_text("\n".join(lines))
    assert not ended(journal.by_job()["j"], 1)
    assert not ended(journal.by_job()["j"], 2)


@pytest.mark.parametrize("second", ["1", "2"])
async def test_a_process_that_runs_beside_another_says_so(tmp_path: Path, second: str):
    """The same attempt a second time, and another attempt while the first one lives."""
    journal = Journal(tmp_path / "journal")
    spec = journal.job("j", 60)
    runs: list[subprocess.Popen[bytes]] = []
    try:
        for attempt in ("1", second):
            runs.append(_start(spec, attempt))
            starts = len(runs)
            await eventually(lambda n=starts: _count(journal, "start") == n)
        assert _count(journal, "TWICE") == 1
    finally:
        for run in runs:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


@pytest.mark.parametrize(
    ("parts", "other", "said"),
    [((), "1", 1), ((), "2", 0), ((500, 500), "1", 0), ((500,), "1", 1)],
)
async def test_a_process_whose_gpu_another_job_holds_says_so(
    tmp_path: Path, parts: Sequence[int], other: str, said: int
):
    journal = Journal(tmp_path / "journal")
    runs: list[subprocess.Popen[bytes]] = []
    try:
        for number, gpus in enumerate(("0,1", other)):
            part: dict[str, Any] = {}
            if number < len(parts):
                part = {"milli": parts[number], "vram_per_gpu": 1}
            runs.append(
                _start(
                    journal.job("j", 60, **part), "1", LONGSHORE_JOB_ID=f"j{number}",
                    LONGSHORE_NODE_ID="n", CUDA_VISIBLE_DEVICES=gpus,
                )
            )  # fmt: skip
            starts = len(runs)
            await eventually(lambda n=starts: _count(journal, "start") == n)
        assert _count(journal, "BUSY") == said
    finally:
        for run in runs:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def test_a_wrong_result_and_lost_work_are_seen(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    counting = Counting(journal, CheckpointStore(str(tmp_path / "store")))
    counting.add("j", 50)
    counting.saw("j", 20, at=10.0)
    right = f"result j 2 {result_of(50)} 0"

    def told(*lines: str) -> list[str]:
        (journal.folder / "steps").write_text("\n".join(lines))
        return counting.violations()

    assert told("from j 1 0 5.0", "from j 2 20 11.0", right) == []
    assert told("from j 1 0 5.0", "from j 2 15 9.0", right) == []
    assert "step 20 was stored" in told("from j 1 0 5.0", "from j 2 15 11.0", right)[0]
    assert "came to 7" in told("from j 1 0 5.0", "result j 1 7 0")[0]
    counting.damaged.add("j")
    assert told("from j 1 0 5.0", "from j 2 15 11.0", right) == []


def test_a_step_that_is_lost_or_done_twice_changes_the_result():
    assert len({result_of(steps) for steps in range(200)}) == 200


@pytest.mark.parametrize(("of_step", "right"), [(5, True), (4, False)])
def test_a_job_that_goes_on_from_a_mixed_state_comes_to_another_result(
    tmp_path: Path, of_step: int, right: bool
):
    journal = Journal(tmp_path / "journal")
    saves = tmp_path / "saves"
    saves.mkdir()
    (saves / "state").write_text(f"5 {result_of(of_step)}\n")
    told = str(tmp_path / "saved")
    run = _start(
        counting_job(journal, "j", 7),
        "1",
        LONGSHORE_CHECKPOINT_DIR=str(saves),
        LONGSHORE_SAVED=told,
    )
    assert run.wait(60) == 0
    counting = Counting(journal, CheckpointStore(str(tmp_path / "store")))
    counting.add("j", 7)
    assert (counting.violations() == []) is right


def _start(spec: JobSpec, attempt: str, **more: str) -> subprocess.Popen[bytes]:
    """Start a job's process as an agent does, in a group of its own."""
    given = {"LONGSHORE_JOB_ID": "j", "LONGSHORE_ATTEMPT": attempt, "LONGSHORE_NODE_ID": "n"}
    env = {**os.environ, **spec.env, **given, **more}
    return subprocess.Popen([*spec.argv], env=env, start_new_session=True)


def _count(journal: Journal, word: str) -> int:
    return sum(line.word == word for line in journal.lines())


def _change(fleet: Fleet, statement: str) -> None:
    """Change rows of a fleet that is at rest, past all that guards them."""
    with psycopg.connect(fleet.stack.postgres.url()) as connection:
        connection.execute(UNGUARDED.encode())
        connection.execute(statement.encode())
