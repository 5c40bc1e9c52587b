"""The schedules of the console: what the REST API tells, and that nothing is obeyed."""

import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from longshore.client.api import Longshore
from longshore.console.schedules_view import head_html, list_html, next_html, runs_html
from longshore.models.job import JobSpec
from longshore.models.schedule import CATCH_UP, ScheduleRun, ScheduleTimes, ScheduleView
from longshore.models.settings import Settings
from longshore.workers.stack import Stack
from tests.support.console import RunningConsole, running_console
from tests.support.local_stack import temporary_folder
from tests.support.waiting import eventually

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
DAILY = ScheduleTimes(cron=("0 2 * * *",), timezone="Europe/Berlin")


def a_schedule(**fields: Any) -> ScheduleView:
    at = NOW - timedelta(hours=11)
    run = ScheduleRun(
        at=at, id="nightly-20261124t010000z", state="FAILED", ended=True, reason="exit code 3",
        started_at=at, ended_at=at + timedelta(minutes=5),
    )  # fmt: skip
    basics: dict[str, Any] = {
        "name": "nightly", "kind": "job", "what": "train", "tenant": "lab", "times": DAILY,
        "overlap": "skip", "catch_up": CATCH_UP, "paused": False, "owner": "ann",
        "created_at": NOW - timedelta(days=2), "next": (NOW + timedelta(hours=13),),
        "runs": (run,), "started": 2, "skipped": 1,
    }  # fmt: skip
    return ScheduleView.model_validate({**basics, **fields})


def words(html: str) -> str:
    return re.sub(r"<[^>]*>", " ", html)


def test_the_list_has_the_next_and_the_last_run():
    html = list_html([a_schedule()], NOW)
    assert '<a class="id" href="/schedules/nightly">nightly</a>' in html
    assert '<a class="id" href="/jobs/nightly-20261124t010000z">11h ago</a>' in html
    for part in ("job train", "0 2 * * * Europe/Berlin", "in 13h", "failed"):
        assert part in words(html)
    paused = words(list_html([a_schedule(paused=True, runs=(), note="a repair")], NOW))
    assert "in 13h" not in paused
    assert "a repair" in paused


def test_a_page_has_the_times_in_the_zone_of_the_schedule():
    assert "2 started, 1 left out for an overlap" in head_html(a_schedule())
    assert "2026-11-25 02:00:00 CET" in next_html(a_schedule(), NOW)
    runs = runs_html(a_schedule(kind="dag"), NOW)
    assert 'href="/dags/nightly-20261124t010000z"' in runs
    assert "5m" in words(runs)


def test_what_others_wrote_is_shown_and_not_obeyed():
    bad = "<script>alert(1)</script>"
    run = a_schedule().runs[0].model_copy(update={"reason": bad, "id": bad})
    schedule = a_schedule(owner=bad, note=bad, trouble=bad, what=bad, runs=(run,))
    for html in (
        list_html([schedule], NOW), head_html(schedule), runs_html(schedule, NOW),
        next_html(schedule, NOW),
    ):  # fmt: skip
        assert "<script>" not in html


@pytest.fixture
def here(stack: Stack, settings: Settings) -> Iterator[RunningConsole]:
    """Starts a console that knows this module's database and Temporal; 3 s."""
    with pytest.MonkeyPatch.context() as patch, temporary_folder() as folder:
        patch.setenv("TEMPORAL_ADDRESS", stack.temporal.address)
        with running_console(folder, database_url=settings.resolve_database_url()) as console:
            yield console


def test_a_console_that_reaches_no_temporal_says_so(console: RunningConsole):
    refused = console.get("/schedules")
    assert refused.status_code == 503
    assert refused.json()["error"]["type"] == "unavailable"


@pytest.fixture
async def page(browser: Browser, here: RunningConsole) -> AsyncIterator[Page]:
    """Opens a page that is signed in, dark and as wide as a phone; 0.5 s."""
    context = await browser.new_context(
        viewport={"width": 390, "height": 844}, is_mobile=True, color_scheme="dark"
    )
    page = await context.new_page()
    await page.goto(f"{here.url}/schedules?token={here.token}")
    await page.wait_for_url(f"{here.url}/schedules")
    await expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    yield page
    await context.close()


@pytest.mark.exhaustive
async def test_the_api_tells_what_the_command_does(
    here: RunningConsole, longshore: Longshore, pool: str
):
    assert here.get(f"/schedules/{pool}").status_code == 404
    await longshore.create_schedule(pool, JobSpec(name="train", command="true"), DAILY)

    async def is_there() -> bool:
        found = here.get("/schedules").json()["schedules"]
        return pool in [each["name"] for each in found]

    await eventually(is_there)
    one = ScheduleView.model_validate(here.get(f"/schedules/{pool}").json())
    assert one == await longshore.schedule(pool)
    assert len(one.next) == 10
    await longshore.delete_schedule(pool)


async def test_the_pages_lead_from_the_list_to_a_schedule_on_a_phone(
    here: RunningConsole, longshore: Longshore, pool: str, page: Page
):
    await longshore.create_schedule(pool, JobSpec(name="train", command="true"), DAILY)
    await page.get_by_role("link", name=pool).click()
    await expect(page).to_have_url(f"{here.url}/schedules/{pool}")
    await expect(page.get_by_role("heading", name=pool)).to_be_visible()
    times = page.get_by_role("table", name="Next times").locator("tbody tr")
    await expect(times).to_have_count(10)
    await expect(page.get_by_text("No run yet")).to_be_visible()
    await page.goto(f"{here.url}/schedules/none-there")
    await expect(page.get_by_text("There is no such schedule")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await longshore.delete_schedule(pool)
