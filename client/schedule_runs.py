"""The runs of a schedule: what the server has of them, and what is on record of their jobs."""

from collections.abc import Sequence

from longshore.activities.schedule_views import RecordedRun
from longshore.client.schedule_server import Action
from longshore.models.schedule import ScheduleRun
from longshore.models.schedule_messages import run_id


def runs_of(
    name: str, actions: Sequence[Action], recorded: Sequence[RecordedRun]
) -> tuple[ScheduleRun, ...]:
    """Return a run for each action of the server's, in its order.

    A time may have run several times, each under a number of its own: a record belongs to the
    last run that had begun before it.
    """
    return tuple(_run(name, action, actions, recorded) for action in actions)


def _run(
    name: str, action: Action, actions: Sequence[Action], recorded: Sequence[RecordedRun]
) -> ScheduleRun:
    first = run_id(name, action.at)
    of_time = [each for each in recorded if each.id == first or each.id.startswith(f"{first}.r")]
    begun = sorted(each.started_at for each in actions if each.at == action.at)
    own = [
        each
        for each in of_time
        if max([at for at in begun if at <= each.submitted_at], default=begun[0])
        == action.started_at
    ]
    # One that ran already when this run began is waited for by it.
    adopted = [each for each in of_time if not each.ended and not action.ended]
    found = (own or adopted or [None])[-1]
    if found is None:
        return ScheduleRun(
            at=action.at, id=run_id(name, action.at, len(of_time) + 1), state=action.state,
            ended=action.ended, started_at=action.started_at,
            reason="nothing of it is on record" if action.state == "FAILED" else "",
        )  # fmt: skip
    return ScheduleRun(
        at=action.at, id=found.id, state=found.state, ended=found.ended, reason=found.reason,
        started_at=action.started_at, ended_at=found.ended_at, simulated=found.simulated,
    )  # fmt: skip
