"""What `doctor` says of the schedules of people."""

from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from longshore.client.api import Longshore
from longshore.models.job import JobSpec
from longshore.models.schedule import ScheduleTimes
from longshore.models.schedule_messages import run_id
from longshore.workers.doctor.findings import Finding, Level
from longshore.workers.doctor.schedules import schedules
from tests.support.scripted_node import USER_ERROR, ScriptedNode
from tests.support.waiting import eventually

FIRST = datetime(2026, 11, 1, 2, tzinfo=UTC)
DAILY = ScheduleTimes(cron=("0 2 * * *",))


async def test_those_that_fail_each_time_or_are_paused_for_it_are_named(
    longshore: Longshore, node: ScriptedNode, pool: str, temporal: Client
):
    spec = JobSpec(name="train", pool=pool, command="true")
    failing, paused = f"{pool}-f", f"{pool}-p"
    await longshore.create_schedule(failing, spec, DAILY)
    await longshore.create_schedule(paused, spec, DAILY, pause_on_failure=True)
    (fine,) = await schedules(temporal)
    assert fine.level is Level.OK
    await longshore.backfill_schedule(failing, FIRST, FIRST + timedelta(days=2))
    await longshore.backfill_schedule(paused, FIRST, FIRST)
    for number in range(3):
        await node.end(run_id(failing, FIRST + timedelta(days=number)), report=USER_ERROR)
    await node.end(run_id(paused, FIRST), report=USER_ERROR)

    async def both() -> list[Finding]:
        found = await schedules(temporal)
        assert [each.says for each in found] == [
            f"paused since a run has failed: {paused}",
            f"none of the last runs has succeeded: {failing}",
        ]
        return found

    found = await eventually(both, timeout=60)
    assert {each.level for each in found} == {Level.WARN}
