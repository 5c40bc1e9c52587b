"""`longshore doctor` on a real installation, well and with one thing after another wrong."""

import asyncio
import json
import shlex
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from temporalio.client import Client

from activities.database import Database
from models.settings import Settings
from tests.support.plant import Plant
from workers.doctor import agents as agent_checks
from workers.doctor import machine as machine_checks
from workers.doctor import pools as pool_checks
from workers.doctor import temporal as temporal_checks
from workers.doctor.database import clocks
from workers.doctor.findings import Finding, Level


def doctor(plant: Plant, **env: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Return the exit code, and what was found by the name of the check."""
    done = plant.longshore("doctor", "--json", **env)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        found.setdefault(finding["check"], []).append(finding)
    return done.returncode, found


def levels(found: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    return {check: findings[0]["level"] for check, findings in found.items()}


def test_all_is_well(plant: Plant, jobs: dict[str, str]):
    code, found = doctor(plant)
    assert levels(found) == dict.fromkeys(
        (
            "settings", "disk", "log store", "checkpoint store", "join token", "markets",
            "temporal", "namespace", "search attributes", "temporal clock", "control worker",
            "database", "schema", "database clock", "pools", "agents", "console",
        ),
        "ok",
    ), found  # fmt: skip
    assert code == 0
    shown = plant.longshore("doctor")
    assert shown.returncode == 0
    assert shown.stdout.endswith("\nAll is well.\n")


def test_a_mistake_in_the_settings_is_the_first_to_mend(plant: Plant, tmp_path: Path):
    code, found = doctor(plant, LONGSHORE_TEMPORAL_PORT="x")
    assert code == 1
    assert [finding["says"] for finding in found["settings"]] == [
        "LONGSHORE_TEMPORAL_PORT: must be a whole number, got 'x'"
    ]
    code, found = doctor(plant, LONGSHORE_LOG_LEVLE="DEBUG")
    assert code == 0
    assert found["settings"][0]["level"] == "warn"


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
    assert "pool forgotten was poked, and no workflow pool-forgotten runs" in _failed(pools)
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
        connection.execute(
            "INSERT INTO jobs (id, name, tenant, pool, spec, submitted_at, message)"
            " VALUES ('poison-1', 'poison', 'default', 'aside', '{}', now(), '')"
        )
        connection.execute(
            "INSERT INTO queue (job_id, attempt, pool, held, priority, submitted_at, request,"
            " decision) VALUES ('poison-1', 1, 'aside', false, 5, now(), '{}', %s)",
            (decision,),
        )
        try:
            found = await pool_checks.pools(temporal, database)
        finally:
            connection.execute("DELETE FROM queue WHERE job_id = 'poison-1'")
            connection.execute("DELETE FROM jobs WHERE id = 'poison-1'")
            connection.execute("DELETE FROM pools WHERE name = 'aside'")
            await database.close()
    assert _failed(found) == ["job poison-1 is set aside: x"]


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
    assert agent_checks.version_of("n", version("longshore")) == []
    (found,) = agent_checks.version_of("n", "0.0.9")
    assert found.level is Level.WARN
    assert found.says.startswith("the agent of node n has version 0.0.9, and this is ")


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
    (free,) = look(machine.model_copy(update={"console_address": "127.0.0.1:1"}), "console")
    assert (free.level, "free" in free.says) == (Level.OK, True)
    address = f"127.0.0.1:{busy_port}"
    (busy,) = look(machine.model_copy(update={"console_address": address}), "console")
    assert busy.level is Level.FAIL
    assert f"port {busy_port} is in use" in busy.says
    assert "LONGSHORE_CONSOLE_ADDRESS" in busy.mend
    (off,) = look(machine.model_copy(update={"console_address": None}), "console")
    assert (off.level, "off" in off.says) == (Level.OK, True)


def _address(plant: Plant) -> str:
    return plant.stack.temporal.address


def _temporal() -> str:
    from workers.temporal_server import temporal_program

    return temporal_program()


def _failed(findings: list[Finding]) -> list[str]:
    return [finding.says for finding in findings if finding.level is Level.FAIL]


async def _make_namespace(plant: Plant, namespace: str) -> None:
    making = await asyncio.create_subprocess_exec(
        _temporal(), "operator", "namespace", "create", "--address", _address(plant),
        "-n", namespace, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await making.wait() == 0
