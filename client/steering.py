"""Steers many jobs at once: finds those that are meant, and asks each for the same."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from longshore.client.calls import known_job
from longshore.client.selection import Selection
from longshore.models.errors import EndedError, LongshoreError, RefusedError
from longshore.models.job_status import JobState
from longshore.models.text import count, listed
from longshore.models.views import JobView

if TYPE_CHECKING:
    from longshore.client.api import Longshore

AT_ONCE = 16
"""Jobs that are asked at the same time."""
_PAGE = 500
OPEN = frozenset(state for state in JobState if not state.ended)


@dataclass(frozen=True)
class Verb:
    """What is asked of jobs."""

    name: str
    """As the command, and the method of the client."""
    states: frozenset[JobState]
    """In which of them it makes sense of a job."""
    outcome: str
    """What comes of it, with ``{id}``."""
    by_user: bool | None = None
    """Whether, of those that are HELD, it makes sense of the ones that somebody holds, or of those
    that wait for their `begin` alone; None where it does of both."""

    def fits(self, job: JobView) -> bool:
        """Return whether it makes sense of a job, which is in one of the states."""
        held = job.state is JobState.HELD and self.by_user is not None
        return not held or job.begin_only is not self.by_user


CANCEL = Verb("cancel", OPEN, "will end; `longshore watch {id}` shows it")
HOLD = Verb("hold", OPEN, "is held until `longshore release {id}`", by_user=False)
RELEASE = Verb("release", frozenset({JobState.HELD}), "may be placed again", by_user=True)
REQUEUE = Verb(
    "requeue",
    frozenset({JobState.RUNNING, JobState.STOPPING}),
    "will be queued again; `longshore job {id}` shows it",
)


@dataclass
class Asked:
    """What came of asking."""

    asked: list[str] = field(default_factory=list[str])
    """The ids of the jobs that were asked."""
    ended: list[str] = field(default_factory=list[str])
    """Of those that were selected, the ones that had ended by then."""
    begins: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """When those begin whose `begin` is to come, of jobs that were released."""
    failed: list[tuple[str, LongshoreError]] = field(
        default_factory=list[tuple[str, LongshoreError]]
    )


async def select(
    api: "Longshore", chosen: Selection, verb: Verb, *, all_tenants: bool
) -> list[JobView]:
    """Return all jobs that are selected and that can be asked, newest first.

    Raises RefusedError where they are several tenants' and nobody has said that this is meant.
    """
    states = chosen.states & verb.states if chosen.states else verb.states
    found, last = list[JobView](), None
    meant = replace(chosen, states=states)
    while page := await api.list(**meant.filters, after=last, limit=_PAGE):
        found += filter(verb.fits, page)
        last = page[-1].id
    tenants = sorted({job.tenant for job in found})
    if len(tenants) > 1 and not all_tenants:
        raise RefusedError(
            f"these are {count(len(found), 'job')} of {len(tenants)} tenants "
            f"({listed(tenants, 5)}): name one with --tenant, or give --all-tenants"
        )
    return found


async def named(api: "Longshore", refs: Sequence[str]) -> tuple[list[JobView], Asked]:
    """Return the jobs that are named, and what is wrong with the others."""
    found, asked = list[JobView](), Asked()
    for ref in refs:
        try:
            found.append(await known_job(api, ref))
        except LongshoreError as error:
            asked.failed.append((ref, error))
    return found, asked


async def begins_of(
    api: "Longshore", job_ids: Sequence[str], now: datetime
) -> dict[str, datetime]:
    """Return when those of the jobs begin whose `begin` is to come, as far as that can be read."""
    found = dict[str, datetime]()
    for job_id in job_ids:
        with contextlib.suppress(LongshoreError):
            begins_at = (await api.job(job_id)).begins_at
            if begins_at is not None and begins_at > now:
                found[job_id] = begins_at
    return found


async def ask_all(
    api: "Longshore",
    verb: Verb,
    refs: Sequence[str],
    reason: str,
    *,
    selected: bool,
    heard: Callable[[int], None],
) -> Asked:
    """Ask jobs for the same, some at a time; one that cannot be asked keeps no other from it.

    `heard` is told after each how many have answered. Of jobs that were `selected` one that has
    ended meanwhile has not failed.
    """
    ask: Callable[[str, str], Awaitable[str]] = getattr(api, verb.name)
    gate, answers = asyncio.Semaphore(AT_ONCE), dict[int, str | LongshoreError]()

    async def one(number: int, ref: str) -> None:
        async with gate:
            try:
                answers[number] = await ask(ref, reason)
            except LongshoreError as error:
                answers[number] = error
        heard(len(answers))

    await asyncio.gather(*(one(number, ref) for number, ref in enumerate(refs)))
    result = Asked()
    for number, ref in enumerate(refs):
        answer = answers[number]
        if isinstance(answer, str):
            result.asked.append(answer)
        elif selected and isinstance(answer, EndedError):
            result.ended.append(ref)
        else:
            result.failed.append((ref, answer))
    return result
