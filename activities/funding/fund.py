"""Who would pay for a job, envelope by envelope, as its next cycle would find it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import Database, clock
from longshore.activities.funding.planning import Funding, funded_by, read_funding
from longshore.activities.funding.rows import load_facts
from longshore.activities.placements import BORROWS
from longshore.activities.serving.update_room import Replaced, replaced_by
from longshore.activities.snapshot import load_nodes, load_pool, load_queue, load_running
from longshore.activities.threads import in_thread
from longshore.models.errors import NotFoundError, RefusedError
from longshore.models.fund_view import FundRemedy, FundRung, FundView
from longshore.models.funding import FundingClass, FundingCode, PoolFunding
from longshore.models.funding_use import PaidGPUs
from longshore.models.job_request import JobRequest
from longshore.models.margins import Margins
from longshore.models.node import Node
from longshore.models.packing import PackingPolicy
from longshore.models.placement import RunningJob
from longshore.models.text import count, listed
from longshore.models.visible import brief, shown
from longshore.scheduling.bulk.collector import paused
from longshore.scheduling.durations import run_end
from longshore.scheduling.funding.evaluate import evaluated
from longshore.scheduling.funding.explain import Explained, Helps, Remedy, Rung, explain
from longshore.scheduling.funding.facts import Facts, OverQuota, Use, Wall
from longshore.scheduling.funding.kinds import PoolKinds
from longshore.scheduling.funding.news import funded_gpus, paid_gpus
from longshore.scheduling.funding.pool import as_found, in_turn, says_unfunded
from longshore.scheduling.funding.quotas import QuotaRoom, in_its_way, lifted, milli_of, raises
from longshore.scheduling.funding.remedies import for_job
from longshore.scheduling.funding.room import Room
from longshore.scheduling.funding.split import split_of
from longshore.scheduling.funding.tried import GoOn
from longshore.scheduling.order import queue_order

_NAMED = 5


async def fund_view(database: Database, job_id: str, margins: Margins) -> FundView:
    """Return who pays for a job that runs, or would for one that waits. Of an array it is one of
    its slots, that waits if one does: they are alike. Raises NotFoundError, and RefusedError for
    a job that has ended.

    What would help is tried behind all that wait before it, which may take seconds: in a thread,
    once the snapshot is over, so that neither its process nor the database waits for it. The
    thread ends soon where nobody waits for it any more.
    """
    async with database.snapshot() as connection:
        found = await _read(connection, job_id, margins)
    return found if isinstance(found, FundView) else await in_thread(partial(_worked_out, found))


def _worked_out(view: Callable[[GoOn], FundView], go_on: GoOn) -> FundView:
    with paused():
        return view(go_on)


async def _read(
    connection: AsyncConnection, job_id: str, margins: Margins
) -> FundView | Callable[[GoOn], FundView]:
    """Return who pays for a job; where that has to be worked out, how, from what was read."""
    slot = await connection.scalar(text(_SLOT), {"id": job_id})
    job_id = job_id if slot is None else slot
    row = (await connection.execute(text(_JOB), {"id": job_id})).mappings().first()
    if row is None:
        raise NotFoundError(f"no job {shown(job_id)}: `longshore jobs --all` lists them")
    tenant = row["tenant"]
    if row["ended_at"] is not None:
        raise RefusedError(
            f"job {job_id} has ended: nobody pays for it any more. `longshore job {job_id}` says "
            "who has"
        )
    facts = await load_facts(connection, None)
    branch = facts.tenants.get(tenant) if facts else None
    has_budget = branch is not None and branch.budget_since is not None
    pays_all = FundView(
        job_id=job_id, tenant=tenant, has_budget=False, runs=row["runs"],
        says=f"tenant {tenant} has no budget: it pays for all that it uses",
    )  # fmt: skip
    if row["lender"] is not None:
        return pays_all.model_copy(
            update={
                "has_budget": has_budget, "funded": False,
                "says": f"UNFUNDED: it runs on a spare that {row['lender']} lends and pays for",
            }
        )  # fmt: skip
    if not has_budget and row["runs"]:
        return pays_all
    now = await clock(connection)
    uses = [use for use in facts.uses if use.job_id == job_id] if facts and has_budget else []
    running = await load_running(connection, row["pool"])
    ends = {
        share.job_id: run_end(share.expected_end, share.ends, share.since, share.latest, now).at
        for share in running
    }
    if facts and uses:
        use = max(uses, key=lambda use: use.attempt)
        return partial(_running, facts, use, now, ends, sized=row["sized"])
    spec = await load_pool(connection, row["pool"], margins)
    entries = await load_queue(connection, row["pool"])
    mine = next((one.request for one in entries if one.request.id == job_id), None)
    if mine is None:
        if not has_budget:
            return pays_all
        raise await _why_not_asked(connection, job_id)
    queue = [one.request for one in entries if not one.held or one.request.id == job_id]
    funding = await read_funding(connection, row["pool"], queue)
    if funding is None:
        return pays_all
    nodes = await load_nodes(connection, row["pool"])
    old = await replaced_by(connection, job_id)
    seen = _Queue(row["pool"], spec.packing, queue, nodes, running, funding, ends, now, old)
    return partial(_planned, seen, mine, None if has_budget else pays_all)


class _Queue(NamedTuple):
    """What was read of a job's pool."""

    pool: str
    packing: PackingPolicy
    waiting: Sequence[JobRequest]
    nodes: Sequence[Node]
    running: Sequence[RunningJob]
    funding: Funding
    ends: Mapping[str, datetime]
    now: datetime
    old: Replaced
    """Replicas that go on until the job is ready."""


def _planned(seen: _Queue, mine: JobRequest, pays_all: FundView | None, go_on: GoOn) -> FundView:
    """Return who would pay for a job that waits; `pays_all` is of a tenant without a budget."""
    pool, funding, now = seen.pool, seen.funding, seen.now
    ordered = queue_order(seen.waiting, seen.packing, now, seen.nodes, seen.running)
    packing = funded_by(seen.packing, pool, funding, ordered, now)
    paid = packing.funding
    assert paid is not None
    over = paid.over_quota
    why = paid.unfunded[mine.id] if mine.id in over else ""
    free = paid
    if why:
        walls = tuple(lifted(funding.walls, mine.tenant))
        lifting = funding._replace(walls=walls)
        free = funded_by(seen.packing, pool, lifting, ordered, now).funding
        assert free is not None
    ordered = in_turn(ordered, funding.first | funding.freed)
    old = seen.old
    if pays_all is not None:
        return _over(pays_all, why, funding, free, ordered, mine, old) if why else pays_all
    # What is over its quota asks nobody, and takes no room of those behind it.
    asking = [job for job in ordered if job.id == mine.id or job.id not in over]
    found = _waiting(funding, pool, asking, mine, now, seen.ends, go_on)
    if why:
        return _over(found, why, funding, free, ordered, mine, old)
    if own := paid.own_nodes.get(mine.id):
        on = f"; it starts on nodes alone on which its tenant has jobs: {own.why_on_nodes}"
        found = found.model_copy(update={"says": found.says + on})
    if mine.malleable is None or not found.funded:
        return found
    most, target = packing.most_paid_for(mine.id), mine.malleable.target
    upto = f"; it starts on up to {target if most is None else most} of {target} GPUs"
    return found.model_copy(update={"says": found.says + upto})


async def _why_not_asked(connection: AsyncConnection, job_id: str) -> RefusedError:
    """Return why nobody is asked for a job that does not run."""
    if await connection.scalar(
        text("SELECT EXISTS (SELECT FROM queue WHERE job_id = :id)"), {"id": job_id}
    ):
        return RefusedError(
            f"{job_id} is set aside, so that no cycle plans it: `longshore why {job_id}` says why"
        )
    return RefusedError(f"job {job_id} neither runs nor waits now: ask again in a moment")


def _over(
    found: FundView,
    why: str,
    funding: Funding,
    free: PoolFunding,
    ordered: Sequence[JobRequest],
    mine: JobRequest,
    old: Replaced,
) -> FundView:
    """Return what is found of a job with the hard quota for which it waits, whoever would pay.
    `free` is who pays where no quota of its tenant is in the way, `old` what goes on until it is
    ready."""
    fewest = PoolKinds(funding.facts, "").fewest
    walls = in_its_way(QuotaRoom(funding.walls, fewest), free, ordered, mine)
    asks = funding.asks.get(mine.id)
    paid = found.funded or not (asks and asks.must_be_funded)
    then = "" if paid else "; then a budget has to pay for it still"
    says = why if found.funded else f"{why}; besides, {found.says}"
    found = found.model_copy(
        update={
            "says": says, "funded": False, "code": FundingCode.QUOTA, "answer": (), "remedies": (),
            "wants": found.wants or mine.smallest.gpus_held * milli_of(mine.smallest) / 1000,
        }
    )  # fmt: skip
    if not walls:
        return found
    ends = FundRemedy(what="quota_room", says=f"wait for jobs of {_whose(walls)} to end{then}")
    sets = listed([_set(wall, over) for wall, over in walls], _NAMED)
    more = FundRemedy(what="quota", says=f"raise the quota: {sets}{then}")
    helps = [more]
    if all(over.asked <= over.most for _, over in walls):
        stay = [sum(each.tenant in wall.below for each in old.replicas) for wall, _ in walls]
        if all(wall.jobs > own for (wall, _), own in zip(walls, stay, strict=True)):
            helps.insert(0, ends)
        if all(stay):
            helps.insert(0, FundRemedy(what="unavailable", says=f"{old.says}{then}"))
    return found.model_copy(update={"remedies": tuple(helps)})


def _whose(walls: Iterable[tuple[Wall, OverQuota]]) -> str:
    """Return ``tenant red``, or ``tenant root or one below it``."""
    each = {wall.tenant: len(wall.below) > 1 for wall, _ in walls}
    says = [f"tenant {name}{' or one below it' * below}" for name, below in each.items()]
    return " and of ".join(says)


def _set(wall: Wall, over: OverQuota) -> str:
    return raises(wall.tenant, over.field, over.used + over.asked)


def _running(
    facts: Facts,
    use: Use,
    now: datetime,
    ends: Mapping[str, datetime],
    go_on: GoOn,
    *,
    sized: bool,
) -> FundView:
    """Return who pays for what runs; its rungs as if it were covered anew. What one that is
    `sized` asks for is not what it has: nothing is said of fewer GPUs."""
    _, room = evaluated(facts, now)
    attempt = use.job_id, use.attempt
    following = [paid.charge for paid in room.held.get(attempt, {}).values()]
    for charge in following:
        room.remove(charge)
    found = explain(room, use, ends, go_on=go_on)
    if sized:
        helps = tuple(each for each in found.remedies if each.what is not Helps.FEWER)
        found = found._replace(remedies=helps)
    # As `longshore job` has it: what is open. What a cycle changes is true from then on.
    charges = [each for each in facts.charges if (each.job_id, each.attempt) == attempt]
    split = split_of(use, charges, facts)
    answer, then = paid_gpus(charges, use, facts), paid_gpus(following, use, facts)
    says = ", ".join(each.words for each in answer)
    if then != answer:
        says = f"{says}; from the next cycle on {', '.join(each.words for each in then)}"
    elif split.unfunded and not found.cover.funded:
        says = f"{says}; {says_unfunded(found.cover)}"
    view = _view(room, use, found, frozenset())
    return view.model_copy(
        update={
            "runs": True, "answer": answer, "says": says, "funded": not split.unfunded,
            "deficit": split.unfunded / 1000, "code": found.cover.code if split.unfunded else None,
            "remedies": view.remedies if split.unfunded and then == answer else (),
        }
    )  # fmt: skip


def _waiting(
    funding: Funding,
    pool: str,
    ordered: list[JobRequest],
    mine: JobRequest,
    now: datetime,
    ends: Mapping[str, datetime],
    go_on: GoOn,
) -> FundView:
    facts, asks = funding.facts, funding.asks
    room, use, ahead = as_found(facts, pool, ordered, asks, mine, now)
    found = explain(room, use, ends, ahead, go_on)
    found = found._replace(remedies=tuple(for_job(mine, found.remedies)))
    before = frozenset(job.id for job in ordered[: ordered.index(mine)])
    view = _view(room, use, found, before)
    must = asks[mine.id].must_be_funded if mine.id in asks else False
    answer = funded_gpus(found.cover.charges, use, facts)
    if not found.cover.funded and not must:
        answer = (PaidGPUs(funding=FundingClass.UNFUNDED, gpus=view.wants),)
    says = (
        ", ".join(each.words for each in answer)
        if found.cover.funded
        else says_unfunded(found.cover, must=must)
    )
    return view.model_copy(update={"answer": answer, "says": says})


def _view(room: Room, use: Use, found: Explained, before: frozenset[str]) -> FundView:
    cover = found.cover
    return FundView(
        job_id=use.job_id, tenant=use.tenant, has_budget=True, runs=False,
        wants=sum(share.amount for share in use.shares) / 1000, funded=cover.funded,
        code=cover.code, deficit=cover.deficit, says="",
        rungs=tuple(_rung(room, rung, before) for rung in found.rungs),
        remedies=tuple(_remedy(room.facts, each) for each in found.remedies),
    )  # fmt: skip


def _rung(room: Room, rung: Rung, before: frozenset[str]) -> FundRung:
    place = room.place[rung.envelope]
    held: dict[str, int] = {}
    ahead = 0
    for paid in room.on[place].values():
        charge = paid.charge
        holder = room.uses.get((charge.job_id, charge.attempt))
        tenant = holder.tenant if holder else "others"
        held[tenant] = held.get(tenant, 0) + charge.amount
        ahead += charge.amount if charge.job_id in before else 0
    spec = room.owned[place].spec
    return FundRung(
        rung=rung.rung, tenant=rung.tenant, envelope=rung.name, gpus=spec.gpus,
        unused=rung.unused / 1000, recallable=rung.recallable / 1000,
        held_by={tenant: held[tenant] / 1000 for tenant in sorted(held)}, ahead=ahead / 1000,
        gives=rung.gives / 1000, code=rung.code, opens=rung.opens, ends=spec.end,
        on=brief(rung.on),
    )  # fmt: skip


def _remedy(facts: Facts, remedy: Remedy) -> FundRemedy:
    return FundRemedy(what=remedy.what.value, says=_SAYS[remedy.what](facts, remedy))


def _budget(facts: Facts, remedy: Remedy) -> str:
    file = "in its budget file: `longshore budget apply FILE`"
    owned = facts.envelopes.get(remedy.envelope or 0)
    if owned is None:
        of_type = f"{remedy.gpu_type} GPU" if remedy.gpu_type else "GPU"
        gpus = count(remedy.gpus or 0, of_type)
        return f"give {remedy.tenants[0]} an envelope of {gpus} {file}"
    return f"raise envelope {owned.tenant}/{owned.spec.name} to {_gpus(remedy)} {file}"


def _cap(facts: Facts, remedy: Remedy) -> str:
    named = {each.id: f"{each.tenant}/{each.spec.name}" for each in facts.caps}
    more = ((remedy.cap or 0, remedy.gpus or 0), *remedy.other_caps)
    each = [f"cap {named[cap]} by {count(gpus, 'GPU')}" for cap, gpus in more]
    where = "its budget file" if len(more) == 1 else "their budget files"
    return f"raise {' and '.join(each)} in {where}: `longshore budget apply FILE`"


def _lending(facts: Facts, remedy: Remedy) -> str:
    owned = facts.envelopes[remedy.envelope or 0]
    return (
        f"ask {owned.tenant} to lend more: `lending.max` of {_gpus(remedy)} in envelope "
        f"{owned.spec.name} of its budget file"
    )


def _gpus(remedy: Remedy) -> str:
    return count(remedy.gpus or 0, "GPU")


_SAYS = {
    Helps.LATER: lambda _, one: f"wait until {one.at:%Y-%m-%d %H:%M} UTC: an envelope opens then",
    Helps.FEWER: lambda _, one: f"ask for {_gpus(one)}: so many would be paid for",
    Helps.SMALLER: lambda _, one: (
        f"let it be as small as {_gpus(one)} (`--set malleable.min={one.gpus:g}"
        + ("" if one.step is None else f" --set malleable.step={one.step}")
        + "`): so many would be paid for"
    ),
    Helps.MAX_BORROW: lambda _, one: (
        f"borrow more (`--set funding.max_borrow={-(-(one.gpus or 0) // 1):g}`)"
    ),
    Helps.SPONSORS: lambda _, one: (
        f"ask a sponsor: {listed(one.tenants, _NAMED)} would lend {_gpus(one)}, with "
        + ("`allow_borrow: true` and " if one.max_borrow is None else "")
        + f"`sponsors: [{', '.join(one.tenants)}]`"
        + ("" if one.max_borrow is None else f" and `max_borrow: {one.max_borrow}`")
    ),
    Helps.BUDGET: _budget,
    Helps.LENDING: _lending,
    Helps.CAP: _cap,
    Helps.PREEMPTIBLE: lambda _, __: (
        "let it be preempted (`--set preemptible=true`): relatives would pay"
    ),
    Helps.ENDS: lambda _, one: (
        f"wait until about {one.at:%Y-%m-%d %H:%M} UTC: jobs that have the GPUs of these "
        "envelopes are expected to end by then"
    ),
    Helps.RUN_UNFUNDED: lambda _, __: "let it run on idle GPUs (`--set funding.unfunded=run`)",
}

_SLOT = """
    SELECT s.job_id FROM array_slots s JOIN jobs j ON j.id = s.job_id
     WHERE s.array_id = :id AND j.ended_at IS NULL
     ORDER BY EXISTS (SELECT FROM placements p WHERE p.job_id = j.id AND p.ended_at IS NULL),
              s.number
     LIMIT 1
"""

_JOB = f"""
    SELECT j.id, j.tenant, j.pool, j.ended_at,
           CASE WHEN jsonb_typeof(j.spec) = 'object'
                THEN coalesce(j.spec -> 'sensitive' = 'true'::jsonb, false)
                  OR coalesce(jsonb_typeof(j.spec -> 'malleable') = 'object', false)
                  OR coalesce(jsonb_typeof(j.spec -> 'gang') = 'object', false)
                ELSE false END AS sized,
           (SELECT p.borrowed_from FROM placements p
             WHERE p.job_id = j.id AND p.ended_at IS NULL AND {BORROWS} LIMIT 1) AS lender,
           EXISTS (SELECT FROM placements p WHERE p.job_id = j.id AND p.ended_at IS NULL) AS runs
      FROM jobs j WHERE j.id = :id
"""
