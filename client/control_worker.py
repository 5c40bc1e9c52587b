"""Whether control workers ask for work, and what is said where none does."""

from collections.abc import Mapping
from datetime import UTC, datetime

from temporalio.client import Client
from temporalio.service import RPCError

from activities.polls import POLL_SEEN_WITHIN, last_polls
from models.messages import CONTROL_TASK_QUEUE

START = "Run `longshore up`, or `longshore worker` beside servers of your own."


async def who_asks(temporal: Client) -> Mapping[str, frozenset[str]]:
    """Return the control workers that asked lately for workflows, and for activities, by what they
    asked for. Raises RPCError."""
    now = datetime.now(UTC)
    found: dict[str, frozenset[str]] = {}
    for what, of_workflows in (("workflows", True), ("activities", False)):
        seen = await last_polls(temporal, CONTROL_TASK_QUEUE, workflows=of_workflows)
        found[what] = frozenset(who for who, at in seen.items() if now - at < POLL_SEEN_WITHIN)
    return found


def nobody_asks(what: str) -> str:
    return f"nobody asks task queue {CONTROL_TASK_QUEUE} for {what}"


async def why_not_taken_up(temporal: Client) -> str:
    """Return what to say of a job that no control worker is there for; empty where one is, or
    where Temporal does not say."""
    try:
        asking = await who_asks(temporal)
    except RPCError:
        return ""
    missing = [what for what, workers in asking.items() if not workers]
    if not missing:
        return ""
    return (
        "no control worker takes the job up: "
        f"{nobody_asks(' and '.join(missing))}. {START} It waits until then."
    )
