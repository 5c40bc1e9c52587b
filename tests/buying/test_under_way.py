"""A purchase under way is named to whoever asks for its job: by commands, REST and pages."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from playwright.async_api import Browser, expect
from temporalio.client import Client

from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.explanation import Explanation
from longshore.models.job_status import JobState
from longshore.models.settings import Settings
from longshore.models.spending import PurchaseUnderWay
from tests.buying.buyer import Buyer
from tests.buying.test_pool_buys import may_buy
from tests.support.console import RunningConsole
from tests.support.control import a_spec, reaches
from tests.support.home import PROGRAM
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)
STARTS = 600
"""Seconds that a machine of the market takes."""


@dataclass(frozen=True)
class Scene:
    pool: str
    job: str
    """Waits for what was bought for it."""
    warnings: tuple[str, ...]
    """What its submission said."""
    purchase: PurchaseUnderWay
    longshore: Longshore


@pytest.fixture(scope="module")
async def scene(
    temporal: Client, settings: Settings, buying: Database, market: RunningMarket
) -> AsyncIterator[Scene]:
    """Has a machine bought for a job, which takes ten minutes to come up; 10 s."""
    market.book({"side": "sell", "dollars_per_gpu_hour": "2.10", "nodes": 8})
    market.knobs(instance_start_seconds=STARTS, pod_start_seconds=STARTS)
    buyer = Buyer(temporal, buying, market)
    await may_buy(buyer)
    longshore = Longshore(temporal, settings)
    spec = a_spec(buyer.pool, gpus=8, expected_duration="10m")
    submitted = await longshore.submit(spec)

    async def bought() -> PurchaseUnderWay:
        found = (await longshore.explain(submitted.job_id)).purchases
        assert len(found) == 1
        assert found[0].simulated  # known since its machine was asked for
        return found[0]

    await reaches(longshore, submitted.job_id, JobState.QUEUED)
    purchase = await eventually(bought)
    yield Scene(buyer.pool, submitted.job_id, submitted.warnings, purchase, longshore)
    await longshore.cancel(submitted.job_id)
    await longshore.close()
    market.advance(STARTS)  # a purchase is over when its machine has come up
    await buyer.close()


async def command(settings: Settings, *words: str) -> str:
    """Run a command in a thread: the control worker that answers it is of this process."""
    env = {**os.environ, "LONGSHORE_STATE_DIR": str(settings.state_dir), "COLUMNS": "240"}
    ran = await asyncio.to_thread(
        subprocess.run, [PROGRAM, *words], env=env, capture_output=True, text=True, check=True
    )
    return ran.stdout + ran.stderr


def named(purchase: PurchaseUnderWay) -> str:
    """Return how it is named, without when it is there: another machine may be asked for."""
    return f"purchase {purchase.id} of 1 x {purchase.instance_type} at {purchase.provider}"


@pytest.mark.exhaustive
async def test_a_submission_to_a_pool_that_buys_says_so(scene: Scene):
    (warning,) = scene.warnings
    assert warning.startswith(f"pool {scene.pool} has no nodes yet: it buys what is missing")
    assert "longshore agent" not in warning


async def test_the_job_names_its_purchase_and_when_it_may_start(scene: Scene):
    why = await scene.longshore.explain(scene.job)
    (purchase,) = why.purchases
    assert f"{named(purchase)} " in why.headline
    assert f"is under way for it, ready about {purchase.ready_at:%H:%M} UTC" in why.headline
    assert why.hints == ()
    start = why.job.estimated_start
    assert start is not None
    # What starts a machine is known to a minute; the decision is some seconds older.
    assert abs(start - purchase.ready_at) < timedelta(minutes=1)
    report = await scene.longshore.report(scene.job)
    assert report.purchases == why.purchases
    (listed,) = await scene.longshore.list(pool=scene.pool)
    assert listed.estimated_start is not None
    (queued,) = (await scene.longshore.queue(scene.pool)).jobs
    assert queued.starts_at == listed.estimated_start
    held = await scene.longshore.submit(a_spec(scene.pool, gpus=8), held=True)
    assert named(purchase) in held.warnings[0]

    await reaches(scene.longshore, held.job_id, JobState.HELD)
    explained = await scene.longshore.explain(held.job_id)
    assert (explained.purchases, explained.job.estimated_start) == ((), None)
    await scene.longshore.cancel(held.job_id)


async def test_commands_and_rest_say_the_same(
    scene: Scene, settings: Settings, console: RunningConsole
):
    for words in (("why", scene.job), ("job", scene.job)):
        said = await command(settings, *words)
        assert named(scene.purchase) in said
        assert "may start" in said
    said = await command(settings, "why", scene.job, "--json")
    why = Explanation.model_validate_json(said)
    rest = console.get(f"/jobs/{scene.job}/why").json()
    assert Explanation.model_validate(rest).purchases == why.purchases
    assert datetime.fromisoformat(rest["job"]["estimated_start"])


@pytest.mark.exhaustive
async def test_the_page_of_the_job_leads_to_its_purchase(
    scene: Scene, console: RunningConsole, browser: Browser
):
    page = await browser.new_page()
    await page.goto(f"{console.url}/jobs/{scene.job}?token={console.token}")
    why = page.locator(".reason.first")
    await expect(why).to_contain_text("under way for it, ready about")
    await expect(page.get_by_text("It may start at")).to_contain_text("what was bought is there")
    await expect(page.get_by_text("longshore agent")).to_have_count(0)
    await why.get_by_role("link", name=scene.purchase.id).click()
    await expect(page.get_by_role("heading", name=scene.purchase.id)).to_be_visible()
    await page.close()
