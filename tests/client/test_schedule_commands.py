"""`longshore schedule` against the real stack: make, look, trigger, backfill, pause, delete."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)

from longshore.models.schedule import OddDay, ScheduleView
from longshore.models.schedule_messages import SCHEDULE_PREFIX, SCHEDULE_RUN_WORKFLOW, schedule_id
from tests.client.conftest import Command
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

DAG = "name: line\njobs: {a: {command: 'true'}, b: {command: 'true', after: a}}\n"
CYCLE = "name: d\njobs: {a: {command: x, after: b}, b: {command: x, after: a}}\n"
DAILY = ("--cron", "0 2 * * *")


def a_job(folder: Path, pool: str, **fields: str) -> str:
    file = folder / "job.yaml"
    given = {"name": "train", "pool": pool, "command": "'true'", **fields}
    file.write_text("".join(f"{name}: {value}\n" for name, value in given.items()))
    return str(file)


async def shown(longshore: Command, name: str) -> ScheduleView:
    ran = await longshore("schedule", "show", name, "--json")
    assert ran.code == 0, ran.err
    return ScheduleView.model_validate_json(ran.out)


async def ids(temporal: Client) -> set[str]:
    """Return the ids of all schedules of the server, also of those that were to be short-lived."""
    return {each.id async for each in await temporal.list_schedules()}


async def nothing_is_left(temporal: Client, name: str) -> None:
    """Wait until no schedule is listed that was made for a name: lists lag."""

    async def none() -> bool:
        return not {each for each in await ids(temporal) if name in each}

    await eventually(none)


async def test_create_says_the_next_times_and_the_days_that_are_odd(
    longshore: Command, pool: str, tmp_path: Path
):
    file = a_job(tmp_path, pool)
    at = ("--cron", "30 2 * * *", "--timezone", "Europe/Berlin")
    looked = await longshore("schedule", "create", pool, file, *at, "--dry-run")
    assert looked.code == 0, looked.err
    lines = looked.out.splitlines()
    assert lines[0] == f"schedule {pool} can be made: 30 2 * * * Europe/Berlin"
    assert len(lines) == 11
    assert all(" 02:30:00 CE" in line for line in lines[1:])
    assert "no run at 02:30: the clock changes" in looked.err
    missing = await longshore("schedule", "show", pool)
    assert (missing.code, missing.err) == (
        66, f"error: no schedule '{pool}': `longshore schedule list` lists them\n",
    )  # fmt: skip
    made = await longshore("schedule", "create", pool, file, *at)
    assert made.code == 0, made.err
    assert made.out.splitlines()[0] == f"schedule {pool} is made: 30 2 * * * Europe/Berlin"
    assert f"Next: longshore schedule show {pool}" in made.err
    again = json.loads((await longshore("schedule", "create", pool, file, *at, "--json")).out)
    assert (again["created"], again["replaced"]) == (False, False)
    odd = [OddDay.model_validate(each) for each in again["odd_days"]]
    assert [each.times for each in odd] == [("02:30",)]
    assert odd[0].day.month == 3


async def test_a_create_with_other_content_replaces_only_when_told(
    longshore: Command, pool: str, tmp_path: Path
):
    await longshore("schedule", "create", pool, a_job(tmp_path, pool), *DAILY)
    assert (await longshore("schedule", "pause", pool, "--reason", "a repair")).code == 0
    dag = tmp_path / "dag.yaml"
    dag.write_text(f"{DAG}pool: {pool}\n")
    other = (str(dag), "--every", "6h", "--offset", "15m", "--overlap", "buffer-one")
    refused = await longshore("schedule", "create", pool, *other)
    assert refused.code == 65, refused.err
    assert f"schedule {pool} is there with other content: --replace" in refused.err
    replaced = await longshore("schedule", "create", pool, *other, "--replace")
    assert replaced.code == 0, replaced.err
    assert replaced.out.splitlines()[0] == (
        f"schedule {pool} has other content now: every 6h + 15m"
    )
    found = await shown(longshore, pool)
    assert (found.kind, found.what, found.paused, found.note) == ("dag", "line", True, "a repair")
    assert found.overlap == "buffer-one"
    screen = (await longshore("schedule", "show", pool, "--spec")).out
    for part in (f"{pool}  PAUSED", "when      every 6h + 15m", "overlap   buffer-one", "after:"):
        assert part in screen, screen


async def test_a_relative_workdir_is_seen_from_the_file(
    longshore: Command, pool: str, tmp_path: Path
):
    file = a_job(tmp_path, pool, workdir="code")
    await longshore("schedule", "create", pool, file, *DAILY, "--no-upload")
    found = json.loads((await longshore("schedule", "show", pool, "--spec", "--json")).out)
    assert found["spec"]["workdir"] == str(tmp_path / "code")


async def test_trigger_list_and_delete(
    longshore: Command,
    node: ScriptedNode,
    pool: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    await longshore("schedule", "create", pool, a_job(tmp_path, pool), *DAILY, "--paused")
    triggered = await longshore("schedule", "trigger", pool)
    assert triggered.code == 0, triggered.err
    job_id = triggered.out.strip()
    assert job_id.startswith(f"{pool}-2")
    assert f"Next: longshore watch {job_id}" in triggered.err
    refused = await longshore("schedule", "trigger", pool)
    assert refused.code == 77
    assert f"{job_id} has not ended, and the overlap is skip" in refused.err
    await node.end(job_id, report=USER_ERROR)

    async def failed() -> bool:
        return [run.state for run in (await shown(longshore, pool)).runs] == ["FAILED"]

    await eventually(failed)
    assert f"Next: longshore why {job_id}" in (await longshore("schedule", "show", pool)).out

    async def listed() -> str:
        names = json.loads((await longshore("schedule", "list", "--json")).out)
        assert pool in [each["name"] for each in names]
        return pool

    await eventually(listed)
    monkeypatch.setenv("COLUMNS", "80")
    table = (await longshore("schedule", "list")).out
    assert max(map(len, table.splitlines())) <= 80
    for part in (pool, "job train", "0 2 * * *", "UTC", "paused", "FAILED"):
        assert part in table, table
    deleted = await longshore("schedule", "delete", pool)
    assert deleted.out.strip() == f"{pool} is deleted"
    assert (await longshore("schedule", "delete", pool)).code == 66


@pytest.mark.exhaustive
async def test_pause_resume_and_backfill(
    longshore: Command, node: ScriptedNode, pool: str, tmp_path: Path
):
    zone = ("--timezone", "Asia/Kathmandu")
    await longshore("schedule", "create", pool, a_job(tmp_path, pool), *DAILY, *zone)
    assert (await longshore("schedule", "resume", pool)).out.strip() == f"{pool} was not paused"
    paused = await longshore("schedule", "pause", pool)
    assert paused.out.startswith(f"{pool} is paused")
    assert (await shown(longshore, pool)).paused
    assert len((await shown(longshore, pool)).next) == 10, "the days to come"
    assert (await longshore("schedule", "resume", pool)).out.strip() == f"{pool} goes on"
    span = ("--from", "2026-11-02", "--to", "2026-11-02")
    looked = await longshore("schedule", "backfill", pool, *span, "--dry-run")
    assert looked.out.strip() == "2026-11-01T20:15:00Z", "02:00 at UTC+5:45"
    assert (await longshore("schedule", "backfill", pool, *span)).code == 0
    job_id = f"{pool}-20261101t201500z"
    await node.end(job_id)

    async def succeeded() -> bool:
        return [run.state for run in (await shown(longshore, pool)).runs] == ["SUCCEEDED"]

    await eventually(succeeded)
    refused = await longshore("schedule", "backfill", pool, *span)
    assert refused.code == 77
    assert f"{job_id} of 1 time has succeeded: --again" in refused.err
    none = await longshore("schedule", "backfill", pool, "--from", "2026-11-02T03:00",
                           "--to", "2026-11-02T04:00")  # fmt: skip
    assert (none.code, none.err) == (77, f"error: schedule {pool} has no time in this range\n")
    future = await longshore(
        "schedule", "backfill", pool, "--from", "2026-11-02", "--to", "2099-01-01"
    )
    assert (future.code, future.err) == (65, "error: the range ends in the future\n")


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ((), 65, "give cron lines or an interval"),
        ((*DAILY, "--every", "6h"), 65, "give cron lines or an interval"),
        (("--cron", "0 2 * * MON#2"), 65, "The second Monday is: 0 2 8-14 * MON"),
        (("--cron", "0 2 30 2 *"), 65, "no such time comes within five years"),
        (("--cron", "0 2 * * * 2020"), 65, "no such time comes within five years"),
        (
            ("--cron", "99 * * * *", "--cron", "0 2 * * *", "--cron", "0 25 * * *"), 65,
            "cron '99 * * * *': the minute must be from 0 to 59 "
            "error: cron '0 25 * * *': the hour must be from 0 to 23",
        ),
        (("--cron", "0 2 * * MONDAI"), 65, "error: cron '0 2 * * MONDAI': "),
        (("--cron", "@reboot"), 65, "cron '@reboot': is none of the words that stand for a line"),
        (("--cron", "0 0 2 * * * * *"), 65, "has 8 fields, and wants five"),
        (("--every", "0s"), 65, "error: every: 0s is too short: a minute is the least"),
        (("--cron", "0 2 *"), 65, "has 3 fields, and wants five: minute"),
        (("--cron", "*/10 * * * * * *"), 65, "runs begin at whole minutes"),
        (("--cron", "@every 30s"), 65, "give an interval as --every"),
        (("--cron", "CRON_TZ=UTC 0 2 * * *"), 65, "give the time zone as --timezone"),
        (("--every", "59s"), 65, "every: 59s is too short: a minute is the least"),
        (("--every", "soon"), 2, "--every 'soon'"),
        (("--every", "6h", "--offset", "6h"), 65, "must be shorter than the interval"),
        (("--every", "24h", "--timezone", "Europe/Berlin"), 65, "24h is a day of UTC"),
        ((*DAILY, "--timezone", "Europe/Berln"), 65, "did you mean Europe/Berlin?"),
        ((*DAILY, "--overlap", "sometimes"), 2, "'sometimes' is none of skip, buffer-one"),
        ((*DAILY, "--overlap", "terminate-other"), 2, "cannot stop its job"),
        ((*DAILY, "--catch-up", "1s"), 65, "catch_up: 1s is too short"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_said_and_nothing_is_made(
    longshore: Command, pool: str, tmp_path: Path, temporal: Client,
    options: tuple[str, ...], code: int, says: str,
):  # fmt: skip
    refused = await longshore("schedule", "create", pool, a_job(tmp_path, pool), *options)
    assert refused.code == code, refused.err
    assert says in " ".join(refused.err.replace("│", " ").split())
    await nothing_is_left(temporal, pool)
    assert f"{SCHEDULE_PREFIX}{pool}" not in await ids(temporal)


async def test_what_is_wrong_with_a_file_or_a_name_is_said(
    longshore: Command, pool: str, tmp_path: Path, temporal: Client
):
    cycle = tmp_path / "cycle.yaml"
    cycle.write_text(CYCLE)
    refused = await longshore("schedule", "create", pool, str(cycle), *DAILY)
    assert refused.code == 65
    assert "a cycle: a comes after b (success); b comes after a (success)" in refused.err
    wrong = a_job(tmp_path, pool, gpus="-1", nodes="2")
    refused = await longshore("schedule", "create", pool, wrong, *DAILY)
    assert refused.code == 65
    assert "job.yaml:4: gpus:" in refused.err
    assert "job.yaml:5: nodes:" in refused.err
    refused = await longshore(
        "schedule", "create", "No Name", a_job(tmp_path, pool), "--every", "1s"
    )
    assert refused.code == 65
    assert "name: 'No Name' must be lower-case letters" in refused.err
    assert "every: 1s is too short" in refused.err, "all at once"
    both = await longshore("schedule", "create", pool, a_job(tmp_path, pool), "--cron",
                           "0 2 1 * MON", "--dry-run")  # fmt: skip
    assert "it runs on days that are both, where cron runs on days that are either" in both.err
    await nothing_is_left(temporal, pool)


async def test_a_schedule_that_cannot_be_read_is_listed_and_can_be_replaced_or_deleted(
    longshore: Command, pool: str, tmp_path: Path, temporal: Client
):
    async def make(name: str, workflow: str, given: object) -> None:
        action = ScheduleActionStartWorkflow(workflow, given, id=name, task_queue="none")
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(hours=1))])
        await temporal.create_schedule(f"{SCHEDULE_PREFIX}{name}", Schedule(action, spec))

    await make(pool, SCHEDULE_RUN_WORKFLOW, {"schedule": pool, "job": {"newer": 1}})
    await make(f"{pool}-other", "SomebodysWorkflow", {})

    async def listed() -> str:
        found = {each["name"]: each for each in json.loads(
            (await longshore("schedule", "list", "--json")).out
        )}  # fmt: skip
        assert f"{pool}-other" not in found
        return found[pool]["trouble"] if pool in found else ""

    assert (await eventually(listed)).startswith("what it starts cannot be read: ")
    foreign = await longshore("schedule", "show", f"{pool}-other")
    assert foreign.code == 66
    assert "starts another workflow than those of Longshore" in foreign.err
    replaced = await longshore(
        "schedule", "create", pool, a_job(tmp_path, pool), *DAILY, "--replace"
    )
    assert replaced.code == 0, replaced.err
    assert (await shown(longshore, pool)).what == "train"
    assert (await longshore("schedule", "delete", pool)).code == 0


async def test_next_times_of_a_paused_schedule_are_counted_from_now(
    longshore: Command, pool: str, tmp_path: Path, temporal: Client
):
    """The server tells those after the time at which it looked last: before the pause."""
    await longshore("schedule", "create", pool, a_job(tmp_path, pool), *DAILY, "--paused")
    handle = temporal.get_schedule_handle(schedule_id(pool))

    def often(given: ScheduleUpdateInput) -> ScheduleUpdate:
        schedule = given.description.schedule
        schedule.spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(timedelta(seconds=1))])
        return ScheduleUpdate(schedule)

    await handle.update(often)

    async def is_behind() -> bool:
        times = (await handle.describe()).info.next_action_times
        return bool(times) and times[0] < datetime.now(UTC)

    await eventually(is_behind)
    asked = datetime.now(UTC)
    found = await shown(longshore, pool)
    assert len(found.next) == 10
    assert asked < found.next[0] < asked + timedelta(minutes=1)
    assert "ago" not in (await longshore("schedule", "show", pool)).out.split("Next, were it")[1]
    await longshore("schedule", "delete", pool)
