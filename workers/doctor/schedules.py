"""Checks of the schedules of people: whether they are paused for a failure, or fail."""

from temporalio.client import Client
from temporalio.service import RPCError

from longshore.activities.rpc_errors import is_unknown
from longshore.client.schedule_server import ANSWER_WITHIN, actions_of
from longshore.models.schedule import never_succeeded
from longshore.models.schedule_messages import SCHEDULE_PREFIX
from longshore.models.text import count, listed
from longshore.workers.doctor.findings import Finding, ok, warn

_OF_FAILURE = "paused due to workflow failure"
"""Begins the note of a schedule that the server has paused."""
_MOST, _SHOWN = 200, 5


async def schedules(temporal: Client) -> list[Finding]:
    """Name schedules that the server has paused for a failure, and those whose last runs have all
    failed."""
    paused, failing, looked = list[str](), list[str](), 0
    async for each in await temporal.list_schedules(rpc_timeout=ANSWER_WITHIN):
        if not each.id.startswith(SCHEDULE_PREFIX) or looked == _MOST:
            continue
        looked += 1
        try:
            found = await temporal.get_schedule_handle(each.id).describe(rpc_timeout=ANSWER_WITHIN)
        except RPCError as error:
            if not is_unknown(error):
                raise
            continue  # deleted meanwhile
        name, state = each.id.removeprefix(SCHEDULE_PREFIX), found.schedule.state
        if state.paused and (state.note or "").startswith(_OF_FAILURE):
            paused.append(name)
        elif not state.paused and never_succeeded(
            [run.state for run in actions_of(found) if run.ended]
        ):
            failing.append(name)
    if not paused and not failing:
        what = count(looked, "schedule") if looked else "there is none"
        return [ok("schedules", f"{what}: none is paused for a failure, and none fails each time")]
    result: list[Finding] = []
    if paused:
        result.append(
            warn(
                "schedules",
                f"paused since a run has failed: {listed(sorted(paused), _SHOWN)}",
                "`longshore schedule show NAME` names the job; `longshore schedule resume NAME`.",
            )
        )
    if failing:
        result.append(
            warn(
                "schedules",
                f"none of the last runs has succeeded: {listed(sorted(failing), _SHOWN)}",
                "`longshore schedule show NAME` says why; `longshore schedule create --replace` "
                "gives it another file.",
            )
        )
    return result
