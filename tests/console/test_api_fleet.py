"""The REST API of nodes and jobs over HTTP, with what a real cycle left in a real database."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.activities.views import Views
from longshore.models.base import JOB_ID, LONGEST_JOB_ID
from longshore.workers.stack import Stack
from tests.support.console import RunningConsole, running_console
from tests.support.control import new_pool
from tests.support.database_away import database_away
from tests.support.ledger import Ledger
from tests.support.local_stack import temporary_folder
from tests.support.waiting import eventually

FABRIC = {"region": "eu", "cluster": "c1", "fabric.domain": "a"}


class Scene:
    """A pool of its own in the stack's database; what is in it has names of its own."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.pool = ledger.pool
        self.node_a, self.node_b, self.node_c = (f"node-{each}-{self.pool}" for each in "abc")
        self.train, self.part, self.other, self.wide = (
            f"{each}-{self.pool}" for each in ("train", "part", "other", "wide")
        )


@pytest.fixture
async def scene(temporal: Client, console_database: str) -> AsyncIterator[Scene]:
    """A pool of the test's own in the console's database; starts nothing."""
    database = Database(console_database)
    ledger = Ledger(database, temporal, new_pool())
    await ledger.keep_order_of_age()
    yield Scene(ledger)
    await database.close()


@pytest.fixture
async def placed(scene: Scene) -> AsyncIterator[Scene]:
    """Two nodes; a job that runs, two that share a GPU, and one that is too wide."""
    ledger = scene.ledger
    for node in (scene.node_a, scene.node_b):
        await ledger.register(node, gpus=4)
    part = {"milli": 400, "vram_per_gpu": "20GB"}
    async with ledger.listening(scene.train, scene.part, scene.other, scene.wide):
        await ledger.enqueue(scene.train, name=f"the-{scene.train}", gpus=3, tenant="lab")
        await ledger.enqueue(scene.part, **part)
        await ledger.enqueue(scene.other, **part)
        await ledger.enqueue(scene.wide, gpus=64)
        await ledger.cycle(f"one-{scene.pool}")
        yield scene


def of(console: RunningConsole, path: str, **query: object) -> Any:
    answer = console.get(path, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def as_json(views: Any) -> Any:
    return [json.loads(view.model_dump_json()) for view in views]


async def test_nodes_and_jobs_are_what_the_commands_print(placed: Scene, console: RunningConsole):
    views, pool = Views(placed.ledger.database), placed.pool
    nodes = of(console, "/nodes", pool=pool)["nodes"]
    assert nodes == as_json(await views.nodes(pool=pool))
    assert of(console, "/jobs", pool=pool)["jobs"] == as_json(await views.jobs(pool=pool))
    pools = {each["spec"]["name"]: each for each in of(console, "/pools")["pools"]}
    assert (pools[pool]["gpus"], pools[pool]["gpus_used"]) == (8, 4)
    [domains] = of(console, "/topology", pool=pool)["pools"]
    assert {node["node_id"]: node["used"] + node["free"] for node in domains["unlabelled"]} == {
        placed.node_a: 4, placed.node_b: 4,
    }  # fmt: skip
    holders = {
        gpu["job_id"] or tuple(part["job_id"] for part in gpu["parts"])
        for node in nodes
        for gpu in node["gpus"]
    }
    assert holders == {placed.train, tuple(sorted((placed.part, placed.other))), ()}


async def test_a_job_in_full_without_temporal(placed: Scene, console: RunningConsole):
    report = of(console, f"/jobs/{placed.train}")
    assert (report["job"]["state"], report["status"], report["progress"]) == (
        "RUNNING",
        None,
        None,
    )
    assert report["spec"]["gpus"] == 3
    [missing] = report["missing"]
    assert missing.startswith("the last stored state, as the workflow cannot be asked: ")
    [attempt] = report["attempts"]
    assert (attempt["attempt"], attempt["ended_at"], attempt["end_reason"]) == (1, None, None)
    [share] = attempt["shares"]
    assert share["node_id"] == report["job"]["node_id"]
    assert share["gpu_indices"] == report["job"]["gpu_indices"]
    assert attempt["reason"] == report["job"]["reason"]
    assert of(console, f"/jobs/the-{placed.train}")["job"]["id"] == placed.train


async def test_an_attempt_says_why_it_ended(placed: Scene, console: RunningConsole):
    await placed.ledger.release(placed.train)
    await placed.ledger.enqueue(placed.train, attempt=2, gpus=3)
    [queued] = of(console, "/jobs", state="QUEUED", pool=placed.pool, limit=1)["jobs"]
    assert queued["queued_at"] > queued["submitted_at"]
    await placed.ledger.cycle(f"two-{placed.pool}")
    first, second = of(console, f"/jobs/{placed.train}")["attempts"]
    assert (first["end_reason"], first["end_message"]) == ("held", "held")
    assert first["ended_at"] >= first["placed_at"]
    assert (second["attempt"], second["ended_at"]) == (2, None)


async def test_why_a_job_was_placed_and_why_another_waits(placed: Scene, console: RunningConsole):
    why = of(console, f"/jobs/{placed.train}/why")["placed"]
    best, other = why["candidates"]
    assert best["node_id"] == why["node_id"]
    assert best["terms"]["total"] >= other["terms"]["total"]
    assert best["terms"]["parts"]
    why = of(console, f"/jobs/{placed.wide}/why")
    assert (why["job"]["state"], why["position"]) == ("QUEUED", 1)
    codes = {each["node_id"]: each["code"] for each in why["decision"]["rejections"]}
    assert codes == dict.fromkeys((placed.node_a, placed.node_b), "not-enough-gpus")
    assert why["last_decision"]["reason"] == why["job"]["reason"]
    assert why["placed"] is None
    assert why["hints"]


async def test_the_queue_of_a_pool_and_its_past(placed: Scene, console: RunningConsole):
    await placed.ledger.rows(
        "INSERT INTO start_estimates (job_id, attempt, pool, made_at, starts_at)"
        " SELECT job_id, attempt, :pool, placed_at - interval '30 min', placed_at"
        "   FROM placements WHERE job_id = :job",
        pool=placed.pool, job=placed.train,
    )  # fmt: skip
    queue = of(console, "/queue", pool=placed.pool)
    assert (queue["pool"], queue["order"], queue["simulated"]) == (placed.pool, "age", True)
    [job] = queue["jobs"]
    assert (job["place"], job["job_id"], job["gpus"]) == (1, placed.wide, 64)
    assert "no known node could ever hold it" in job["reason"]
    history = of(console, "/queue/history", pool=placed.pool)
    first, *_, last = history["moments"]
    assert (history["every"], history["simulated"]) == ("15m", True)
    assert (first["waiting"], first["running"], first["stops"]) == (None, 0, 0)
    assert (last["waiting"], last["running"], last["stops"]) == (1, 3, 0)
    told = of(console, "/queue/estimates", pool=placed.pool, hours=2)
    [row] = told["rows"]
    assert (row["within"], row["jobs"], row["median"], row["later"]) == ("1h", 1, "0s", 0)


@pytest.mark.parametrize("path", ["/queue", "/queue/history", "/queue/estimates"])
def test_the_queue_of_a_pool_that_is_not_there_is_not_found(console: RunningConsole, path: str):
    refused = console.get(path, pool="nobody")
    assert refused.status_code == 404
    assert "nobody" in refused.json()["error"]["message"]


async def test_pages_of_nodes_and_of_jobs(placed: Scene, console: RunningConsole):
    async def all_of(what: str, limit: int) -> list[str]:
        ids: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = of(console, f"/{what}", limit=limit, pool=placed.pool, **after)
            assert len(page[what]) <= limit
            ids += [each["id"] for each in page[what]]
            if page["next"] is None:
                return ids
            after = {"after": page["next"]}

    assert await all_of("nodes", 1) == [placed.node_a, placed.node_b]
    assert sorted(await all_of("jobs", 3)) == sorted(
        (placed.train, placed.part, placed.other, placed.wide)
    )


async def test_pages_of_dags(scene: Scene, console: RunningConsole):
    ids = [f"{name}-{scene.pool}" for name in "abcd"]
    await scene.ledger.rows(
        "INSERT INTO dags (id, name, tenant, spec, submitted_at, state, ended_at)"
        " SELECT id, id, 'lab', '{}', now() - interval '1 h' * (number / 2), 'CANCELLED', now()"
        "   FROM unnest(CAST(:ids AS text[])) WITH ORDINALITY AS of(id, number)",
        ids=ids,
    )  # fmt: skip
    await scene.ledger.rows(
        "INSERT INTO dag_jobs (dag_id, name, state)"
        " SELECT unnest(CAST(:ids AS text[])), 'train', 'WITHDRAWN'",
        ids=ids,
    )  # fmt: skip
    found: list[str] = []
    after: dict[str, str] = {}
    while not found or after:
        page = of(console, "/dags", state="CANCELLED", limit=1, **after)
        assert len(page["dags"]) == 1
        found += [each["id"] for each in page["dags"]]
        after = {"after": page["next"]} if page["next"] else {}
    assert [each for each in found if each in ids] == ids, "b and c are of one moment"
    assert len(found) == len(set(found))


async def test_jobs_by_labels_and_the_form_of_their_names(scene: Scene, console: RunningConsole):
    labels = {"a-1": {"sweep": "7", "team": "vision"}, "a-2": {"sweep": "7"}, "b-1": {}}
    for name, its in labels.items():
        job_id = f"{name}-{scene.pool}"
        await scene.ledger.enqueue(job_id, name=name, labels=its, max_duration="2h")

    def found(**asked: Any) -> dict[str, dict[str, str]]:
        jobs = of(console, "/jobs", pool=scene.pool, **asked)["jobs"]
        assert {job["max_duration"] for job in jobs} <= {"2h"}
        return {job["name"]: job["labels"] for job in jobs}

    assert found() == labels
    assert found(label="sweep=7").keys() == {"a-1", "a-2"}
    asked = f"/jobs?pool={scene.pool}&label=sweep%3D7&label=%21team"
    both = console.http.get(asked).json()["jobs"]
    assert [job["name"] for job in both] == ["a-2"]
    assert found(label="team in (vision, nlp)", name="a-*").keys() == {"a-1"}
    assert found(name="?-1").keys() == {"a-1", "b-1"}


@pytest.mark.parametrize(
    "field", ['{"expected_duration": "99999999h"}', '{"storage_bandwidth": 1e300}',
              '{"power_per_gpu": 1e300}'],
)  # fmt: skip
async def test_a_job_beyond_the_bounds_of_an_earlier_version_is_shown(
    scene: Scene, console: RunningConsole, field: str
):
    await scene.ledger.register(scene.node_a)
    async with scene.ledger.listening(scene.wide):
        await scene.ledger.enqueue(scene.wide)
        for table, column, name in (("queue", "request", "job_id"), ("jobs", "spec", "id")):
            await scene.ledger.rows(
                f"UPDATE {table} SET {column} = {column} || CAST(:field AS jsonb)"  # pyright: ignore
                f" WHERE {name} = :id", field=field, id=scene.wide,
            )  # fmt: skip
        await scene.ledger.cycle(f"one-{scene.pool}")
    for path in ("", "/why"):
        shown = of(console, f"/jobs/{scene.wide}{path}")["job"]
        assert (shown["id"], shown["state"]) == (scene.wide, "QUEUED")
        assert shown["reason"].startswith("set aside: its stored form cannot be read (")


async def test_every_id_that_a_job_may_have_is_taken(scene: Scene, console: RunningConsole):
    ids = {
        f"_{scene.pool}", f"A.{scene.pool}-", f"9_{scene.pool}",
        f"_{scene.pool}-".ljust(LONGEST_JOB_ID, "x"), f"a{scene.pool}.".ljust(LONGEST_JOB_ID, "_"),
    }  # fmt: skip
    for each in ids:
        assert JOB_ID.fullmatch(each)
        await scene.ledger.enqueue(each)
        for path in ("", "/why", "/checkpoints"):
            asked = console.get(f"/jobs/{each}{path}")
            assert asked.status_code != 422, asked.text
        assert of(console, f"/jobs/{each}")["job"]["id"] == each
    found: list[str] = []
    after: dict[str, str | None] = {}
    for _ in ids:
        page = of(console, "/jobs", limit=1, pool=scene.pool, **after)
        found += [job["id"] for job in page["jobs"]]
        after = {"after": page["next"]}
    assert after == {"after": None}
    assert sorted(found) == sorted(ids)


@pytest.mark.parametrize(
    "path", ["/jobs/{}", "/jobs/{}/why", "/jobs/{}/checkpoints", "/jobs?limit=1&after={}",
             "/nodes?after={}", "/purchases/{}", "/purchases?after={}", "/blocks/{}"],
)  # fmt: skip
@hypothesis_settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(job_id="_")
@example(job_id="x" * LONGEST_JOB_ID)
@given(job_id=st.from_regex(JOB_ID, fullmatch=True))
def test_no_id_that_a_job_may_have_is_nonsense(console: RunningConsole, path: str, job_id: str):
    assert console.http.get(path.format(job_id)).status_code in (200, 404)


async def test_jobs_by_pool_tenant_and_state(placed: Scene, console: RunningConsole):
    def ids(**query: object) -> set[str]:
        return {job["id"] for job in of(console, "/jobs", **query)["jobs"]}

    assert ids(state="QUEUED", pool=placed.pool) == {placed.wide}
    assert ids(tenant="lab", pool=placed.pool) == {placed.train}
    assert len(ids(pool=placed.pool)) == 4
    assert ids(pool="another") == set()


async def test_a_job_of_long_ago_shows_when_it_is_asked_for(
    placed: Scene, console: RunningConsole
):
    await placed.ledger.finish(placed.train)
    await placed.ledger.rows(
        "UPDATE jobs SET ended_at = now() - interval '2 hours' WHERE id = :id", id=placed.train
    )
    found = of(console, "/jobs", pool=placed.pool)["jobs"]
    assert placed.train not in {job["id"] for job in found}
    found = of(console, "/jobs", pool=placed.pool, ended="true")["jobs"]
    assert placed.train in {job["id"] for job in found}
    [job] = of(console, "/jobs", pool=placed.pool, state="SUCCEEDED")["jobs"]
    assert job["id"] == placed.train


async def test_what_stands_by_is_told_from_what_runs(scene: Scene, console: RunningConsole):
    ledger = scene.ledger
    for node in (scene.node_a, scene.node_b, scene.node_c):
        await ledger.register(node, gpus=2)
    await ledger.rows(
        "UPDATE nodes SET labels = CAST(:labels AS jsonb) WHERE pool = :pool",
        labels=json.dumps(FABRIC), pool=scene.pool,
    )  # fmt: skip
    gang = {"group_gpus": 4, "spares_per_group": 2}
    async with ledger.listening(scene.train):
        await ledger.enqueue(scene.train, gpus=4, gang=gang)
        await ledger.cycle(f"one-{scene.pool}")
    [job] = of(console, "/jobs", pool=scene.pool)["jobs"]
    assert len(job["nodes"]) == 2
    [spare] = job["spares"]
    standing_by = {
        node["id"]: {gpu["spare"] for gpu in node["gpus"]}
        for node in of(console, "/nodes", pool=scene.pool)["nodes"]
    }
    assert standing_by == {**{node: {False} for node in job["nodes"]}, spare: {True}}
    [attempt] = of(console, f"/jobs/{scene.train}")["attempts"]
    assert [share["spare"] for share in attempt["shares"]] == [False, False, True]
    [domains] = of(console, "/topology", pool=scene.pool)["pools"]
    assert domains["domains"][0]["domain"] == "eu/c1/a"


async def test_a_database_that_is_away_is_said_and_comes_back(stack: Stack, database_url: str):
    with (
        temporary_folder() as folder,
        running_console(folder, database_url=database_url) as console,
    ):
        assert of(console, "/nodes") == {"nodes": [], "next": None}
        with database_away(stack, database_url):
            for path in ("/nodes", "/topology", "/pools", "/cycles", "/queue", "/queue/history",
                         "/queue/estimates", "/jobs", "/jobs/train-1", "/dags",
                         "/dags/nightly"):  # fmt: skip
                # An answer of a moment ago may still be given.
                await eventually(lambda p=path: not console.get(p).is_success)
                refused = console.get(path)
                assert refused.status_code == 503, path
                assert refused.json()["error"]["type"] == "unavailable"
                assert int(refused.headers["Retry-After"]) >= 1
        assert await eventually(lambda: console.get("/nodes").is_success)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/nodes?limit=0", "limit"),
        ("/nodes?pool=Not+a+name", "pool"),
        ("/queue?pool=Not+a+name", "pool"),
        ("/queue/estimates?hours=0", "hours"),
        ("/jobs?state=BROKEN", "state"),
        ("/jobs?tenant=%00", "tenant"),
        ("/jobs?after=%20", "after"),
        ("/dags?after=%20", "after"),
        ("/jobs?label=a%7Cb", "label"),
        ("/jobs?label=a%3Db&label=a%3Dc", "label"),
        ("/jobs?name=A*", "name"),
        ("/jobs/%20", "job_id"),
        ("/jobs/-x", "job_id"),
        (f"/jobs/{'x' * (LONGEST_JOB_ID + 1)}", "job_id"),
    ],
)
def test_what_makes_no_sense_is_refused(console: RunningConsole, path: str, field: str):
    refused = console.http.get(path)
    assert refused.status_code == 422
    assert refused.json()["error"]["field"] == field


@pytest.mark.parametrize("path", ["/jobs/none", "/jobs/none/why", "/jobs/none/checkpoints"])
def test_a_job_that_is_not_there_is_not_found(console: RunningConsole, path: str):
    refused = console.get(path)
    assert refused.status_code == 404
    assert "longshore jobs --all" in refused.json()["error"]["message"]


def test_nothing_here_can_be_changed(console: RunningConsole):
    for path in ("/nodes", "/jobs", "/jobs/train-1", "/topology", "/pools", "/cycles", "/queue"):
        assert console.http.post(path, json={}).status_code == 405
