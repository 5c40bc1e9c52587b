"""How a job that waits would fare were it planned alone now, and what would help it.

All is read in one snapshot, and planned once that is over: neither the database nor whoever else
is answered by this process waits for a plan.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.handover import closed_nodes, ends_unless_sold
from longshore.activities.database import clock
from longshore.activities.lending import lendable_on
from longshore.activities.locality import with_locality
from longshore.activities.serving.engine_turns import how_to_have_a_turn
from longshore.activities.serving.update_room import Replaced, replaced_by
from longshore.activities.snapshot import load_running
from longshore.activities.stops import read_stops
from longshore.models.job_request import FILLS, JobRequest, RecentJobs
from longshore.models.node import Node
from longshore.models.placement import Decision
from longshore.models.pool import PoolSpec
from longshore.scheduling.advice import advice, kind_of_node
from longshore.scheduling.funding.where_paid import where_paid
from longshore.scheduling.job_changes import agent_command
from longshore.scheduling.lending import LendableSpare, why_on_no_spare
from longshore.scheduling.packer import place
from longshore.scheduling.unready_nodes import look_past_states


class Alone(NamedTuple):
    """How a job fares alone; nothing of one that is not planned."""

    last: Decision | None
    """What the last cycle said of it, with what else is in the way of nodes that are not ready."""
    decision: Decision | None = None
    helps: tuple[str, ...] = ()
    kind: str = ""
    agent: str = ""
    also: str = ""
    may_stop: bool = False


class Scene(NamedTuple):
    """What was read of a job's pool."""

    pool: PoolSpec
    job: JobRequest
    nodes: Sequence[Node]
    recent: Sequence[RecentJobs]
    ends: Mapping[str, datetime]
    spares: tuple[Mapping[str, Node], Sequence[LendableSpare]]
    stops: Callable[[AbstractSet[str], datetime], bool]
    closed: Collection[str]
    turns: tuple[str, ...]
    """How one that only fills has a turn."""
    old: Replaced
    """Replicas that go on until the job is ready."""
    beside: Collection[str]
    """Nodes on which others than these run, where there are any."""
    now: datetime

    def alone(self, last: Decision | None) -> Alone:
        """Return how the job fares, with what the `last` cycle said of it. It plans."""
        pool, job, nodes, now = self.pool, self.job, self.nodes, self.now
        (paid,) = where_paid([job], pool.packing.funding)
        decision = place(paid, nodes, pool.packing, now, recent=self.recent)
        decision, last = look_past_states(
            decision, last, paid, nodes, pool.packing, now, self.ends
        )
        could = {each.node_id for each in decision.rejections if not each.permanent}
        may_stop = self.stops(could, now)
        helps = advice(
            job, decision.rejections, nodes, now, pool=pool.name, may_stop=may_stop,
            may_end=not self.old.replicas or not could.isdisjoint(self.beside),
            policy=pool.packing, closed=self.closed,
        )  # fmt: skip
        if any(each.node_id in could for each in self.old.replicas):
            helps = (self.old.says, *helps)
        no_node = bool(decision.rejections) and not could
        return Alone(
            last, decision, helps + self.turns,
            kind=kind_of_node(job, decision.rejections, nodes, now) if no_node else "",
            agent=agent_command(job, pool.name),
            also=FILLS if job.fills else why_on_no_spare(job, *self.spares, pool.packing, now),
            may_stop=may_stop,
        )  # fmt: skip


async def read_scene(
    connection: AsyncConnection, pool: PoolSpec, job: JobRequest, nodes: tuple[Node, ...],
    recent: Sequence[RecentJobs],
) -> Scene:  # fmt: skip
    """Return what tells how a job fares alone; `nodes` and `recent` are those of its pool."""
    stops = await read_stops(connection, pool, job, nodes)
    (job,), nodes = await with_locality(connection, pool.name, pool.packing, [job], nodes)
    old = await replaced_by(connection, job.id)
    running = await load_running(connection, pool.name) if old.replicas else ()
    lends = pool.packing.funding is not None and not job.fills
    return Scene(
        pool, job, nodes, recent,
        ends=await ends_unless_sold(connection, pool.name),
        spares=await lendable_on(connection, pool.name, nodes) if lends else ({}, ()),
        stops=stops,
        closed=await closed_nodes(connection, pool.name),
        turns=await how_to_have_a_turn(connection, job.id) if job.fills else (),
        old=old,
        beside=frozenset(each.node_id for each in running if each.job_id not in old.job_ids),
        now=await clock(connection),
    )  # fmt: skip
