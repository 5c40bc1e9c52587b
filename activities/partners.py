"""Elements of arrays that wait for those with the same index of arrays before theirs.

An element of the later array is BLOCKED, until the transaction that records the end of its partner
makes it WAITING or SKIPPED. Elements are counted and settled in statements for many at a time;
which mixture of ends does what is decided by `scheduling.partners.rulings`.

Locks are taken in this order: elements of an array, the edges to the arrays behind it, elements of
these, and so on; rows of arrays and DAGs, which say who has to be signalled, after the commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import RowMapping, text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.dag_rows import index_ranges, jobs_of, mark_dag_poked, state_of
from longshore.activities.database import Database
from longshore.activities.pokes import mark_array_poked
from longshore.activities.signals import Signals
from longshore.models.dag import DagSpec, Join
from longshore.models.dag_edges import Condition
from longshore.models.dag_view import StepState
from longshore.models.elements import ElementState
from longshore.scheduling.dag import EdgeState, Elements, Graph, edge_state, joined, others_of
from longshore.scheduling.partners import elements_at_first, indices_of, rulings


@dataclass
class Woken:
    """Who has to look at what was settled."""

    arrays: set[str] = field(default_factory=set[str])
    """Whose elements may start, or have ended."""
    dags: set[str] = field(default_factory=set[str])
    """Of an array that may be submitted now."""


async def elements_of(
    connection: AsyncConnection,
    dag_id: str,
    spec: DagSpec,
    graph: Graph,
    jobs: Mapping[str, RowMapping],
) -> Mapping[str, Elements]:
    """Return for each array that is not submitted how its elements' partners have ended."""
    found: dict[str, Elements] = {}
    for name, ups in graph.partners.items():
        array = spec.jobs[name].array
        if jobs[name]["state"] != "WAITING" or array is None:
            continue
        if jobs[name]["kept_from"] is None and not any(jobs[up]["job_id"] for up in ups):
            # Known from the spec. Who asks holds the DAG's row, for which ends of jobs wait.
            found[name] = elements_at_first(spec, name)
            continue
        rows = await connection.execute(
            text(_ALIKE),
            {
                "id": dag_id, "name": name, "kept_from": jobs[name]["kept_from"],
                **index_ranges(array),
            },
        )  # fmt: skip
        alike = {tuple(map(_as_edge, row.alike)): row.number for row in rows}
        found[name] = Elements(alike, kept=len(indices_of(array)) - sum(alike.values()))
    return found


def _as_edge(state: str | None) -> EdgeState | None:
    return None if state is None else EdgeState[state]


@dataclass(frozen=True)
class Before:
    """What an array is to its DAG before it is put on record."""

    dag_id: str
    name: str
    blocked: bool
    """Its elements come after those of others."""
    kept_from: str | None
    """The array whose elements that succeeded stay."""


async def before_elements(connection: AsyncConnection, array_id: str) -> Before | None:
    """Return what an array is to its DAG; None for one of none."""
    row = (await connection.execute(text(_BEFORE), {"id": array_id})).mappings().one_or_none()
    if row is None:
        return None
    blocked = row["element_join"] is not None
    return Before(row["dag_id"], row["name"], blocked, row["kept_from"])


async def settle_at_first(connection: AsyncConnection, array_id: str, before: Before) -> Woken:
    """Settle the elements of an array that has just been put on record, and those behind it."""
    woken = Woken()
    if before.blocked:
        # Whoever records ends of partners holds these rows: they see our elements, or we theirs.
        row = {"dag": before.dag_id, "name": before.name}
        await connection.execute(text(_LOCK_EDGES_TO), row)
        await _settle(connection, array_id, before.dag_id, before.name, None)
    if before.blocked or before.kept_from is not None:
        await _follow(connection, array_id, None, woken)  # of what is skipped, or kept
    return woken


# --- ends of elements, and of arrays ----------------------------------------------------------


def is_repeat() -> bool:
    """Return whether a try of this activity before may have committed, and not told of it."""
    return activity.in_activity() and activity.info().attempt > 1


async def settle_followers(
    connection: AsyncConnection, array_id: str, indices: Sequence[int] | None
) -> Woken:
    """Settle the elements of other arrays that wait for these of an array.

    A repeat of the step does not know which ended at its first try, whose signals may be lost: it
    looks at all of the array, changes nothing, and wakes whoever waits for it.
    """
    woken = Woken()
    if is_repeat():
        indices = None
    if indices is None or indices:
        await _follow(connection, array_id, indices, woken)
    return woken


async def _follow(
    connection: AsyncConnection, array_id: str, indices: Sequence[int] | None, woken: Woken
) -> None:
    todo: list[tuple[str, Sequence[int] | None]] = [(array_id, indices)]
    again = is_repeat()
    while todo:
        upstream, some = todo.pop(0)
        locked = await connection.execute(text(_LOCK_EDGES_FROM), {"id": upstream})
        if not locked.all():
            continue
        # Read after the lock: an array may have come onto the record until then.
        rows = (await connection.execute(text(_FOLLOWERS), {"id": upstream})).mappings().all()
        for row in rows:
            if row["state"] == "WAITING":
                woken.dags.add(row["dag_id"])
            if not row["on_record"]:
                continue
            job_id = row["job_id"]
            changed, skipped = await _settle(connection, job_id, row["dag_id"], row["name"], some)
            if changed or again:
                woken.arrays.add(job_id)
            if skipped:
                todo.append((job_id, skipped))


async def _settle(
    connection: AsyncConnection,
    array_id: str,
    dag_id: str,
    name: str,
    indices: Sequence[int] | None,
) -> tuple[int, list[int]]:
    """Make blocked elements of an array WAITING or SKIPPED where their partners' ends say so;
    return how many, and which were skipped."""
    asked: dict[str, Any] = {"array": array_id, "dag": dag_id, "name": name}
    only = ""
    if indices is not None:
        asked["indices"], only = list(indices), _ONLY
    # Two partners of one element may end at the same time: the second sees the end of the first.
    await connection.execute(text(_LOCK_BLOCKED.format(only=only)), asked)
    job = (await connection.execute(text(_TERMS), asked)).mappings().one()
    others = _as_edge(job["others"])
    ruled = rulings(Join(job["element_join"]), others)
    found = await connection.execute(
        text(_SETTLE.format(only=only)),
        {
            **asked,
            "satisfied": [each.satisfied for each in ruled],
            "open": [each.open for each in ruled],
            "dead": [each.dead for each in ruled],
            "states": [each.state.value for each in ruled],
        },
    )  # fmt: skip
    rows = found.mappings().all()
    skipped = [row["index"] for row in rows if row["state"] == ElementState.SKIPPED]
    return len(rows), sorted(skipped)


async def settle_by_ends(database: Database, signals: Signals, dag_id: str, graph: Graph) -> None:
    """Tell the arrays that were submitted how whole arrays before them, and other jobs, have
    ended, where that settles elements. In a transaction for each, without the DAG's row."""
    if not graph.partners:
        return
    async with database.transaction() as connection:
        now = {each["name"]: state_of(each) for each in await jobs_of(connection, dag_id)}
    woken = Woken()
    for name, ups in graph.partners.items():
        if now[name] is not StepState.SUBMITTED:
            continue
        async with database.transaction() as connection:
            asked = {"dag": dag_id, "name": name}
            locked = await connection.execute(text(_LOCK_EDGES_TO), asked)
            known = {row.upstream: row.whole for row in locked}
            jobs = {each["name"]: each for each in await jobs_of(connection, dag_id)}
            states = {each: state_of(job) for each, job in jobs.items()}
            if states[name] is not StepState.SUBMITTED:
                continue
            others = others_of(graph, name, states).values()
            worth = joined(graph.joins[name], others).name if others else None
            whole = {up: edge_state(Condition.SUCCESS, states[up]).name for up in ups}
            if whole == known and worth == jobs[name]["others"]:
                if is_repeat():  # whom the first try settled may not have been told
                    woken.arrays.add(jobs[name]["job_id"])
                continue
            row = {**asked, "ups": [*whole], "wholes": [*whole.values()], "others": worth}
            await connection.execute(text(_SET_WHOLE), row)
            await connection.execute(text(_SET_OTHERS), row)
            array_id = jobs[name]["job_id"]
            if await connection.scalar(text(_ON_RECORD), {"id": array_id}):
                changed, skipped = await _settle(connection, array_id, dag_id, name, None)
                if changed:
                    woken.arrays.add(array_id)
                if skipped:
                    await _follow(connection, array_id, skipped, woken)
    await wake(database, signals, woken)


async def wake(database: Database, signals: Signals, woken: Woken) -> None:
    """Signal those that have to look, each once until it has looked. To be called after the
    commit; at a repeat of the step they are signalled again."""
    again = is_repeat()
    for dag_id in sorted(woken.dags):
        async with database.transaction() as connection:
            first = await mark_dag_poked(connection, dag_id)
        if first or again:
            await signals.poke_dag(dag_id)
    for array_id in sorted(woken.arrays):
        async with database.transaction() as connection:
            useful = await connection.scalar(text(_WANTS_A_LOOK), {"id": array_id})
            first = bool(useful) and await mark_array_poked(connection, array_id)
        if first or (again and useful):
            await signals.poke_array(array_id)


_ALIKE = """
    SELECT alike, count(*) AS number
      FROM (SELECT i.index,
                   array_agg(CASE WHEN u.state = 'SUCCEEDED' THEN 'SATISFIED'
                                  WHEN u.state IN ('FAILED', 'CANCELLED', 'SKIPPED') THEN 'DEAD'
                                  WHEN r.has THEN 'OPEN' END
                             ORDER BY c.upstream COLLATE "C") AS alike
              FROM (SELECT DISTINCT n AS index
                      FROM unnest(CAST(:firsts AS integer[]), CAST(:lasts AS integer[]),
                                  CAST(:steps AS integer[])) AS o (first, last, step),
                           generate_series(o.first, o.last, o.step) n) i
              JOIN element_edges c ON c.dag_id = :id AND c.name = :name
              JOIN dag_jobs d ON d.dag_id = c.dag_id AND d.name = c.upstream
              LEFT JOIN elements u ON u.array_id = d.job_id AND u.index = i.index AND u.newest
             CROSS JOIN LATERAL (
                   SELECT EXISTS (SELECT FROM unnest(c.firsts, c.lasts, c.steps)
                                              AS r (first, last, step)
                                   WHERE i.index BETWEEN r.first AND r.last
                                     AND (i.index - r.first) % r.step = 0) AS has) r
             WHERE NOT EXISTS (
                   SELECT FROM elements k
                    WHERE k.array_id = :kept_from AND k.index = i.index AND k.newest
                      AND k.state = 'SUCCEEDED')
             GROUP BY i.index) each
     GROUP BY alike
"""

_BEFORE = "SELECT dag_id, name, element_join, kept_from FROM dag_jobs WHERE job_id = :id"

_LOCK_EDGES_TO = """
    SELECT upstream, whole FROM element_edges
     WHERE dag_id = :dag AND name = :name ORDER BY upstream FOR UPDATE
"""

_LOCK_EDGES_FROM = """
    SELECT c.name FROM dag_jobs a
      JOIN element_edges c ON c.dag_id = a.dag_id AND c.upstream = a.name
     WHERE a.job_id = :id ORDER BY c.name FOR SHARE OF c
"""

_FOLLOWERS = """
    SELECT b.dag_id, b.name, b.job_id, b.state,
           EXISTS (SELECT FROM arrays WHERE id = b.job_id) AS on_record
      FROM dag_jobs a
      JOIN element_edges c ON c.dag_id = a.dag_id AND c.upstream = a.name
      JOIN dag_jobs b ON b.dag_id = c.dag_id AND b.name = c.name
     WHERE a.job_id = :id ORDER BY c.name
"""

_ON_RECORD = "SELECT EXISTS (SELECT FROM arrays WHERE id = :id)"

_TERMS = "SELECT element_join, others FROM dag_jobs WHERE dag_id = :dag AND name = :name"

_SET_WHOLE = """
    UPDATE element_edges c SET whole = l.whole
      FROM unnest(CAST(:ups AS text[]), CAST(:wholes AS text[])) AS l (up, whole)
     WHERE c.dag_id = :dag AND c.name = :name AND c.upstream = l.up
"""

_SET_OTHERS = "UPDATE dag_jobs SET others = :others WHERE dag_id = :dag AND name = :name"

_ONLY = "AND e.index = ANY (CAST(:indices AS integer[]))"

_LOCK_BLOCKED = """
    SELECT FROM elements e WHERE e.array_id = :array AND e.state = 'BLOCKED' {only}
     ORDER BY e.index FOR UPDATE
"""

_SETTLE = """
    WITH partners AS (
        SELECT e.index, e.attempt, c.upstream, u.state,
               CASE WHEN u.state = 'SUCCEEDED' THEN 'SATISFIED'
                    WHEN u.state IN ('FAILED', 'CANCELLED', 'SKIPPED') THEN 'DEAD'
                    WHEN r.has THEN CASE c.whole WHEN 'OPEN' THEN 'OPEN' ELSE 'DEAD' END
                    WHEN c.extra_waits THEN c.whole END AS worth,
               r.has
          FROM elements e
          JOIN element_edges c ON c.dag_id = :dag AND c.name = :name
          JOIN dag_jobs d ON d.dag_id = c.dag_id AND d.name = c.upstream
          LEFT JOIN elements u ON u.array_id = d.job_id AND u.index = e.index AND u.newest
         CROSS JOIN LATERAL (
               SELECT EXISTS (SELECT FROM unnest(c.firsts, c.lasts, c.steps)
                                          AS r (first, last, step)
                               WHERE e.index BETWEEN r.first AND r.last
                                 AND (e.index - r.first) % r.step = 0) AS has
               OFFSET 0) r
         WHERE e.array_id = :array AND e.state = 'BLOCKED' {only}
    ), known AS (
        SELECT index, attempt,
               coalesce(bool_or(worth = 'SATISFIED'), false) AS satisfied,
               coalesce(bool_or(worth = 'OPEN'), false) AS open,
               coalesce(bool_or(worth = 'DEAD'), false) AS dead,
               min(CASE WHEN worth <> 'DEAD' THEN NULL
                        WHEN has THEN 'element ' || index || ' of ' || upstream || ', which '
                             || CASE state WHEN 'FAILED' THEN 'failed'
                                           WHEN 'CANCELLED' THEN 'was cancelled'
                                           WHEN 'SKIPPED' THEN 'was skipped'
                                           ELSE 'never ran' END
                        ELSE 'all of ' || upstream || ', of which not all succeeded' END) AS why
          FROM partners GROUP BY index, attempt
    )
    UPDATE elements e
       SET state = l.state,
           message = CASE l.state WHEN 'SKIPPED'
                     THEN coalesce('needs the success of ' || k.why, 'no condition can hold')
                     ELSE '' END,
           ended_at = CASE l.state WHEN 'SKIPPED' THEN clock_timestamp() END
      FROM known k
      JOIN unnest(CAST(:satisfied AS boolean[]), CAST(:open AS boolean[]),
                  CAST(:dead AS boolean[]), CAST(:states AS text[]))
           AS l (satisfied, open, dead, state)
           ON (l.satisfied, l.open, l.dead) = (k.satisfied, k.open, k.dead)
     WHERE e.array_id = :array AND e.index = k.index AND e.attempt = k.attempt
    RETURNING e.index, e.state
"""
"""OFFSET 0: asked once for an element, and not at each place that names it. The end does not look
at the state again: the planner would go through all blocked elements for each."""

_WANTS_A_LOOK = """
    SELECT a.cancelled IS NOT NULL
        OR (s.open < a.slots AND w.waiting > s.queued)
        OR (s.open = 0 AND w.waiting = 0 AND NOT EXISTS (
            SELECT FROM elements WHERE array_id = a.id AND state = 'BLOCKED'))
      FROM arrays a
     CROSS JOIN LATERAL (
           SELECT count(*) AS open, count(*) FILTER (WHERE o.attempt = 0) AS queued
             FROM array_slots o LEFT JOIN jobs j ON j.id = o.job_id
            WHERE o.array_id = a.id AND o.state <> 'LOST' AND j.ended_at IS NULL) s
     CROSS JOIN LATERAL (
           SELECT count(*) AS waiting FROM (
                SELECT FROM elements WHERE array_id = a.id AND state = 'WAITING'
                 LIMIT 1000) ready) w
     WHERE a.id = :id
"""
"""A slot that waits for GPUs will take an element by itself, and one that ends wakes its array."""
