"""The pages /nodes and /jobs in a real browser, with a control worker and nodes at work."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from playwright.async_api import Browser, Page, expect
from temporalio.client import Client, WorkflowFailureError

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.base import LONGEST_JOB_ID
from longshore.models.dag import DagSpec
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, JOB_WORKFLOW, job_workflow_id
from longshore.models.retry import FailureClass
from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.console import RunningConsole, running_console
from tests.support.control import a_spec, new_pool, reaches
from tests.support.database_away import database_away
from tests.support.local_stack import temporary_folder
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

NARROW = {"width": 700, "height": 900}
PHONE = {"width": 390, "height": 844}
_CUT_OFF = "[...document.querySelectorAll('.body')].filter(b => b.scrollWidth > b.clientWidth)"
FABRIC = {"region": "eu", "cluster": "c1", "fabric.domain": "rack-1"}


@dataclass(frozen=True)
class Fleet:
    """A pool with four nodes, and the jobs in it."""

    pool: str
    longshore: Longshore
    nodes: dict[str, ScriptedNode]
    gang: str
    """Runs on two nodes, a third stands by."""
    part: str
    wide: str
    """Waits: no node could ever hold it."""


@pytest.fixture(scope="module")
def here(stack: Stack, settings: Settings) -> Iterator[RunningConsole]:
    """Starts a console that knows this module's database and Temporal; 3 s."""
    with pytest.MonkeyPatch.context() as patch, temporary_folder() as folder:
        patch.setenv("TEMPORAL_ADDRESS", stack.temporal.address)
        patch.setenv("LONGSHORE_TEMPORAL_UI", "https://temporal.example.com/")
        with running_console(folder, database_url=settings.resolve_database_url()) as console:
            yield console


@pytest.fixture
async def fleet(temporal: Client, settings: Settings, control: Database) -> AsyncIterator[Fleet]:
    """Starts four scripted nodes with jobs; 1 s."""
    async with _fleet(temporal, settings) as fleet:
        yield fleet


@pytest.fixture(scope="module")
async def standing(
    temporal: Client, settings: Settings, control: Database
) -> AsyncIterator[Fleet]:
    """Starts such a fleet once, for tests that change nothing in it; 1 s."""
    async with _fleet(temporal, settings) as fleet:
        yield fleet


@asynccontextmanager
async def _fleet(temporal: Client, settings: Settings) -> AsyncIterator[Fleet]:
    pool, token = new_pool(), settings.resolve_agent_token()
    labels = {"a": FABRIC, "b": FABRIC, "c": FABRIC, "lab": {}}
    nodes = {
        name: ScriptedNode(temporal, pool, token, node_id=f"{name}-of-{pool}", labels=of)
        for name, of in labels.items()
    }
    longshore = Longshore(temporal, settings)
    async with AsyncExitStack() as stack:
        for node in nodes.values():
            await stack.enter_async_context(node.serving())
            await node.register()
        wish = {"group_gpus": 16, "spares_per_group": 8}
        gang = await longshore.submit(a_spec(pool, name="pretrain", gpus=16, gang=wish))
        await reaches(longshore, gang.job_id, JobState.RUNNING)
        share = {
            "milli": 400, "vram_per_gpu": "20GB", "env": {"KEY": "not-for-eyes"},
            "labels": {"sweep": pool}, "max_duration": "9h",
        }  # fmt: skip
        part = await longshore.submit(a_spec(pool, name="notebook", **share))
        await nodes["lab"].started(part.job_id)
        wide = await longshore.submit(a_spec(pool, name="wide", gpus=9))
        await reaches(longshore, wide.job_id, JobState.QUEUED)

        async def is_told_why() -> bool:
            return (await longshore.explain(wide.job_id)).last_decision is not None

        await eventually(is_told_why)  # pages would show another reason until then
        yield Fleet(pool, longshore, nodes, gang.job_id, part.job_id, wide.job_id)
    await longshore.close()


@pytest.fixture
async def page(browser: Browser, here: RunningConsole) -> AsyncIterator[Page]:
    """Opens a page that is signed in; nothing in it may fail or come from elsewhere; 0.5 s."""
    context = await browser.new_context()
    page = await context.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((here.url, "data:", here.url.replace("http", "ws")))
            else trouble.append(request.url)
        ),
    )
    await page.goto(f"{here.url}/nodes?token={here.token}")
    await page.wait_for_url(f"{here.url}/nodes")
    yield page
    await context.close()
    assert not trouble


async def test_who_holds_which_gpu(page: Page, here: RunningConsole, standing: Fleet):
    await page.goto(f"{here.url}/nodes?pool={standing.pool}")
    table = page.get_by_role("table", name=f"Nodes of pool {standing.pool}, by domain")
    await expect(table).to_be_visible()
    of_rack = table.get_by_role("row", name="Domain eu/c1/rack-1")
    await expect(of_rack).to_contain_text("3 nodes, 24 used and 0 free of 24 GPUs")
    of_none = table.get_by_role("row", name="No domain")
    await expect(of_none).to_contain_text("1 node, 1 used and 7 free of 8 GPUs")
    await expect(table.get_by_role("img", name="GPUs 0-7 held by pretrain")).to_have_count(2)
    spares = table.get_by_role("img", name="GPUs 0-7 spare of pretrain")
    await expect(spares).to_have_count(1)
    lab = table.get_by_role("row", name=re.compile(standing.nodes["lab"].id))
    shared = "GPU 0 shared, 400 of 1000 in use: notebook 400/1000, GPUs 1-7 free"
    await expect(lab.get_by_role("img", name=shared)).to_be_visible()
    await expect(lab.get_by_role("rowheader")).to_have_text(re.compile("own · scripted"))
    await expect(lab).to_contain_text("simulated")
    await expect(page.locator(".badge")).to_have_text("Simulated GPUs")
    sums = page.get_by_label("Sums")
    for said in ("4 4 ready", "Used25 78 %", "Free7", "Spares8", "Jobs waiting1"):
        await expect(sums).to_contain_text(said)
    await lab.get_by_role("link", name="notebook").click()
    await expect(page).to_have_url(f"{here.url}/jobs/{standing.part}")
    await expect(page.get_by_role("heading", name=standing.part)).to_be_visible()


@pytest.mark.exhaustive
async def test_the_page_of_nodes_follows_what_happens(
    page: Page, here: RunningConsole, fleet: Fleet
):
    await page.goto(f"{here.url}/nodes?pool={fleet.pool}&domain=-")
    await expect(page.get_by_text("Only nodes of no domain.")).to_be_visible()
    lab = page.get_by_role("row", name=re.compile(fleet.nodes["lab"].id))
    await expect(lab).to_contain_text("ready")
    await fleet.longshore.cordon(fleet.nodes["lab"].id, "a fan is loud")
    await expect(lab).to_contain_text("cordoned")
    await expect(lab).to_contain_text("a fan is loud")
    idle = "GPUs 1-7 idle, on a node that takes no work"
    await expect(lab.get_by_role("img", name=re.compile(idle))).to_be_visible()
    await fleet.nodes["lab"].end(fleet.part)
    await expect(lab).to_contain_text("cordoned")
    await expect(lab.get_by_role("link", name="notebook")).to_have_count(0)
    await page.get_by_role("link", name="Show all domains").click()
    await expect(page.get_by_text("Domain eu/c1/rack-1")).to_be_visible()


async def test_jobs_with_why_each_waits(page: Page, here: RunningConsole, standing: Fleet):
    await page.goto(f"{here.url}/jobs?pool={standing.pool}")
    table = page.get_by_role("table", name="Jobs, the newest first")
    await expect(table.locator("tbody tr")).to_have_count(3)
    row = table.get_by_role("row", name=re.compile(standing.wide))
    await expect(row).to_contain_text("queued")
    await expect(row).to_contain_text("so far")
    said = here.get(f"/jobs/{standing.wide}/why").json()["job"]["reason"]
    await expect(row).to_contain_text(said)
    gang = table.get_by_role("row", name=re.compile(standing.gang))
    await expect(gang).to_contain_text("16 GPUs")
    await expect(gang).to_contain_text("stands by")
    await page.get_by_role("button", name="Waiting").press("Enter")
    await expect(table.locator("tbody tr")).to_have_count(1)
    await expect(page).to_have_url(re.compile(f"pool={standing.pool}&state=waiting"))
    await page.reload()
    await expect(table.locator("tbody tr")).to_have_count(1)
    await table.get_by_role("link", name=standing.wide).click()
    nodes = page.get_by_role("table", name="Nodes with their answer")
    await expect(nodes.locator("tbody tr")).to_have_count(4)
    await expect(nodes).to_contain_text("not-enough-gpus")
    await expect(page.get_by_text("What could help")).to_be_visible()


async def test_one_job_with_its_attempts(page: Page, here: RunningConsole, fleet: Fleet):
    await page.goto(f"{here.url}/jobs/{fleet.part}")
    attempts = page.get_by_role("table", name="Attempts, the newest first")
    await expect(attempts).to_contain_text("runs")
    await expect(attempts).to_contain_text(fleet.nodes["lab"].id)
    scores = page.get_by_role("table", name="Nodes that could take it, best first")
    await expect(scores.locator("[aria-current=true]")).to_contain_text(fleet.nodes["lab"].id)
    await expect(page.get_by_text("with the variables KEY")).to_be_visible()
    await expect(page.get_by_text("ends at the latest about")).to_be_visible()
    assert "not-for-eyes" not in await page.content()
    link = page.get_by_role("link", name="Its workflow in the Temporal Web UI")
    where = f"https://temporal.example.com/namespaces/default/workflows/job-{fleet.part}"
    await expect(link).to_have_attribute("href", where)
    await expect(page.get_by_role("status")).to_have_count(0)
    await fleet.nodes["lab"].end(fleet.part, report=USER_ERROR)
    await expect(page.get_by_role("heading", level=1)).to_contain_text("failed")
    await expect(attempts).to_contain_text("user, exit code 3: exit code 3")


@pytest.mark.exhaustive
async def test_jobs_by_their_label(page: Page, here: RunningConsole, standing: Fleet):
    await page.goto(f"{here.url}/jobs/{standing.part}")
    await page.get_by_role("link", name=f"sweep={standing.pool}").click()
    await expect(page).to_have_url(f"{here.url}/jobs?state=all&label=sweep%3D{standing.pool}")
    rows = page.get_by_role("table", name="Jobs, the newest first").locator("tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(standing.part)
    await expect(page.get_by_text(f"with sweep={standing.pool}")).to_be_visible()
    await page.goto(f"{here.url}/jobs?label=a%7Cb")
    await expect(page.get_by_text("No label is like that")).to_be_visible()


@pytest.mark.exhaustive
async def test_jobs_of_every_kind_of_id(page: Page, here: RunningConsole, fleet: Fleet):
    longest = f"_{fleet.pool}-".ljust(LONGEST_JOB_ID, "x")
    spec = {"name": "odd", "command": "true", "pool": fleet.pool, "gpus": 9}
    for job_id in (f"_{fleet.pool}", longest):
        await fleet.longshore.temporal.start_workflow(
            JOB_WORKFLOW, {"spec": spec}, id=job_workflow_id(job_id),
            task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip
        await reaches(fleet.longshore, job_id, JobState.QUEUED)
        await page.goto(f"{here.url}/jobs?pool={fleet.pool}")
        await page.get_by_role("link", name=job_id, exact=True).click()
        await expect(page).to_have_url(f"{here.url}/jobs/{job_id}")
        await expect(page.get_by_role("heading", name=job_id)).to_be_visible()
        # Everything else is older than the last one of a page.
        await page.goto(f"{here.url}/jobs?pool={fleet.pool}&after={job_id}")
        await expect(page.get_by_role("link", name=fleet.wide)).to_be_visible()
        await expect(page.get_by_role("link", name=job_id, exact=True)).to_have_count(0)


@pytest.mark.exhaustive
async def test_a_job_that_is_not_there(page: Page, here: RunningConsole):
    await page.goto(f"{here.url}/jobs/none-of-this")
    await expect(page.get_by_text("There is no such job")).to_be_visible()


@pytest.mark.exhaustive
async def test_a_job_that_its_workflow_has_refused(
    page: Page, here: RunningConsole, standing: Fleet, temporal: Client
):
    """Only Temporal knows of it."""
    job_id = f"refused-of-{standing.pool}"
    flow = await temporal.start_workflow(
        JOB_WORKFLOW, {"spec": {"name": "x", "command": "true", "gpus": 0}},
        id=job_workflow_id(job_id), task_queue=CONTROL_TASK_QUEUE,
    )  # fmt: skip
    with pytest.raises(WorkflowFailureError):
        await flow.result()
    said = (
        f"job {job_id} was refused, and never came into a queue: "
        "spec.gpus: must be at least 1, got 0"
    )
    for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/why", f"/jobs/{job_id}/checkpoints"):
        answer = here.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"] == {"type": "not_found", "message": said}
    await page.goto(f"{here.url}/jobs/{job_id}")
    await expect(page.get_by_text("The database has no such job")).to_be_visible()
    await expect(page.get_by_text(said)).to_be_visible()


async def test_a_dag_is_drawn_and_follows_what_happens(
    page: Page, here: RunningConsole, fleet: Fleet
):
    jobs = {
        "prepare": {"command": "true"},
        "train": {"command": "true", "after": "prepare"},
        "tell": {"command": "true", "after": {"train": "failure"}},
    }
    spec = DagSpec.model_validate({"name": "nightly", "pool": fleet.pool, "jobs": jobs})
    dag_id = (await fleet.longshore.submit_dag(spec)).dag_id
    lab = fleet.nodes["lab"]
    await lab.started(f"{dag_id}.prepare")
    await page.goto(f"{here.url}/dags")
    await page.get_by_role("link", name=dag_id).click()
    await expect(page).to_have_url(f"{here.url}/dags/{dag_id}")
    graph = page.locator("svg.dag")
    await expect(graph).to_have_attribute("aria-label", re.compile("3 jobs from left to right"))
    await expect(graph.locator("g.submitted")).to_contain_text("prepare")
    await expect(graph.locator("g.waiting")).to_have_count(2)
    table = page.get_by_role("table", name="Jobs")
    train = table.get_by_role("row", name=re.compile("^train"))
    await expect(train).to_contain_text("waits for the success of prepare")
    await lab.end(f"{dag_id}.prepare")
    await lab.end(f"{dag_id}.train")
    await expect(graph.locator("g.succeeded")).to_have_count(2)
    await expect(graph.locator("g.skipped")).to_contain_text("tell")
    await expect(page.get_by_role("heading", name=dag_id)).to_contain_text("succeeded")
    await expect(page.get_by_label(re.compile("^train: waited"))).to_be_visible()
    told = here.get(f"/dags/{dag_id}").json()
    assert [(each["name"], each["step"]) for each in told["steps"]] == [
        ("prepare", "SUCCEEDED"), ("train", "SUCCEEDED"), ("tell", "SKIPPED"),
    ]  # fmt: skip
    assert dag_id in [each["id"] for each in here.get("/dags").json()["dags"]]
    await table.get_by_role("link", name="prepare").click()
    await expect(page).to_have_url(f"{here.url}/jobs/{dag_id}.prepare")
    await page.goto(f"{here.url}/dags?state=succeeded&after={dag_id}")
    await expect(page.get_by_role("link", name=dag_id)).to_have_count(0)
    await page.get_by_role("link", name="Newest").click()
    await expect(page).to_have_url(f"{here.url}/dags?state=succeeded")
    await expect(page.get_by_role("link", name=dag_id)).to_be_visible()
    await page.goto(f"{here.url}/dags/none-there")
    await expect(page.get_by_text("There is no such DAG")).to_be_visible()


@pytest.mark.exhaustive
async def test_the_page_of_an_array_has_its_elements_and_those_of_a_phone_fade_at_the_edge(
    page: Page, here: RunningConsole, fleet: Fleet
):
    sent = await fleet.longshore.submit(a_spec(fleet.pool, name="sweep", array="0-9%1"))
    lab = fleet.nodes["lab"]
    await lab.batch_of(f"{sent.job_id}.s1")
    await lab.end_batch(f"{sent.job_id}.s1", failure=USER_ERROR.failure or FailureClass.USER)
    await page.goto(f"{here.url}/jobs/{sent.job_id}")
    await expect(page.locator(".elements")).to_have_attribute(
        "aria-label", re.compile("of 10 elements 1 failed")
    )
    groups = page.get_by_role("table", name="Elements that failed").locator("tbody tr")
    await expect(groups).to_have_count(1)
    rows = page.get_by_role("table", name="Elements by index")
    await expect(rows.get_by_role("row", name=re.compile("^0 failed"))).to_be_visible()
    await expect(page.get_by_text("of GPU time")).to_be_visible()
    await page.set_viewport_size(PHONE)  # pyright: ignore[reportArgumentType]
    behind = "getComputedStyle(document.querySelector('.bar nav')).getPropertyValue('--behind')"

    async def fades_over(width: str) -> None:
        async def is_so() -> bool:
            return await page.evaluate(behind) == width

        await eventually(is_so)  # with the next frame

    await fades_over("44px")  # the last pages are beyond the edge
    await page.evaluate("document.querySelector('.bar nav').scrollTo(9999, 0)")
    await fades_over("0px")
    await fleet.longshore.cancel(sent.job_id, "enough")
    await lab.end_batches(f"{sent.job_id}.s1")


async def test_cycles_by_pool_and_those_of_one(page: Page, here: RunningConsole, standing: Fleet):
    await page.goto(f"{here.url}/cycles")
    table = page.get_by_role("table", name="Cycles by pool")
    row = table.get_by_role("row", name=re.compile(standing.pool))
    await expect(row).to_contain_text("simulated")
    await expect(page.get_by_text("Simulated GPUs")).to_be_visible()
    await row.get_by_role("link", name=standing.pool).click()
    await expect(page).to_have_url(re.compile(f"/cycles\\?pool={standing.pool}$"))
    await expect(table.locator("tbody tr")).to_have_count(1)
    [known] = here.get("/cycles", pool=standing.pool, last=50).json()["pools"]
    assert known["waiting"] == 1
    assert known["placed"] == 2
    single = page.get_by_role("table", name="The last cycles").locator("tbody tr")

    async def has_all() -> bool:
        """There is another cycle now and then, as a job waits."""
        [known] = here.get("/cycles", pool=standing.pool, last=50).json()["pools"]
        return await single.count() == known["cycles"]

    await eventually(has_all)
    await page.goto(f"{here.url}/cycles?pool=nobody")
    await expect(page.get_by_text("There is no such pool")).to_be_visible()


@pytest.mark.exhaustive
async def test_who_waits_and_the_past_day(page: Page, here: RunningConsole, standing: Fleet):
    await page.goto(f"{here.url}/queue?pool={standing.pool}")
    waiting = page.get_by_role("table", name="Waiting jobs, in order").locator("tbody tr")
    await expect(waiting).to_have_count(1)
    await expect(waiting).to_contain_text("no known node could ever hold it")
    await expect(page.get_by_text("Simulated GPUs")).to_be_visible()
    past = page.get_by_role("img", name=re.compile("^The past day: 1 job left waiting.*2 running"))
    await expect(past.locator("svg path").first).to_be_attached()
    await expect(
        page.get_by_text("was told a start in the past day that has come")
    ).to_be_visible()
    await waiting.get_by_role("link", name=standing.wide).click()
    await expect(page).to_have_url(f"{here.url}/jobs/{standing.wide}")
    await page.get_by_role("link", name="Queue", exact=True).click()
    await expect(page.get_by_role("combobox", name="Pool")).not_to_have_value("")
    await page.goto(f"{here.url}/queue?pool=nobody")
    await expect(page.get_by_text("There is no such pool")).to_be_visible()
    await expect(page.get_by_role("heading", name="The past day")).to_be_hidden()
    await page.get_by_role("combobox", name="Pool").click()
    await page.get_by_role("option", name=standing.pool).click()
    await expect(page).to_have_url(f"{here.url}/queue?pool={standing.pool}")
    await expect(waiting).to_have_count(1)


@pytest.mark.exhaustive
async def test_narrow_windows_scroll_in_one_direction(
    page: Page, here: RunningConsole, standing: Fleet
):
    await page.set_viewport_size(NARROW)  # pyright: ignore[reportArgumentType]
    pages = [f"{page}?pool={standing.pool}" for page in ("nodes", "jobs", "queue", "cycles")]
    for path in (*pages, f"jobs/{standing.wide}", f"jobs/{standing.gang}"):
        await page.goto(f"{here.url}/{path}")
        await expect(page.locator("table tbody tr").first).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        assert await page.evaluate(f"{_CUT_OFF}.length") == 0, path


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("path", ["nodes?show=all", "queue?", "cycles?"])
async def test_rows_are_stacked_on_a_phone(
    page: Page, here: RunningConsole, standing: Fleet, path: str
):
    await page.set_viewport_size(PHONE)  # pyright: ignore[reportArgumentType]
    await page.goto(f"{here.url}/{path}&pool={standing.pool}")
    await expect(page.locator("table tbody tr").first).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert await page.evaluate(f"{_CUT_OFF}.length") == 0


@pytest.mark.exhaustive
async def test_pages_say_that_the_database_is_away_and_go_on(
    browser: Browser, stack: Stack, database_url: str
):
    with (
        temporary_folder() as folder,
        running_console(folder, database_url=database_url) as console,
    ):
        context = await browser.new_context(extra_http_headers=console.headers)
        nothing = {
            "nodes": "There are no nodes yet",
            "jobs": "No jobs now",
            "cycles": "No pool yet",
            "queue": "No pool yet",
        }
        pages = {path: await context.new_page() for path in nothing}
        for path, page in pages.items():
            await page.goto(f"{console.url}/{path}")
            await expect(page.get_by_text(nothing[path])).to_be_visible()
        with database_away(stack, database_url):
            for page in pages.values():
                away = page.get_by_text("The database does not answer")
                await expect(away).to_be_visible()
                await expect(page.locator(".live.old")).to_contain_text("no answer")
        for path, page in pages.items():
            await expect(page.get_by_text(nothing[path])).to_be_visible()
            await expect(page.locator("time").first).to_contain_text("updated")
        await context.close()
