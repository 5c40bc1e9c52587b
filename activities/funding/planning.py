"""Who pays for the jobs of a pool, read for a plan, and written with what comes of it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.database import clock
from longshore.activities.failpoints import failpoint
from longshore.activities.funding.hours import share_factors
from longshore.activities.funding.quotas import quota_room
from longshore.activities.funding.rows import (
    close_charges,
    load_facts,
    lock_funding,
    open_charges,
    terms_of,
)
from longshore.activities.placements import BORROWS
from longshore.activities.snapshot import load_nodes, load_queue, load_running
from longshore.activities.stored_nodes import stored_labels
from longshore.models.funding import FundingTerms, PoolFunding
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.models.placement import CyclePlan, PackingPolicy
from longshore.models.pool import PoolSpec
from longshore.scheduling.funding.evaluate import Funded
from longshore.scheduling.funding.facts import Charge, Facts, Kind, Use, Wall
from longshore.scheduling.funding.holding import Ended
from longshore.scheduling.funding.news import News, news_of
from longshore.scheduling.funding.pool import (
    Asks,
    fewest,
    next_change,
    placed,
    pool_funding,
    settled,
)
from longshore.scheduling.funding.quotas import having
from longshore.scheduling.funding.sizes import MayGrow
from longshore.scheduling.order import queue_order


class Funding(NamedTuple):
    """What a cycle knows of who pays, where a tenant has a budget."""

    facts: Facts
    asks: Mapping[str, Asks]
    walls: tuple[Wall, ...] = ()
    factors: Mapping[str, float] = MappingProxyType({})
    first: frozenset[str] = frozenset()
    """For whom others gave way as their start was due, waiting or running since."""
    freed: frozenset[str] = frozenset()
    """Who waits and had others stopped for who pays for them."""
    shrunk: Mapping[str, int] = MappingProxyType({})
    """Jobs that wait to go on with so many GPUs: the part of them that is paid for."""


class Settlement(NamedTuple):
    """What a transaction changes of the charges."""

    funded: Funded
    begins: tuple[Use, ...] = ()
    """What it places."""
    must: frozenset[str] = frozenset()
    """Jobs of these that do not start unfunded."""
    next_change: timedelta | None = None
    """In what time an envelope begins or ends next."""
    news: tuple[News, ...] = ()
    """What jobs that run are to hear of it."""
    of: Callable[[Sequence[Use]], "Settlement"] | None = None
    """Works it out anew, for a part of what was to be placed."""

    def of_those(self, job_ids: Collection[str]) -> "Settlement":
        """Return what is to change where of these jobs alone begin: for no other anybody loses
        what pays for it."""
        begins = [use for use in self.begins if use.job_id in job_ids]
        if self.of is None or len(begins) == len(self.begins):
            return self
        return self.of(begins)

    async def settle(self, connection: AsyncConnection) -> None:
        """Close what no longer holds, and open what pays for jobs that run already."""
        closed = [each.charge for each in self.funded.ended]
        both = (*closed, *self.funded.opened)
        await lock_funding(
            connection, [each.envelope for each in both], [each.id for each in closed]
        )
        for reason, ended in groupby(sorted(self.funded.ended, key=_reason), _reason):
            await close_charges(connection, [each.charge.id for each in ended], reason)
        begin = {(use.job_id, use.attempt) for use in self.begins}
        others = [each for each in self.funded.opened if (each.job_id, each.attempt) not in begin]
        if not await _open_whole(connection, others):
            for _, charges in groupby(sorted(others, key=_attempt), _attempt):
                await _open_whole(connection, list(charges))
        if closed or others:
            await failpoint("settle_charges.before-commit")

    async def pay_for(
        self, connection: AsyncConnection, job_ids: Collection[str]
    ) -> frozenset[str]:
        """Open the charges of jobs that have been placed in this transaction. Return those that
        start only where somebody pays, where nobody does any more: they have to be taken back."""
        mine = [use for use in self.begins if use.job_id in job_ids]
        by_job: dict[str, list[Charge]] = {use.job_id: [] for use in mine}
        attempts = {(use.job_id, use.attempt) for use in mine}
        for charge in self.funded.opened:
            if _attempt(charge) in attempts:
                by_job[charge.job_id].append(charge)
        paid = {job_id for job_id, charges in by_job.items() if charges}
        if not await _open_whole(connection, [each for one in by_job.values() for each in one]):
            for job_id in sorted(paid):
                if not await _open_whole(connection, by_job[job_id]):
                    paid.discard(job_id)
        if paid:
            await failpoint("pay_charges.before-commit")
        return frozenset(by_job.keys() - paid) & self.must


RUNS_WITH_BUDGET = """EXISTS (
    SELECT FROM leases l JOIN nodes n ON n.id = l.node_id JOIN tenants t ON t.name = l.tenant
     WHERE l.ended_at IS NULL AND n.pool = :pool AND t.budget_since IS NOT NULL)"""
"""Whether a job of a tenant with a budget runs in a pool."""


RUNS_UNFUNDED = f"""CASE WHEN EXISTS (SELECT FROM tenants WHERE budget_since IS NOT NULL)
    THEN EXISTS (
        SELECT FROM placements p JOIN jobs j ON j.id = p.job_id
          JOIN tenants t ON t.name = j.tenant AND t.budget_since IS NOT NULL
          JOIN nodes n ON n.id = p.node_id
         WHERE p.ended_at IS NULL AND n.pool = :pool
           AND NOT ({BORROWS} AND EXISTS (
                SELECT FROM placements s
                 WHERE s.job_id = p.borrowed_from AND s.node_id = p.node_id AND s.epoch = p.epoch
                   AND s.ended_at IS NULL AND s.lendable AND s.gpu_indices @> p.gpu_indices))
           AND cardinality(p.gpu_indices) > (
                SELECT coalesce(sum(cardinality(c.gpu_indices)), 0) FROM charges c
                 WHERE (c.job_id, c.attempt, c.rank) = (p.job_id, p.attempt, p.rank)
                   AND c.ended_at IS NULL))
    ELSE false END"""
"""Whether in a pool a job of a tenant with a budget runs on GPUs that nobody pays for. One on a
lent spare of a gang that has just ended keeps these GPUs as this transaction commits."""


async def read_funding(
    connection: AsyncConnection, pool: str, queue: Iterable[JobRequest]
) -> Funding | None:
    """Return what decides who pays, with these jobs that wait; None where no tenant with a budget
    has a job in the pool, and no quota matters to who waits. All pools are read then: what pays
    for one job pays for no other, wherever that runs."""
    queue = tuple(queue)
    tenants = {job.tenant for job in queue if job.tenant}
    asked = {"pool": pool, "tenants": sorted(tenants)}
    concerns = (await connection.execute(text(_CONCERNS), asked)).one()
    walls: tuple[Wall, ...] = ()
    factors: dict[str, float] = {}
    if concerns.quotas:
        found = await quota_room(connection)
        walls = tuple(wall for wall in found if not tenants.isdisjoint(wall.below))
        factors = await share_factors(connection)
        factors = {name: factor for name, factor in factors.items() if name in tenants}
    facts = await load_facts(connection, None) if concerns.budgets else None
    if facts is None and not (walls or factors):
        return None
    sizes: dict[Kind, tuple[int, ...]] = {}
    if any(job.sensitive for job in queue):
        rows = await connection.execute(text(_SIZES), {"pool": pool})
        sizes = {_kind(row): tuple(row.sizes) for row in rows}
    if facts is None:
        facts = _NO_BUDGETS._replace(kinds=frozenset(sizes), sizes=sizes)
        return Funding(facts, {}, walls, factors)
    with_budget = {name for name, branch in facts.tenants.items() if branch.budget_since}
    ids = [job.id for job in queue if job.tenant in with_budget]
    rows = await connection.execute(text(_ASKS), {"ids": ids}) if ids else ()
    asks = {row.id: Asks(terms_of(row.funding), row.preemptible) for row in rows}
    gave_way = (await connection.execute(text(_FIRST), {"pool": pool})).all()
    first = frozenset(row.for_job for row in gave_way if row.cut)
    freed = frozenset(row.for_job for row in gave_way if not row.cut)
    ids = [job_id for job_id in asks if job_id in freed | first]
    rows = await connection.execute(text(_GETS), {"pool": pool, "ids": ids}) if ids else ()
    asks |= {row.for_job: asks[row.for_job]._replace(gets=_kind(row)) for row in rows}
    shrunk = {
        row.job_id: row.gpus for row in await connection.execute(text(_SHRUNK), {"pool": pool})
    }
    kinds = frozenset(_kind(row) for row in await connection.execute(text(_KINDS), {"pool": pool}))
    buys = bool(await connection.scalar(text(_BUYS), {"pool": pool}))
    facts = facts._replace(kinds=kinds, buys=buys, sizes=sizes)
    return Funding(facts, asks, walls, factors, first, freed, shrunk)


def _kind(row: Any) -> Kind:
    """Return of what kind a node is, by its type of GPU and labels."""
    return Kind(row.gpu_type, frozenset((stored_labels(row.labels) or {}).items()))


async def with_funding(
    connection: AsyncConnection, spec: PoolSpec, growing: Sequence[MayGrow] = ()
) -> PoolSpec:
    """Return a pool's settings with who pays for its jobs, where a tenant has a budget. For
    whoever plans what a cycle would, or what the jobs that are `growing` get."""
    if not await connection.scalar(text(_ANY)):
        return spec
    entries = await load_queue(connection, spec.name)
    queue = [entry.request for entry in entries if not entry.held]
    asking = [*queue, *(each.job for each in growing)]
    found = await read_funding(connection, spec.name, asking)
    if found is None:
        return spec
    nodes = await load_nodes(connection, spec.name)
    running = await load_running(connection, spec.name)
    now = await clock(connection)
    ordered = queue_order(queue, spec.packing, now, nodes, running)
    packing = funded_by(spec.packing, spec.name, found, ordered, now, growing, together=True)
    return spec.model_copy(update={"packing": packing})


async def funding_beside(
    connection: AsyncConnection,
    pool: PoolSpec,
    job: JobRequest,
    spec: JobSpec,
    nodes: Sequence[Node],
    now: datetime,
    before: Sequence[tuple[JobRequest, JobSpec]] = (),
    elsewhere: Iterable[tuple[JobRequest, Collection[str]]] = (),
) -> PoolFunding | None:
    """Return who would pay for a job that is not in its pool's queue, were it the last one there,
    behind those `before`, which are not in it either, and those that started `elsewhere`, which
    count for quotas alone; None where no budget or quota concerns it."""
    if await read_funding(connection, pool.name, [job]) is None:
        return None  # without reading a queue that may be long
    entries = await load_queue(connection, pool.name)
    more = [*before, (job, spec)]
    queue = [entry.request for entry in entries if not entry.held] + [each for each, _ in more]
    funding = await read_funding(connection, pool.name, queue)
    if funding is None:
        return None
    asks = {each.id: Asks(its.funding or FundingTerms(), its.preemptible) for each, its in more}
    walls = having(funding.walls, elsewhere)
    funding = funding._replace(asks={**funding.asks, **asks}, walls=walls)
    running = await load_running(connection, pool.name)
    packing = pool.packing.model_copy(update={"funding": None})  # as where it is asked who pays
    ordered = queue_order(queue, packing, now, nodes, running)
    return funded_by(packing, pool.name, funding, ordered, now, together=True).funding


def funded_by(
    packing: PackingPolicy,
    pool: str,
    funding: Funding,
    ordered: Sequence[JobRequest],
    now: datetime,
    growing: Sequence[MayGrow] = (),
    *,
    together: bool = False,
) -> PackingPolicy:
    """Return a policy with who pays for the jobs of its pool. The queue comes in its order.

    Who only starts jobs, as a cycle does, need not ask on which nodes they are paid for
    `together`.
    """
    found = pool_funding(
        funding.facts, pool, ordered, funding.asks, now, funding.walls, funding.factors, growing,
        funding.first, funding.shrunk, funding.freed, together=together,
    )  # fmt: skip
    return packing.model_copy(update={"funding": found})


def settlement_of(
    funding: Funding | None,
    pool: str,
    plan: CyclePlan,
    queue: Iterable[JobRequest],
    nodes: Iterable[Node],
    now: datetime,
    foreseen: PoolFunding | None = None,
) -> Settlement | None:
    """Return what is to change of the charges with a plan, which was made with who pays as was
    `foreseen`; None where no tenant has a budget."""
    if funding is None:
        return None
    facts, asks = funding.facts, funding.asks
    jobs, by_id = {job.id: job for job in queue}, {node.id: node for node in nodes}
    # Of a lent spare the gang goes on paying.
    own = [decision for decision in plan.placements if decision.borrowed_from is None]
    all_begin = placed(facts, pool, own, jobs, by_id, asks, now)
    changes = next_change(facts, now)

    def of(begins: Sequence[Use]) -> Settlement:
        must = {use.job_id for use in begins if asks.get(use.job_id, Asks()).must_be_funded}
        funded = settled(
            facts, begins, now, fewest(jobs[use.job_id] for use in begins),
            foreseen.foreseen if foreseen else MappingProxyType({}),
        )  # fmt: skip
        news = news_of(facts, funded, now, begins)
        return Settlement(funded, tuple(begins), frozenset(must), changes, news, of)

    return of(all_begin)


async def settle_now(connection: AsyncConnection, pool: str) -> None:
    """Have somebody pay at once for what a running job of a pool has come to have in this
    transaction, where somebody does."""
    funding = await read_funding(connection, pool, ())
    if funding is not None:
        funded = settled(funding.facts, (), await clock(connection))
        await Settlement(funded).settle(connection)


async def _open_whole(connection: AsyncConnection, charges: Sequence[Charge]) -> bool:
    """Open all of these charges, or none where the database refuses one."""
    if not charges:
        return True
    savepoint = await connection.begin_nested()
    refused = await open_charges(connection, charges)
    if refused:
        await savepoint.rollback()
        return False
    await savepoint.commit()
    return True


def _attempt(charge: Charge) -> tuple[str, int]:
    return charge.job_id, charge.attempt


def _reason(ended: Ended) -> str:
    taken = f", which {ended.for_job} takes over" if ended.for_job else ""
    return f"{ended.code}{taken}"


_ANY = "SELECT EXISTS (SELECT FROM tenants WHERE budget_since IS NOT NULL OR quotas <> '{}')"

_CONCERNS = f"""
    SELECT EXISTS (SELECT FROM tenants WHERE budget_since IS NOT NULL AND name = ANY(:tenants))
        OR (EXISTS (SELECT FROM tenants WHERE budget_since IS NOT NULL) AND {RUNS_WITH_BUDGET})
           AS budgets,
           EXISTS (SELECT FROM tenants WHERE quotas <> '{{}}') AS quotas
"""

_NO_BUDGETS = Facts({}, {})

_FIRST = """
    SELECT d.for_job, jsonb_exists(d.plan, 'cut') AS cut
      FROM preemptions d JOIN queue q ON (q.job_id, q.attempt) = (d.for_job, d.for_attempt)
     WHERE q.pool = :pool AND d.by_payer
     UNION
    SELECT d.for_job, true
      FROM placements p
      JOIN nodes n ON n.id = p.node_id AND n.pool = :pool
      JOIN preemptions d ON (d.for_job, d.for_attempt) = (p.job_id, p.attempt)
     WHERE p.ended_at IS NULL AND jsonb_exists(d.plan, 'cut')
"""

_GETS = """
    SELECT DISTINCT ON (d.for_job) d.for_job, n.gpu_type, n.labels
      FROM preemptions d
      JOIN queue q ON (q.job_id, q.attempt) = (d.for_job, d.for_attempt) AND q.pool = :pool
      JOIN nodes n ON n.id = d.plan #>> '{gains,0,node_id}' AND n.gpu_type IS NOT NULL
     WHERE d.for_job = ANY(:ids)
     ORDER BY d.for_job, d.decided_at DESC
"""

_KINDS = """
    SELECT DISTINCT gpu_type, labels
      FROM nodes
     WHERE pool = :pool AND state <> 'GONE' AND gpu_type IS NOT NULL
"""

_SIZES = """
    SELECT n.gpu_type, n.labels, array_agg(DISTINCT g.gpus ORDER BY g.gpus) AS sizes
      FROM nodes n
      JOIN LATERAL (SELECT count(*) AS gpus FROM gpus WHERE node_id = n.id) AS g ON g.gpus > 0
     WHERE n.pool = :pool AND n.state <> 'GONE' AND n.gpu_type IS NOT NULL
     GROUP BY n.gpu_type, n.labels
"""

_BUYS = "SELECT spec -> 'buying' ->> 'enabled' = 'true' FROM pools WHERE name = :pool"

_SHRUNK = """
    SELECT q.job_id, min((v.victim ->> 'gpus_left')::integer) AS gpus
      FROM queue q
      JOIN preemptions d ON (d.job_id, d.attempt) = (q.job_id, q.attempt - 1) AND d.by_payer
     CROSS JOIN LATERAL jsonb_array_elements(d.plan -> 'victims') AS v (victim)
     WHERE q.pool = :pool AND NOT jsonb_exists(d.plan, 'cut')
       AND v.victim ->> 'job_id' = q.job_id AND v.victim ->> 'gpus_left' IS NOT NULL
     GROUP BY q.job_id
"""

_ASKS = """
    SELECT id, CASE WHEN jsonb_typeof(spec) = 'object' THEN spec -> 'funding' END AS funding,
           spec -> 'preemptible' IS DISTINCT FROM 'false'::jsonb AS preemptible
      FROM jobs WHERE id = ANY(:ids)
"""
