"""The services of the console: what the REST API tells, what the pages show, and that nothing is
obeyed."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from longshore import console
from longshore.activities.database import Database
from longshore.activities.serving.service_rows import record_service, remove_service
from longshore.activities.serving.services import ServiceActivities
from longshore.client.api import Longshore
from longshore.client.service_view import leased, new_reasons, services_table
from longshore.console.services_view import (
    engines_html,
    head_html,
    list_html,
    problems_html,
    revisions_html,
)
from longshore.models.model_registry import ModelView
from longshore.models.runtimes import BUILT_IN
from longshore.models.service import (
    LeftGPUs,
    ReplicaView,
    RevisionView,
    ServiceSpec,
    ServiceState,
    ServiceView,
)
from longshore.models.service_messages import AdvanceService
from longshore.models.serving import EngineSpec, EngineStage, ModelSpec
from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.console import RunningConsole, running_console
from tests.support.local_stack import temporary_folder

_THEME = Path(console.__file__).with_name("theme.css").read_text(encoding="utf-8")
NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
MODEL = ModelSpec(name="tiny", source="/m/tiny.gguf", context=8, concurrency=1)
ENGINE = EngineSpec(model=MODEL, runtime=BUILT_IN["llama.cpp"], memory=1000)


def an_engine(**fields: Any) -> ReplicaView:
    usual = {
        "job_id": "chat-r1-aaaaaaaaaa", "service": "chat", "model": "tiny", "revision": 1,
        "stage": EngineStage.READY, "node_id": "a", "gpu_indices": (0,),
        "endpoint": "http://127.0.0.1:1/v1", "leased": 1000, "used": 400,
        "created_at": NOW - timedelta(minutes=5), "ready_at": NOW - timedelta(minutes=4),
    }  # fmt: skip
    return ReplicaView.model_validate(usual | fields)


def a_service(*replicas: ReplicaView, **fields: Any) -> ServiceView:
    usual = {
        "name": "chat", "state": ServiceState.RUNNING, "revision": 1, "ready": len(replicas),
        "spec": ServiceSpec(name="chat", model="tiny"), "replicas": replicas, "updated_at": NOW,
    }  # fmt: skip
    return ServiceView.model_validate(usual | fields)


def test_an_engine_shows_what_it_holds_and_takes():
    html = engines_html([an_engine()], NOW)
    assert 'title="holds 1GB, takes 400MB"' in html
    assert '<span class="state well">ready</span>' in html
    assert '<a class="id" href="/services/chat">chat</a>' in html
    assert "4m ago" in html
    over = engines_html([an_engine(used=1200)], NOW)
    assert '<span class="part bad"' in over
    assert "1.2GB (over)" in over
    assert "takes 1.2GB of GPU memory and holds 1GB" in problems_html([an_engine(used=1200)], NOW)
    wide = engines_html([an_engine(gpu_indices=(0, 2), used=1200)], NOW)
    assert 'title="holds 2 x 1GB, takes 1.2GB"' in wide
    assert '<b style="width:100.00%"></b>' in wide
    assert '<span class="part used" style="width:60.00%"></span>' in wide


def test_one_that_waits_or_failed_says_why():
    waits = an_engine(
        stage=None, node_id=None, gpu_indices=(), endpoint="", used=0, ready_at=None, failures=2,
        failed=True, message="out of memory",
    )  # fmt: skip
    assert "waits (2 failed)" in engines_html([waits], NOW)
    assert "out of memory" in problems_html([waits], NOW)
    wrote = waits.model_copy(update={"message": "it ended\none\ntwo"})
    assert problems_html([wrote], NOW).count('<p class="reason lines">') == 1, "each line is one"
    assert "bar-of" not in engines_html([waits], NOW), "it holds nothing"
    left = {"for_job": "train", "at": NOW - timedelta(minutes=3), "why": "idle"}
    html = engines_html([waits.model_copy(update={"left": LeftGPUs.model_validate(left)})], NOW)
    assert "3m ago" in html
    assert leased(waits) == "–"


def test_an_estimate_stands_beside_what_is_held_where_that_was_corrected():
    as_reckoned = an_engine(leased=1000, estimated=1000)
    assert leased(as_reckoned) == "1GB"
    corrected = an_engine(leased=1500, estimated=1000)
    assert leased(corrected) == "1.5GB (estimated 1GB)"
    assert "1.5GB (estimated 1GB)" in engines_html([corrected], NOW)


def test_who_waits_for_a_service_hears_each_reason_once():
    told = set[str]()
    one, two = (
        an_engine(job_id=job, stage=None, endpoint="", message="no node has room until 12:30")
        for job in ("a", "b")
    )
    assert new_reasons([one, two, an_engine(message="it broke")], told) == [
        "a: no node has room until 12:30"
    ]
    later = one.model_copy(update={"message": "no node has room until 12:45"})
    failed = two.model_copy(update={"message": "out of memory"})
    assert new_reasons([later, failed], told) == ["b: out of memory"]


def test_one_that_left_for_a_job_says_what_that_costs():
    why = (
        "tiny (chat-r1-aaaaaaaaaa), idle for 12m: $0.40, a reload of $0.10 x 4.00 times that it "
        "is asked in an hour"
    )
    left = {"for_job": "train<b>", "at": NOW - timedelta(minutes=3), "why": why}
    html = problems_html([an_engine(left=left)], NOW)
    assert f"chat-r1-aaaaaaaaaa left its GPU for train&lt;b&gt; 3m ago: {why}" in html
    assert problems_html([an_engine(left=left)], NOW + timedelta(hours=1)) == ""
    assert "ready, idle" in engines_html([an_engine(idle_since=NOW)], NOW)


def test_what_others_wrote_is_shown_and_not_obeyed():
    bad = "<script>alert(1)</script>"
    engine = an_engine(job_id=bad, node_id=bad, endpoint=bad, message=bad, service=bad, stage=None)
    service = a_service(engine, name=bad, message=bad)
    revision = RevisionView(number=1, model=bad, model_revision=1, created_at=NOW, undone=bad)
    for html in (
        list_html([service]), head_html(service), engines_html([engine], NOW),
        problems_html([engine.model_copy(update={"endpoint": ""})], NOW),
        revisions_html([revision], NOW),
    ):  # fmt: skip
        assert "<script>" not in html
        assert "alert(1)" in html


def test_one_that_cannot_be_read_says_so():
    service = a_service(an_engine(), trouble="what is stored of it: newer: no such field")
    html = list_html([service, a_service(name="other")])
    assert "what is stored of it: newer: no such field" in html
    assert html.count(">default<") == 2  # pool and tenant of the other
    table = services_table([service])
    assert list(table.columns[-1].cells) == ["cannot be read"]


@pytest.fixture
def here(settings: Settings) -> Iterator[RunningConsole]:
    """Starts a console that knows this module's database; 3 s."""
    with (
        temporary_folder() as folder,
        running_console(folder, database_url=settings.resolve_database_url()) as console,
    ):
        yield console


@pytest.fixture
def here_with_temporal(settings: Settings, stack: Stack) -> Iterator[RunningConsole]:
    """The same with this module's Temporal; 3 s."""
    with pytest.MonkeyPatch.context() as patch, temporary_folder() as folder:
        patch.setenv("TEMPORAL_ADDRESS", stack.temporal.address)
        url = settings.resolve_database_url()
        with running_console(folder, database_url=url) as console:
            yield console


@pytest.fixture
async def service(control: Database, longshore: Longshore, pool: str) -> AsyncIterator[str]:
    """A service whose replica waits, since its pool has no node; 0.1 s."""
    name = f"s-{pool}"
    async with control.transaction() as connection:
        spec = ServiceSpec(name=name, model="tiny", pool=pool)
        await record_service(connection, spec, ENGINE, 1)
    steps = ServiceActivities(control, longshore.temporal)
    await steps.advance_service(AdvanceService(service=name))
    yield name
    async with control.transaction() as connection:
        await remove_service(connection, name)
    await steps.advance_service(AdvanceService(service=name))


async def test_the_api_tells_what_the_command_does(
    here: RunningConsole, longshore: Longshore, service: str
):
    found = ServiceView.model_validate(here.get(f"/services/{service}").json())
    assert found == await longshore.service(service)
    listed = here.get("/services").json()["services"]
    assert service in [each["name"] for each in listed]
    assert here.get("/services/none-there").status_code == 404
    slots = [ReplicaView.model_validate(each) for each in here.get("/slots").json()["slots"]]
    (slot,) = [each for each in slots if each.service == service]
    assert slot in await longshore.slots()
    assert (slot.leased, slot.estimated) == (1000, 1000)


@pytest.mark.exhaustive
async def test_an_engine_is_evicted_over_the_api_as_by_the_command(
    here_with_temporal: RunningConsole, longshore: Longshore, service: str
):
    here = here_with_temporal
    (slot,) = [each for each in await longshore.slots() if each.service == service]
    path = f"/slots/{slot.job_id}/evict"
    assert here.stranger.post(path).status_code == 401
    answer = here.http.post(path)
    assert answer.status_code == 200, answer.text
    assert ReplicaView.model_validate(answer.json()).job_id == slot.job_id
    (after,) = [each for each in await longshore.slots() if each.job_id == slot.job_id]
    assert after.stopping
    again = here.http.post(path)
    assert (again.status_code, again.json()["error"]["type"]) == (409, "refused")
    assert "is being stopped already" in again.text
    assert here.http.post("/slots/none-there-1/evict").status_code == 404


@pytest.mark.exhaustive
def test_without_temporal_no_engine_is_evicted(here: RunningConsole):
    answer = here.http.post("/slots/none-there-1/evict")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]


@pytest.mark.exhaustive
async def test_the_api_tells_of_models_and_runtimes(
    here: RunningConsole, longshore: Longshore, pool: str
):
    name = f"m-{pool}"
    added = MODEL.model_copy(update={"name": name, "memory": 1.0})
    await longshore.add_models([added])
    model = ModelView.model_validate(here.get(f"/models/{name}").json())
    assert model == await longshore.model(name)
    assert name in [each["spec"]["name"] for each in here.get("/models").json()["models"]]
    runtimes = here.get("/runtimes").json()["runtimes"]
    assert {"llama.cpp", "vllm", "ollama"} <= {each["runtime"]["name"] for each in runtimes}
    assert here.get("/runtimes/vllm").json()["built_in"] is True
    for path in ("/models/none-there", "/runtimes/none-there"):
        answer = here.get(path)
        assert answer.status_code == 404
        assert "none-there" in answer.text
    await longshore.remove_model(name)


async def test_an_endpoint_is_in_one_line_on_a_phone(browser: Browser):
    engines = engines_html([an_engine(endpoint="http://127.0.0.1:43169/v1")], NOW)
    context = await browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True)
    page: Page = await context.new_page()
    await page.set_content(
        f'<meta name="viewport" content="width=device-width"><style>{_THEME}</style>'
        f'<main class="main"><section class="card budgets stacks">{engines}</section></main>'
    )
    endpoint = page.get_by_text("http://127.0.0.1:43169/v1")
    assert await endpoint.evaluate("shown => shown.getClientRects().length") == 1
    await context.close()


async def test_the_pages_lead_from_the_list_to_a_service_on_a_phone(
    here: RunningConsole, service: str, browser: Browser
):
    context = await browser.new_context(
        viewport={"width": 390, "height": 844}, is_mobile=True, color_scheme="dark"
    )
    page: Page = await context.new_page()
    await page.goto(f"{here.url}/services?token={here.token}")
    await page.wait_for_url(f"{here.url}/services")
    engines = page.get_by_role("table", name="Engines").locator("tbody tr")
    await expect(engines.filter(has_text=service).first).to_be_visible()
    await page.get_by_role("table", name="Services").get_by_role("link", name=service).click()
    await expect(page).to_have_url(f"{here.url}/services/{service}")
    await expect(page.get_by_role("heading", name=service)).to_be_visible()
    await expect(page.get_by_role("table", name="Revisions").locator("tbody tr")).to_have_count(1)
    await page.goto(f"{here.url}/services/none-there")
    await expect(page.get_by_text("There is no such service")).to_be_visible()
    await expect(page.get_by_text("Simulated GPUs")).not_to_be_visible()  # no replica has any
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await context.close()
