"""`longshore place --live` and `longshore topology`, on a pool of the stack of the tests."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.serving.model_engine import engine_of
from longshore.models.domains import Foreseen, PoolTopology
from longshore.models.forecast import Forecast
from longshore.models.placement import PlacementKind
from longshore.models.settings import Settings
from tests.client.conftest import Command, Ran
from tests.support.recorded_service import RecordedService
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
FABRIC = {"region": "r", "cluster": "c", "fabric.domain": "A"}


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text("{name: mine, command: 'true', gpus: 3, cpus: 1, ram: 1GB}")
    return str(path)


async def test_a_pool_says_what_a_cycle_would_do_now(
    longshore: Command, pool: str, temporal: Client, settings: Settings, job_file: str
) -> None:
    token = settings.resolve_agent_token()
    labelled = ScriptedNode(temporal, pool, token, labels=FABRIC, node_id=f"a-{pool}")
    lone = ScriptedNode(temporal, pool, token, gpus=2, node_id=f"b-{pool}")
    await labelled.register()
    await lone.register()
    async with labelled.serving(), lone.serving():
        # Less than the hour that `mine` is taken to run.
        says = ("--set", "expected_duration=10m")
        held = await submitted(longshore, pool, "--gpus", "4", *says)
        await labelled.started(held)
        wide = await submitted(longshore, pool, "--gpus", "8")

        async def waits() -> bool:
            ran = await longshore("jobs", "--pool", pool, "--state", "queued", "--json")
            return [view["id"] for view in json.loads(ran.out)] == [wide]

        await eventually(waits)
        asked = ("place", "--live", "--job", job_file, "--pool", pool)
        ran = await longshore(*asked, "--json")
        assert (ran.code, ran.err) == (0, "")
        found = Foreseen.model_validate_json(ran.out)
        # Of the same class and later: it may not delay the wide job, which stops nobody.
        assert found.decision.kind is PlacementKind.REQUEST_MORE_CAPACITY
        assert (found.running, found.ahead, found.placed_ahead, found.kept_ahead) == (1, 1, 0, 1)
        reasons = {r.node_id: r.reason for r in found.decision.rejections}
        assert reasons[labelled.id].startswith(f"would delay {wide}")
        assert reasons[lone.id] == "has 2 GPUs, job wants 3"
        assert found.stops is not None
        assert not found.stops.preempts
        text = (await longshore(*asked)).out
        assert f"\nPreemption: {found.stops.reason}\n" in text
        assert "beside 1 running job and 1 job of the queue before it" in text
        assert "; nodes there are simulated. Nothing was placed." in text
        would = ("submit", "--dry-run", "--gpus", "8", "--pool", pool)
        ran = await longshore(*would, "--set", "expected_duration=10m", "--", "true")
        assert "It would wait in pool" in ran.out
        assert "; it may start at " in ran.out
        assert ran.err == "Some of the GPUs are simulated.\n"
        dry = json.loads((await longshore(*would, "--json", "--", "true")).out)
        assert (dry["simulated"], dry["simulated_market"]) == (True, False)
        await longshore("cancel", wide)

        async def nobody_waits() -> bool:
            ran = await longshore("jobs", "--pool", pool, "--state", "queued", "--json")
            return json.loads(ran.out) == []

        await eventually(nobody_waits)
        found = Foreseen.model_validate_json((await longshore(*asked, "--json")).out)
        assert found.decision.by_node == ((labelled.id, (4, 5, 6)),)
        assert found.stops is None
        assert found.simulated
        assert [(d.domain, d.free, d.left) for d in found.domains] == [("r/c/A", 4, 1), ("", 2, 2)]
        compared = (await longshore(*asked, "--rules", "all")).out
        assert compared.count(" (used)") == 1
        assert "keep-room (used)" in compared
        text = (await longshore(*asked)).out
        assert f"{labelled.id}  [xxxx###·]" in text
        assert "r/c/A   1      8     4     1\n" in text
        assert "beside 1 running job and 0 jobs of the queue before it; its node is sim" in text
        shown = (await longshore("jobs", "--pool", pool, "--json")).out
        assert "mine" not in {view["name"] for view in json.loads(shown)}  # nothing was placed
        await domains_are_shown(longshore, pool, labelled.id, lone.id)
        await longshore("cancel", held)
        await labelled.end(held)


async def test_a_dry_run_says_the_moment_and_between_when_and_when(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    """As `why` and `queue` say it of the job once it waits."""
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token())
    await node.register()
    async with node.serving():
        runs = await submitted(longshore, pool, "--gpus", "8")  # nobody knows for how long
        await node.started(runs)
        asked = ("submit", "--dry-run", "--gpus", "8", "--pool", pool)
        ran = await longshore(*asked, "--", "true")
        said = " ".join(ran.out.split())
        assert re.search(
            r"it may start at \S+ UTC, probably between \S+( UTC)? and \S+ UTC\.", said
        ), said
        found = Forecast.model_validate_json((await longshore(*asked, "--json", "--", "true")).out)
        assert found.start_range is not None
        assert found.ready_at is not None
        assert found.start_range.earliest <= found.ready_at <= found.start_range.latest
        assert found.start_range.earliest < found.start_range.latest
        await longshore("cancel", runs)
        await node.end(runs)


async def test_a_pool_says_where_an_engine_of_a_model_would_go(
    longshore: Command, pool: str, temporal: Client, settings: Settings
) -> None:
    model = f"m-{pool}"
    asked = ("place", "--live", "--model", model, "--pool", pool)
    ran = await longshore(*asked)
    assert (ran.code, ran.out) == (66, "")
    assert f"there is no model '{model}'" in ran.err
    added = ("--source", "/m/tiny.gguf", "--memory", "30GB", "--context", "2048")
    await longshore("models", "add", model, *added)
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), node_id=f"a-{pool}")
    await node.register()
    async with node.serving():
        found = Foreseen.model_validate_json((await longshore(*asked, "--json")).out)
        assert found.decision.by_node == ((node.id, (0,)),), found.decision
        assert (found.request.serves, found.request.vram_per_gpu) == (True, 30.0)
        shown = (await longshore(*asked)).out
        assert f"{node.id}  [x" not in shown, "nothing was placed"
        assert "ready within 10m" in shown, "it runs until it is stopped"
    for wrong in (("--model", model), ("--live",), ("--live", "--model", model, "--job", "x")):
        ran = await longshore("place", *wrong)
        assert ran.code == 2
        assert "give --job FILE, or --live and --model MODEL" in ran.err
    await longshore("models", "rm", model)


async def test_an_engine_is_placed_with_what_is_known_of_one_like_it(
    longshore: Command, pool: str, temporal: Client, settings: Settings, control: Database
) -> None:
    model = f"m-{pool}"
    added = ("--source", "/m/tiny.gguf", "--memory", "500MB", "--context", "2048")
    await longshore("models", "add", model, *added)
    asked = ("place", "--live", "--model", model, "--pool", pool, "--json")
    node = ScriptedNode(temporal, pool, settings.resolve_agent_token(), gpus=1)
    await node.register()
    async with node.serving():
        found = Foreseen.model_validate_json((await longshore(*asked)).out)
        assert found.request.vram_per_gpu == 0.5
        served = RecordedService(control, temporal, pool)
        async with control.transaction() as connection:
            served.engine, _, _ = await engine_of(connection, model)
        await served.begin_one(await served.record(replicas=0), f"{served.name}-r1-one")
        async with control.transaction() as connection:
            told = (
                "UPDATE replicas SET memory = 921000000, load_seconds = 45 WHERE service = :name"
            )
            await connection.execute(text(told), {"name": served.name})
        found = Foreseen.model_validate_json((await longshore(*asked)).out)
        assert found.request.vram_per_gpu == 0.921
        await longshore("pool", "set", pool, "--preemption", "max_wait=1m")
        held = await submitted(longshore, pool, "--gpus", "1")
        await node.started(held)
        found = Foreseen.model_validate_json((await longshore(*asked)).out)
        assert found.stops is not None
        # Four of its load times, which are longer than the wait for a turn.
        assert f"from {found.at + timedelta(minutes=3):%H:%M:%S} UTC on" in found.stops.reason
        await longshore("cancel", held)
        await node.end(held)
    await served.remove()
    await served.look()
    await longshore("models", "rm", model)


async def domains_are_shown(longshore: Command, pool: str, labelled: str, lone: str) -> None:
    ran = await longshore("topology", "--pool", pool, "--json")
    (found,) = (PoolTopology.model_validate(one) for one in json.loads(ran.out))
    (domain,) = found.domains
    assert (domain.domain, domain.gpus, domain.used, domain.free) == ("r/c/A", 8, 4, 4)
    assert [node.node_id for node in domain.nodes] == [labelled]
    assert [(node.node_id, node.free) for node in found.unlabelled] == [(lone, 2)]
    everything = (await longshore("topology", "--json")).out
    assert pool in {one["pool"] for one in json.loads(everything)}
    text = (await longshore("topology", "--pool", pool)).out
    assert text.startswith(f"pool {pool}: 1 domain\n")
    assert "READY simulated" in text
    assert "1 node of no domain: without cluster, fabric.domain, region" in text


async def test_a_pool_that_is_not_there_is_said(
    longshore: Command, pool: str, job_file: str
) -> None:
    for command in (("topology",), ("place", "--live", "--job", job_file)):
        ran = await longshore(*command, "--pool", pool)
        assert ran.code != 0
        assert f"no pool '{pool}': `longshore pools` lists them" in ran.err


@pytest.mark.parametrize(
    "args", [(), ("--live", "--state", "x.yaml"), ("--state", "x.yaml", "--pool", "p")]
)
def test_it_wants_a_file_or_a_pool(cli: Callable[..., Ran], args: tuple[str, ...]) -> None:
    ran = cli("place", "--job", str(EXAMPLES / "job.yaml"), *args)
    assert (ran.code, ran.out) == (2, "")
    assert "give --state FILE, or --live" in ran.err.replace("\n", " ")


async def submitted(longshore: Command, pool: str, *args: str) -> str:
    ran = await longshore("submit", "-q", "--pool", pool, *args, "--", "true")
    assert ran.code == 0, ran.err
    return ran.out.strip()
