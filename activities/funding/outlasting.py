"""Which running jobs lose a payer when an envelope ends to which an edit has given that end."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.funding.rows import load_facts
from longshore.activities.snapshot import load_running
from longshore.models.text import count, listed
from longshore.scheduling.durations import run_end
from longshore.scheduling.funding.evaluate import evaluate, evaluated
from longshore.scheduling.funding.facts import Facts

_NAMED = 10


async def load_ends(
    connection: AsyncConnection, tenants: Iterable[str]
) -> dict[int, datetime | None]:
    """Return when the envelopes of tenants end that have not ended."""
    rows = await connection.execute(text(_ENDS), {"tenants": sorted(tenants)})
    return {row.id: row.ends_at for row in rows}


def ends_sooner(
    before: Mapping[int, datetime | None], after: Mapping[int, datetime | None]
) -> frozenset[int]:
    """Return the envelopes with an end that are new, or that were to end later, or never."""
    return frozenset(
        id
        for id, end in after.items()
        if end is not None and ((was := before.get(id)) is None or end < was)
    )


async def notes_of_ends(
    connection: AsyncConnection, envelopes: Collection[int]
) -> tuple[str, ...]:
    """Return what is to be said of the ends of envelopes; to be read in one snapshot."""
    facts = await load_facts(connection, None)
    if facts is None or not envelopes:
        return ()
    expected = await load_expected(connection, facts)
    return outlasting(facts, envelopes, expected, await clock(connection))


async def load_expected(connection: AsyncConnection, facts: Facts) -> dict[str, datetime | None]:
    """Return when each job that runs is expected to end; None where nobody knows."""
    now = await clock(connection)
    found: dict[str, datetime | None] = {}
    for pool in sorted({share.where.pool for use in facts.uses for share in use.shares}):
        for job in await load_running(connection, pool):
            end = run_end(job.expected_end, job.ends, job.since, job.latest, now)
            found[job.job_id] = None if end.nobody_knows else end.at
    return found


def outlasting(
    facts: Facts,
    envelopes: Collection[int],
    expected: Mapping[str, datetime | None],
    now: datetime,
) -> tuple[str, ...]:
    """Return for which running jobs each of these envelopes pays that are expected to run for
    longer than it, and for how many of them nobody would pay then; and in one sentence for how
    many of all that say no duration."""
    _, room = evaluated(facts, now)
    notes: list[str] = []
    unknown: set[str] = set()
    unknown_unpaid: set[str] = set()
    theirs: list[str] = []
    for id in sorted(envelopes):
        owned = facts.envelopes.get(id)
        end = owned.spec.end if owned is not None else None
        if owned is None or end is None or end <= now:
            continue
        over = {job for job, at in expected.items() if at is not None and at <= end}
        paid = {each.charge.job_id for each in room.on[room.place[id]].values()} - over
        if not paid:
            continue
        then = facts._replace(
            uses=[use for use in facts.uses if use.job_id not in over],
            charges=[charge for charge in facts.charges if charge.job_id not in over],
        )
        splits = evaluate(then, end).splits
        unpaid = {job for (job, _), split in splits.items() if split.unfunded} & paid
        longer = {job for job in paid if expected.get(job) is not None}
        if longer:
            jobs = count(len(longer), "job")
            notes.append(
                f"{owned.tenant}: envelopes.{owned.spec.name}.end: it pays until "
                f"{end:%Y-%m-%d %H:%M:%S} UTC for {jobs} that may run for longer: "
                f"{listed(sorted(longer), _NAMED)}; {_then(len(unpaid & longer), len(longer))}"
            )
        if paid - longer:
            unknown |= paid - longer
            unknown_unpaid |= unpaid - longer
            theirs.append(f"{owned.tenant}/{owned.spec.name}")
    if unknown:
        envelope = "the envelope that pays" if len(theirs) == 1 else "the envelopes that pay"
        say = "says" if len(unknown) == 1 else "say"
        notes.append(
            f"{count(len(unknown), 'job')} {say} no duration, and may outlast {envelope} "
            f"({listed(theirs, _NAMED)}); {_then(len(unknown_unpaid), len(unknown))}"
        )
    return tuple(notes)


def _then(unpaid: int, paid: int) -> str:
    them = "it" if paid == 1 else "them"
    if not unpaid:
        return f"others would pay for {them} then"
    return f"nobody would pay for {them if unpaid == paid else f'{unpaid} of them'} then"


_ENDS = """
    SELECT id, ends_at FROM envelopes
     WHERE tenant = ANY(:tenants) AND (ends_at IS NULL OR ends_at > clock_timestamp())
"""
