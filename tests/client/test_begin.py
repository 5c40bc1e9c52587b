"""`--begin` of a submit, and what the commands say of a job that begins later."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from longshore.models.queue_view import QueueView
from longshore.models.views import JobView
from tests.client.conftest import Command
from tests.client.test_commands import is_listed
from tests.client.test_selection import ids

FAR = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:00Z")
SAID = f"{FAR[:10]} {FAR[11:16]} UTC"


async def submit(longshore: Command, pool: str, name: str, *flags: str) -> str:
    ran = await longshore("submit", "--pool", pool, "--name", name, *flags, "-q", "--", "true")
    assert ran.code == 0, ran.err
    return ran.out.strip()


async def test_what_is_said_of_a_job_that_begins_later(longshore: Command, pool: str) -> None:
    flags = ("--pool", pool, "--name", "a", "--key", "k")
    ran = await longshore("submit", *flags, "--begin", FAR, "--", "true")
    assert ran.code == 0, ran.err
    job_id = ran.out.strip()
    assert f"It begins at {SAID} at the earliest. Next: longshore why {job_id}" in ran.err
    again = await longshore("submit", *flags, "--begin", FAR, "--", "true")
    assert again.out.strip() == job_id
    assert "It begins at" not in again.err, "that is when the job of before does"
    await is_listed(longshore, pool, job_id, "HELD")
    for command in (("job", job_id), ("why", job_id), ("queue", "--pool", pool)):
        shown = await longshore(*command)
        assert f"begins at {SAID}" in " ".join(shown.out.split()), command
        assert "longshore release" not in shown.out
        assert "place 1" not in shown.out
    told = QueueView.model_validate_json((await longshore("queue", "--pool", pool, "--json")).out)
    assert told.jobs[0].reason == f"begins at {SAID}"
    assert (await longshore("cancel", job_id)).code == 0


async def test_a_dry_run_says_when_it_begins_and_that_prices_are_not_known(
    longshore: Command, pool: str
) -> None:
    dry = await longshore("submit", "--pool", pool, "--begin", FAR, "--dry-run", "--", "true")
    assert dry.code == 0, dry.err
    said = " ".join(dry.out.split())
    assert f"It begins at {SAID} at the earliest, and nothing is kept or bought for it" in said
    assert "the prices, are not known" in said


async def test_a_begin_that_is_past_or_wrong_is_said(longshore: Command, pool: str) -> None:
    past = ("--begin", "2020-01-01T00:00:00Z", "--hold")
    ran = await longshore("submit", "--pool", pool, *past, "--", "true")
    assert ran.code == 0, ran.err
    assert "2020-01-01T00:00:00Z is past: the job may start at once" in " ".join(ran.err.split())
    wrong = await longshore("submit", "--pool", pool, "--begin", "16:00", "--", "true")
    assert wrong.code == 65
    assert "or 16h" in wrong.err


@pytest.mark.exhaustive
async def test_hold_and_release_leave_its_begin_as_it_is(longshore: Command, pool: str) -> None:
    job_id = await submit(longshore, pool, "alone", "--begin", FAR)
    held = await submit(longshore, pool, "held", "--begin", FAR, "--hold")
    plain = await submit(longshore, pool, "plain", "--hold")
    for each in (job_id, held, plain):
        await is_listed(longshore, pool, each, "HELD")
    # Of those that wait for their begin alone there is nothing to release.
    dry = await longshore("release", "--pool", pool, "--dry-run", "--json")
    found = {JobView.model_validate(each).id for each in json.loads(dry.out)}
    assert found == {held, plain}
    dry = await longshore("hold", "--pool", pool, "--dry-run", "--json")
    assert {JobView.model_validate(each).id for each in json.loads(dry.out)} == {job_id}
    ran = await longshore("release", job_id, held, plain)
    assert ran.out.splitlines() == [
        f"{job_id} may be placed from {SAID} on, its `begin`",
        f"{held} may be placed from {SAID} on, its `begin`",
        f"{plain} may be placed again",
    ]
    await is_listed(longshore, pool, plain, "QUEUED")
    assert await ids(longshore, pool, "--state", "HELD") == {"alone", "held"}
    assert (await longshore("cancel", "--pool", pool)).code == 0
