"""`longshore doctor` on a real installation, well and with one thing after another wrong."""

import asyncio
import json
import shlex
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection, sql
from psycopg.types.json import Jsonb
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollWorkflowTaskQueueRequest,
)
from temporalio.client import Client
from temporalio.worker import Worker

from longshore.activities.database import Database
from longshore.activities.pollers import last_polls
from longshore.client.payloads import data_converter
from longshore.models.departures import DISK_REFUSES
from longshore.models.messages import CONTROL_TASK_QUEUE, POOL_WORKFLOW, PoolInput
from longshore.models.protocol import PROTOCOL
from longshore.models.settings import Settings
from longshore.workers.doctor import agents as agent_checks
from longshore.workers.doctor import machine as machine_checks
from longshore.workers.doctor import pools as pool_checks
from longshore.workers.doctor import temporal as temporal_checks
from longshore.workers.doctor.commands import in_all
from longshore.workers.doctor.database import clocks
from longshore.workers.doctor.findings import Finding, Level, fail, ok, warn
from longshore.workflows.pool import PoolWorkflow
from tests.support.local_stack import free_ports
from tests.support.plant import Plant
from tests.support.waiting import eventually
from tests.support.worker_processes import is_known


def doctor(plant: Plant, **env: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Return the exit code, and what was found by the name of the check."""
    done = plant.longshore("doctor", "--json", **env)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return done.returncode, found


def levels(found: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    return {check: findings[0]["level"] for check, findings in found.items()}


async def test_all_is_well(plant: Plant, jobs: dict[str, str]):
    def nothing_is_found() -> bool:
        """A look that a busy machine holds up may say that something does not answer."""
        code, found = doctor(plant)
        assert levels(found) == dict.fromkeys(
            (
                "settings", "disk", "log store", "checkpoint store", "artifact store",
                "join token", "markets", "temporal", "namespace", "search attributes",
                "temporal clock", "control worker", "workflows", "schedules",
                 "database", "database locks", "schema", "database clock", "jobs", "purchases",
                 "pools", "dags", "blocks", "agents", "console",
            ),
            "ok",
        ), found  # fmt: skip
        assert code == 0
        return True

    def it_is_said() -> bool:
        shown = plant.longshore("doctor")
        assert shown.returncode == 0, shown.stdout
        return shown.stdout.endswith("\nAll is well.\n")

    await eventually(nothing_is_found)
    await eventually(it_is_said)


async def test_a_mistake_in_the_settings_is_the_first_to_mend(plant: Plant, tmp_path: Path):
    code, found = doctor(plant, LONGSHORE_TEMPORAL_PORT="x")
    assert code == 1
    assert [finding["says"] for finding in found["settings"]] == [
        "LONGSHORE_TEMPORAL_PORT: must be a whole number, got 'x'"
    ]

    def is_a_warning() -> bool:
        code, found = doctor(plant, LONGSHORE_LOG_LEVLE="DEBUG")
        assert code == 0, found
        return found["settings"][0]["level"] == "warn"

    await eventually(is_a_warning)


def test_servers_that_do_not_answer_are_named_and_no_secret_is(plant: Plant):
    code, found = doctor(
        plant,
        TEMPORAL_ADDRESS="127.0.0.1:1",
        LONGSHORE_DATABASE_URL="postgresql://me:hunter2@127.0.0.1:1/x",
    )
    assert code == 1
    assert levels(found)["temporal"] == levels(found)["database"] == "fail"
    assert "Check TEMPORAL_ADDRESS" in found["temporal"][0]["says"]
    assert "hunter2" not in json.dumps(found)


def test_an_empty_database_is_to_be_upgraded(plant: Plant):
    name = f"empty_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(plant.stack.postgres.url("postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    code, found = doctor(plant, LONGSHORE_DATABASE_URL=plant.stack.postgres.url(name))
    assert code == 1
    assert found["schema"][0]["mend"] == "Run `longshore db upgrade`."
    assert "agents" not in found


@pytest.mark.exhaustive
def test_a_pool_that_may_buy_without_a_market_is_named(plant: Plant):
    plant.longshore("pool", "set", "buyers", "--buying", "enabled=true")
    try:
        _, found = doctor(plant)
        (finding,) = found["buying"]
        assert finding["level"] == "warn"
        assert finding["says"] == "pool buyers may buy, and no market is configured here"
        assert "`longshore pool set buyers --buying enabled=false`" in finding["mend"]
    finally:
        plant.longshore("pool", "set", "buyers", "--buying", "enabled=false")
    assert "buying" not in doctor(plant)[1]


def test_a_namespace_that_is_not_there_is_named(plant: Plant):
    code, found = doctor(plant, TEMPORAL_NAMESPACE="nowhere", TEMPORAL_ADDRESS=_address(plant))
    assert code == 1
    assert found["namespace"][0]["says"] == "the server has no namespace nowhere"


async def test_nobody_at_work_a_forgotten_pool_and_a_silent_agent_are_found(plant: Plant):
    """In a namespace where nothing runs, against the database of one where all does."""
    namespace = f"empty-{uuid.uuid4().hex[:8]}"
    await _make_namespace(plant, namespace)
    temporal = await Client.connect(_address(plant), namespace=namespace)
    database = Database(plant.stack.postgres.url())
    url = plant.stack.postgres.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO pools (name, spec, poked) VALUES ('forgotten', '{}', true)"
        )
    try:
        control = await temporal_checks.checks(temporal)["control worker"]()
        others = temporal_checks.checks_of_nodes(temporal, database)
        pools, agents = await others["pools"](), await others["agents"]()
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DELETE FROM pools WHERE name = 'forgotten'")
        await database.close()
    assert _failed(control) == [
        "nobody asks task queue longshore for workflows",
        "nobody asks task queue longshore for activities",
    ]
    assert "pool forgotten has work, and no workflow pool-forgotten runs" in _failed(pools)
    assert any(says.startswith("node watched-1 is in the database") for says in _failed(agents))


async def test_the_mend_of_a_forgotten_pool_mends_it(plant: Plant):
    """The command that is printed is one that works."""
    temporal = await Client.connect(_address(plant))
    name = f"mend-{uuid.uuid4().hex[:8]}"
    finding = pool_checks.forgotten(name)
    command = finding.mend.split("`")[1].removeprefix("temporal ")
    done = await asyncio.create_subprocess_exec(
        _temporal(), *shlex.split(command), "--address", _address(plant),
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await done.wait() == 0
    description = await temporal.get_workflow_handle(f"pool-{name}").describe()
    assert description.workflow_type == "PoolWorkflow"


async def test_jobs_that_are_set_aside_are_named(plant: Plant):
    url, decision = plant.stack.postgres.url(), '{"kind": "SET_ASIDE", "reason": "set aside: x"}'
    temporal, database = await Client.connect(_address(plant)), Database(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO pools (name, spec) VALUES ('aside', '{}')")
        _let_wait(connection, "poison-1", "aside", decision)
        try:
            found = await pool_checks.pools(temporal, database)
        finally:
            _forget(connection, "poison-1", "aside")
            await database.close()
    assert "job poison-1 is set aside: x" in _failed(found)


async def test_a_pool_whose_cycle_fails_is_named(plant: Plant):
    """The row of the pool is such that no version can read it."""
    url = plant.stack.postgres.url()
    temporal = await Client.connect(_address(plant), data_converter=data_converter)
    database = Database(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO pools (name, spec) VALUES ('failing', '{\"preemption\": 7}')"
        )
        _let_wait(connection, "waits-1", "failing", None)
        pool = await temporal.start_workflow(
            POOL_WORKFLOW, PoolInput(pool="failing"), id="pool-failing",
            task_queue=CONTROL_TASK_QUEUE, start_signal="poke",
        )  # fmt: skip
        try:
            await eventually(lambda: _is_named(temporal, database, "the cycle of pool failing"))
        finally:
            await pool.terminate()
            _forget(connection, "waits-1", "failing")
            await database.close()


async def test_waiting_pools_that_nobody_answers_for_point_at_the_control_worker(plant: Plant):
    """The server lists for minutes who asked it for work, and waits for that one's answer."""
    namespace = f"silent-{uuid.uuid4().hex[:8]}"
    await _make_namespace(plant, namespace)
    temporal = await Client.connect(
        _address(plant), namespace=namespace, data_converter=data_converter
    )
    database = Database(plant.stack.postgres.url())
    with psycopg.connect(plant.stack.postgres.url(), autocommit=True) as connection:
        connection.execute("INSERT INTO pools (name, spec) VALUES ('silent', '{}')")
        _let_wait(connection, "waits-2", "silent", None)
        try:
            async with Worker(temporal, task_queue=CONTROL_TASK_QUEUE, workflows=[PoolWorkflow]):
                pool = await temporal.start_workflow(
                    POOL_WORKFLOW, PoolInput(pool="silent"), id="pool-silent",
                    task_queue=CONTROL_TASK_QUEUE,
                )  # fmt: skip
                await pool.query("status")
            found = await pool_checks.pools(temporal, database)
        finally:
            _forget(connection, "waits-2", "silent")
            await database.close()
    (finding,) = (each for each in found if "how the cycles" in each.says)
    assert finding.says.startswith("no control worker has said within 5 s ")
    assert "silent" in finding.says
    assert finding.mend.startswith("The line on the control worker says what to do")


async def _is_named(temporal: Client, database: Database, what: str) -> bool:
    found = _failed(await pool_checks.pools(temporal, database))
    return any(says.startswith(f"{what} fails: ") for says in found)


async def test_a_worker_that_was_killed_and_is_still_listed_is_no_worker(plant: Plant):
    """The server lists for minutes who asked it for work."""
    namespace = f"dead-{uuid.uuid4().hex[:8]}"
    await _make_namespace(plant, namespace)
    temporal = await Client.connect(_address(plant), namespace=namespace)
    async with asking(temporal, "was-1"):
        pass
    (found,) = await temporal_checks.checks(temporal)["control worker"]()
    assert found.level is Level.FAIL
    assert found.says.startswith("nobody took a workflow from task queue longshore within 5 s; ")
    assert "those that asked last (was-1 at " in found.says


async def test_a_worker_that_takes_work_and_does_nothing_is_named(plant: Plant):
    namespace = f"hangs-{uuid.uuid4().hex[:8]}"
    await _make_namespace(plant, namespace)
    temporal = await Client.connect(_address(plant), namespace=namespace)
    async with asking(temporal, "4711@gpu-1"):
        (found,) = await temporal_checks.checks(temporal)["control worker"]()
    assert found.says.startswith(
        "process 4711 on gpu-1 was given a workflow and has not answered within 5 s"
    )
    assert "`longshore up` on its machine ends one" in found.mend


@asynccontextmanager
async def asking(temporal: Client, identity: str) -> AsyncIterator[None]:
    """Ask for a workflow and an activity as a control worker does, and do neither."""
    queue, namespace = TaskQueue(name=CONTROL_TASK_QUEUE), temporal.namespace
    service, soon = temporal.workflow_service, timedelta(seconds=60)
    flows = PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=queue, identity=identity)
    others = PollActivityTaskQueueRequest(namespace=namespace, task_queue=queue, identity=identity)
    polls = (
        asyncio.create_task(service.poll_workflow_task_queue(flows, timeout=soon)),
        asyncio.create_task(service.poll_activity_task_queue(others, timeout=soon)),
    )
    for workflows in (True, False):
        await eventually(lambda w=workflows: last_polls(temporal, queue.name, workflows=w))
    try:
        yield
    finally:
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)


async def test_a_node_that_is_lost_is_named_with_the_reason(plant: Plant):
    """So is one whose agent hangs: it is lost by what its heartbeats do not say."""
    hung = {"id": "hung-1", "state": "LOST", "state_reason": "its agent hangs", "block_id": None}
    url = plant.stack.postgres.url()
    temporal, database = await Client.connect(_address(plant)), Database(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO nodes SELECT (jsonb_populate_record(n, %s)).* FROM nodes n LIMIT 1",
            (Jsonb(hung),),
        )
        try:
            found = await agent_checks.agents(temporal, database)
        finally:
            connection.execute("UPDATE nodes SET state = 'GONE' WHERE id = 'hung-1'")
            await database.close()
    said = [finding for finding in found if finding.says.startswith("node hung-1 is lost")]
    assert [(each.level, each.says) for each in said] == [
        (Level.WARN, "node hung-1 is lost: its agent hangs")
    ]
    assert "start it again" in said[0].mend


@pytest.mark.parametrize(
    ("block", "ends", "over", "mend"),
    [
        ("past", "-1 hour", "; its time is over", "Nothing is to be started again: it leaves when "
         "its block past has ended at prime (`longshore block past`)."),
        ("paid", "1 hour", "", "It was bought at prime. Where it stays silent its machine is "
         "stopped, and another is started while its time is paid for: `longshore block paid`."),
    ],
)  # fmt: skip
async def test_a_silent_node_of_a_block_is_not_to_be_started_by_hand(
    plant: Plant, block: str, ends: str, over: str, mend: str
):
    url = plant.stack.postgres.url()
    temporal, database = await Client.connect(_address(plant)), Database(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO blocks (id, provider, instance_type, tier, price_micro_per_gpu_hour,"
            " state, ends_at) VALUES (%s, 'prime', '1xL40S', 'FAST', 1, 'OPEN',"
            " now() + CAST(%s AS interval))",
            (block, ends),
        )
        connection.execute(
            "INSERT INTO blocks SELECT (jsonb_populate_record(b, %s)).* FROM blocks b"
            " WHERE b.id = %s",
            (Jsonb({"id": f"{block}-done", "state": "ENDED"}), block),
        )
        connection.execute(
            "INSERT INTO nodes SELECT (jsonb_populate_record(n, %s)).* FROM nodes n LIMIT 1",
            (Jsonb({"id": f"{block}-left", "state": "LOST", "block_id": f"{block}-done"}),),
        )
        for node, state in ((f"{block}-mute", "READY"), (f"{block}-lost", "LOST")):
            row = {"id": node, "state": state, "state_reason": "x", "block_id": block}
            connection.execute(
                "INSERT INTO nodes SELECT (jsonb_populate_record(n, %s)).* FROM nodes n LIMIT 1",
                (Jsonb(row),),
            )
        try:
            found = await agent_checks.agents(temporal, database)
        finally:
            ended = [block, f"{block}-done"]
            connection.execute(
                "UPDATE nodes SET state = 'GONE' WHERE block_id = ANY(%s)", (ended,)
            )
            connection.execute("UPDATE blocks SET state = 'ENDED' WHERE id = %s", (block,))
            await database.close()
    told = [(each.says, each.mend) for each in found if f"node {block}-" in each.says]
    assert told == [
        (f"node {block}-mute is in the database, and its agent asks for no work{over}", mend),
        (f"node {block}-lost is lost: x{over}", mend),
    ]


async def test_a_node_that_longshore_has_cordoned_is_named_with_what_to_do(plant: Plant):
    url = plant.stack.postgres.url()
    temporal, database = await Client.connect(_address(plant)), Database(url)
    full = f"{DISK_REFUSES}: No space left on device"
    broken = f"{DISK_REFUSES}: Input/output error"
    rows: list[dict[str, Any]] = [
        {"id": "full-1", "drain_reason": full, "state_reason": full},
        {"id": "broken-1", "drain_reason": broken, "state_reason": broken},
        {"id": "ends-1", "drain_reason": None, "state_reason": "its node ends at 12:00 UTC"},
        {"id": "hand-1", "drain_reason": "new disks", "state_reason": "new disks"},
    ]
    with psycopg.connect(url, autocommit=True) as connection:
        for row in rows:
            connection.execute(
                "INSERT INTO nodes SELECT (jsonb_populate_record(n, %s)).* FROM nodes n LIMIT 1",
                (Jsonb(row | {"state": "DRAINING", "block_id": None}),),
            )
        try:
            found = await agent_checks.agents(temporal, database)
        finally:
            connection.execute("UPDATE nodes SET state = 'GONE' WHERE state = 'DRAINING'")
            await database.close()
    said = {each.says: each for each in found if "takes no more jobs" in each.says}
    disk = said.pop(f"node full-1 takes no more jobs: {full}")
    assert disk.level is Level.WARN
    assert "Make room" in disk.mend
    assert "its agent lifts the cordon" in disk.mend
    assert "uncordon" not in disk.mend
    disk = said.pop(f"node broken-1 takes no more jobs: {broken}")
    assert disk.mend.startswith("Mend the disk of")
    assert "lifts" not in disk.mend
    (ends,) = said.values()
    assert ends.level is Level.OK
    assert ends.says.startswith("node ends-1 takes no more jobs: its node ends at 12:00 UTC; ")


def test_the_last_line_is_what_the_findings_come_to():
    one, two, three = ok("x", "said"), warn("x", "said", "mend"), fail("x", "said", "mend")
    assert in_all([one]) == "All is well."
    assert in_all([one, two]) == "Nothing has failed; 1 warning."
    assert in_all([two, three]) == "Something is wrong."


def test_clocks_may_be_a_little_apart():
    now = datetime.now(UTC)
    assert clocks("c", "x", now + timedelta(seconds=3), now).level is Level.OK
    far = clocks("c", "x", now - timedelta(seconds=60), now)
    assert (far.level, far.says) == (
        Level.FAIL, "the clock of x is 60 s away from this machine's",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ahead", "says"),
    [
        (3, []), (-3, []), (-10, []), (60, ["the clock of node n is 60 s away from Temporal's"]),
        (-60, ["the clock of node n is 54 s away from Temporal's"]),
    ],
)  # fmt: skip
def test_the_clock_of_an_agent_may_be_a_little_apart(ahead: int, says: list[str]):
    now = datetime.now(UTC)
    found = agent_checks.clock_of("n", now + timedelta(seconds=ahead), now, timedelta(seconds=6))
    assert [finding.says for finding in found] == says


def test_an_agent_of_another_version_is_named():
    assert agent_checks.version_of("n", version("longshore"), PROTOCOL) == []
    (found,) = agent_checks.version_of("n", "0.0.9", PROTOCOL)
    assert found.level is Level.WARN
    assert found.says.startswith("the agent of node n has version 0.0.9, and this is ")


@pytest.mark.parametrize(
    ("theirs", "what", "mend"), [(-1, "older", "start its agent"), (1, "newer", "control workers")]
)
def test_an_agent_of_another_protocol_is_named(theirs: int, what: str, mend: str):
    """Also where its package has the version of ours, as between two commits."""
    number = PROTOCOL + theirs
    (found,) = agent_checks.version_of("n", version("longshore"), number)
    assert found.level is Level.WARN
    assert found.says == (
        f"the agent of node n is {what}: it speaks protocol {number}, this is {PROTOCOL}"
    )
    assert mend in found.mend


async def test_the_agent_of_a_node_is_named_that_registered_without_a_number(plant: Plant):
    url = plant.stack.postgres.url()
    temporal = await Client.connect(_address(plant), data_converter=data_converter)
    database = Database(url)
    with psycopg.connect(url, autocommit=True) as connection:
        try:
            connection.execute("UPDATE nodes SET agent_protocol = 0 WHERE id = 'watched-1'")
            says = [finding.says for finding in await agent_checks.agents(temporal, database)]
        finally:
            connection.execute(
                "UPDATE nodes SET agent_protocol = %s WHERE id = 'watched-1'", [PROTOCOL]
            )
            await database.close()
    older = f"the agent of node watched-1 is older: it speaks protocol 0, this is {PROTOCOL}"
    assert older in says


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def machine(tmp_path: Path, busy_port: int) -> Settings:
    (tmp_path / "agent-token").write_text("secret")
    (tmp_path / "agent-token").chmod(0o600)
    return Settings(state_dir=tmp_path, temporal_port=busy_port, temporal_ui_port=1)


def look(settings: Settings, check: str) -> list[Finding]:
    return [finding for finding in machine_checks.look_at(settings) if finding.check == check]


def test_a_token_that_others_can_read_is_a_mistake(machine: Settings):
    assert look(machine, "join token")[0].level is Level.OK
    (machine.state_dir / "agent-token").chmod(0o644)
    (finding,) = look(machine, "join token")
    assert finding.level is Level.FAIL
    assert "chmod 600" in finding.mend
    (machine.state_dir / "agent-token").unlink()
    assert look(machine, "join token")[0].level is Level.FAIL


def test_a_log_store_that_cannot_be_written_is_named_without_its_secret(
    machine: Settings, tmp_path: Path
):
    (tmp_path / "a-file").touch()
    settings = machine.model_copy(update={"log_store": (tmp_path / "a-file").as_uri()})
    (finding,) = look(settings, "log store")
    assert finding.level is Level.FAIL
    settings = machine.model_copy(update={"log_store": "nosuch://me:hunter2@bucket/logs"})
    (finding,) = look(settings, "log store")
    assert finding.level is Level.FAIL
    assert "hunter2" not in finding.says
    assert look(machine, "log store")[0].level is Level.OK
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_port_in_use_is_named_before_up_meets_it(machine: Settings):
    busy, _ = look(machine, "ports")
    assert busy.level is Level.FAIL
    assert f"port {machine.temporal_port} is in use" in busy.says
    assert "LONGSHORE_TEMPORAL_PORT" in busy.mend


def test_an_address_where_nobody_listens_is_a_warning(machine: Settings):
    settings = machine.model_copy(update={"metrics_address": "127.0.0.1:1"})
    assert look(settings, "ports")[-1].level is Level.WARN


def test_a_console_that_could_not_start_is_named(machine: Settings, busy_port: int):
    unused = f"127.0.0.1:{free_ports(1)[0]}"
    (free,) = look(machine.model_copy(update={"console_address": unused}), "console")
    assert (free.level, "free" in free.says) == (Level.OK, True)
    address = f"127.0.0.1:{busy_port}"
    (busy,) = look(machine.model_copy(update={"console_address": address}), "console")
    assert busy.level is Level.FAIL
    assert f"port {busy_port} is in use" in busy.says
    assert "LONGSHORE_CONSOLE_ADDRESS" in busy.mend
    (off,) = look(machine.model_copy(update={"console_address": None}), "console")
    assert (off.level, "off" in off.says) == (Level.OK, True)


def test_a_port_that_a_closing_connection_has_is_not_said_to_be_free(
    machine: Settings, busy_port: int
):
    with socket.create_connection(("127.0.0.1", busy_port)) as closing:
        port = closing.getsockname()[1]
        settings = machine.model_copy(update={"console_address": f"127.0.0.1:{port}"})
        (busy,) = look(settings, "console")
    assert (busy.level, f"port {port} is in use" in busy.says) == (Level.FAIL, True)


def _address(plant: Plant) -> str:
    return plant.stack.temporal.address


def _temporal() -> str:
    from longshore.workers.temporal_server import temporal_program

    return temporal_program()


def _failed(findings: list[Finding]) -> list[str]:
    return [finding.says for finding in findings if finding.level is Level.FAIL]


async def _make_namespace(plant: Plant, namespace: str) -> None:
    making = await asyncio.create_subprocess_exec(
        _temporal(), "operator", "namespace", "create", "--address", _address(plant),
        "-n", namespace, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await making.wait() == 0
    temporal = await Client.connect(_address(plant), namespace=namespace)
    await eventually(lambda: is_known(temporal))


def _let_wait(connection: Connection, job_id: str, pool: str, decision: str | None) -> None:
    connection.execute(
        "INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)"
        " VALUES (%s, 'job', 'default', %s, '{}', now(), '')",
        (job_id, pool),
    )
    connection.execute(
        "INSERT INTO queue"
        " (job_id, attempt, pool, held, priority, submitted_at, request, decision)"
        " VALUES (%s, 1, %s, false, 5, now(), '{}', %s)",
        (job_id, pool, decision),
    )


def _forget(connection: Connection, job_id: str, pool: str) -> None:
    connection.execute("DELETE FROM queue WHERE job_id = %s", (job_id,))
    connection.execute("DELETE FROM jobs WHERE id = %s", (job_id,))
    connection.execute("DELETE FROM pools WHERE name = %s", (pool,))
