"""Machines of the simulated market are real agents, on a real stack, and go as machines go."""

import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.providers.startup import Startup
from longshore.client.api import Longshore
from longshore.models.job_status import JobState
from longshore.models.node import NodeState
from longshore.models.settings import Settings
from longshore.models.views import NodeView
from longshore.simulation.market.background import Profile
from longshore.simulation.market.nodes import AgentRoom
from longshore.workers.processes import wait_until
from longshore.workers.stack import Stack
from tests.support.control import a_spec, new_pool, reaches
from tests.support.market import RunningMarket, running_market
from tests.support.market_shop import HOUR, V1, V2, Shop, encoded, ok
from tests.support.marks import marked
from tests.support.waiting import eventually
from tests.support.warm import VARIABLE as STARTS_COPIES


@pytest.fixture
async def longshore(
    temporal: Client, settings: Settings, control: Database
) -> AsyncIterator[Longshore]:
    client = Longshore(temporal, settings)
    yield client
    await client.close()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[AgentRoom]:
    room = AgentRoom(tmp_path / "market")
    yield room
    room.clear()


@pytest.fixture
def market(room: AgentRoom) -> Iterator[RunningMarket]:
    """Starts a simulated market whose machines are agents; 0.02 s, and 1 s for each machine."""
    with running_market(Profile.CALM, machines=room) as market:
        yield market


class Script:
    """The start-up script of one machine of a pool."""

    def __init__(self, stack: Stack, settings: Settings) -> None:
        self.node_id = f"bought-{uuid.uuid4().hex[:8]}"
        self.pool = new_pool()
        self._environment = {
            "TEMPORAL_ADDRESS": stack.temporal.address,
            "LONGSHORE_AGENT_TOKEN": settings.resolve_agent_token(),
            "LONGSHORE_LOG_STORE": settings.resolve_log_store(),
            "PATH_OF_OTHERS": "is not passed on",
        }

    def encoded(self, provider: str) -> str:
        expires = (datetime.now(UTC) + timedelta(hours=6)).isoformat()
        flags = ("--node-id", self.node_id, "--pool", self.pool, "--provider", provider)
        startup = Startup(self._environment, (*flags, "--expires-at", expires))
        return encoded(startup.script())


@pytest.fixture
def script(stack: Stack, settings: Settings) -> Script:
    return Script(stack, settings)


async def node_of(longshore: Longshore, script: Script) -> NodeView | None:
    return next((n for n in await longshore.nodes() if n.id == script.node_id), None)


async def ready_node(longshore: Longshore, script: Script) -> NodeView:
    async def ask() -> NodeView | None:
        node = await node_of(longshore, script)
        return node if node and node.state is NodeState.READY and node.gpus else None

    found = await eventually(ask, interval=0.2)
    assert found
    return found


@pytest.mark.exhaustive
async def test_a_bought_instance_runs_jobs_until_its_window_closes(
    longshore: Longshore, market: RunningMarket, room: AgentRoom, script: Script
):
    shop = Shop(market)
    shop.ask()
    pool = shop.make_pool()
    shop.buy(pool)
    instance_id = ok(shop.start_instance(pool, cloud_init_user_data=script.encoded("sfcompute")))[
        "id"
    ]
    assert room.running() == {}
    market.advance(130)
    assert list(room.running()) == [instance_id]
    node = await ready_node(longshore, script)
    assert (node.provider, node.simulated, len(node.gpus)) == ("sfcompute", True, 8)

    mark = uuid.uuid4().hex
    job = await longshore.submit(a_spec(script.pool, command=f"MARK={mark} exec sleep 600"))
    await reaches(longshore, job.job_id, JobState.RUNNING)
    await eventually(lambda: marked(mark))
    market.advance(4 * HOUR)
    assert shop.instance(instance_id)["status"] == "terminated"
    assert room.running() == {}
    await eventually(lambda: not marked(mark))

    async def lost() -> bool:
        node = await node_of(longshore, script)
        return node is None or node.state in (NodeState.LOST, NodeState.GONE)

    await eventually(lost, interval=0.2)
    await longshore.cancel(job.job_id)


async def test_a_pod_has_the_gpus_of_its_row_and_goes_when_it_is_deleted(
    longshore: Longshore, market: RunningMarket, room: AgentRoom, script: Script
):
    shop = Shop(market)
    market.knobs(pod_start_seconds=10)
    rows = shop.rows(gpu_type="H100_80GB", gpu_count=2)
    row = next(row for row in rows if row["provider"] == "lambdalabs")
    variables = [{"key": "LONGSHORE_STARTUP", "value": script.encoded("prime")}]
    template = {"image": "custom_template", "customTemplateId": "with-longshore"}
    pod_id = ok(shop.rent(row, envVars=variables, **template))["id"]
    market.advance(20)
    node = await ready_node(longshore, script)
    assert (len(node.gpus), node.gpu_type, node.gpus[0].vram) == (2, "H100", 80)
    ok(shop.http.delete(f"{V1}/pods/{pod_id}"))
    assert room.running() == {}


def test_a_pod_runs_a_script_from_a_template_alone_and_never_at_a_seller_without_variables(
    market: RunningMarket, room: AgentRoom, script: Script
):
    shop = Shop(market)
    market.knobs(pod_start_seconds=10, pod_trouble=0)
    rows = {row["provider"]: row for row in shop.rows(gpu_type="H100_80GB", gpu_count=2)}
    variables = [{"key": "LONGSHORE_STARTUP", "value": script.encoded("prime")}]
    template = {"image": "custom_template", "customTemplateId": "with-longshore"}
    silent = [
        ok(shop.rent(rows["lambdalabs"], envVars=variables))["id"],
        ok(shop.rent(rows["runpod"], envVars=variables, **template))["id"],
    ]
    works = ok(shop.rent(rows["lambdalabs"], envVars=variables, **template))["id"]
    market.advance(20)
    assert {shop.pod(each)["installationStatus"] for each in (*silent, works)} == {"FINISHED"}
    assert list(room.running()) == [works]


def test_no_agent_without_a_script_that_starts_one(market: RunningMarket, room: AgentRoom):
    shop = Shop(market)
    shop.ask(nodes=4)
    pool = shop.make_pool()
    shop.buy(pool)
    for text in (None, encoded("#!/bin/sh\necho hello\n")):
        data = {} if text is None else {"cloud_init_user_data": text}
        ok(shop.start_instance(pool, **data))
    market.advance(130)
    states = {each["status"] for each in ok(shop.http.get(f"{V2}/instances"))["data"]}
    assert states == {"running"}
    assert room.running() == {}


NOWHERE = Startup(
    {"TEMPORAL_ADDRESS": "127.0.0.1:9", "LONGSHORE_AGENT_TOKEN": "t"}, ("--node-id", "box")
)
"""An agent that waits for its server, as long as it lives."""


def test_a_notice_lets_the_agent_stop_in_order(room: AgentRoom):
    room.start("inst_1", NOWHERE.script(), "8xH100-80GB")
    (pid,) = room.running().values()
    process = psutil.Process(pid)
    room.end("inst_1", notice=True)
    process.wait(60)
    assert room.running() == {}


def test_what_an_agent_is_told_comes_from_its_script_alone(
    room: AgentRoom, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LONGSHORE_DATABASE_URL", "postgresql://secret@db/longshore")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "mine")
    monkeypatch.setenv(STARTS_COPIES, "0")
    room.start("inst_2", NOWHERE.script(), "4xA100-80GB")
    (pid,) = room.running().values()
    agent = psutil.Process(pid)
    # It begins as `env`, which takes away what this shell says.
    assert wait_until(lambda: Path((agent.cmdline() or ["env"])[0]).name != "env", 60.0)
    environment = agent.environ()
    assert environment["TEMPORAL_ADDRESS"] == "127.0.0.1:9"
    assert not {"LONGSHORE_DATABASE_URL", "TEMPORAL_NAMESPACE"} & set(environment)
    assert environment["LONGSHORE_MARKET"] == "off"
    assert "4xA100-80GB" in psutil.Process(pid).cmdline()


def test_a_new_market_ends_the_machines_of_one_that_was_killed(tmp_path: Path, room: AgentRoom):
    room.start("inst_3", NOWHERE.script(), "8xH100-80GB")
    (pid,) = room.running().values()
    assert AgentRoom(tmp_path / "market").clear() == ("inst_3",)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert room.running() == {}
