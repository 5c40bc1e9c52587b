"""Whether a pool has a node that could hold a job, for who submits one: few nodes tell of most."""

from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.snapshot import load_nodes
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.scheduling.packer import could_ever_place

_FIRST = 64
"""Nodes that are read at first: most jobs fit on many nodes, and one of them is enough."""


async def nodes_if_none_could_hold(
    connection: AsyncConnection, pool: str, job: JobRequest, now: datetime
) -> tuple[Node, ...] | None:
    """Return None where nodes of the pool could hold the job when empty; otherwise all of its
    nodes, by id, to say why not.

    A job on one node needs one such node: all are read where it is not among the first. The
    nodes of a gang have to be together: all are read.
    """
    if job.gang is None:
        some = (await connection.scalars(text(_SOME), {"pool": pool, "first": _FIRST})).all()
        nodes = await load_nodes(connection, pool, some)
        if could_ever_place(job, nodes, now):
            return None
        if len(some) < _FIRST:  # these are all
            return nodes
    nodes = await load_nodes(connection, pool)
    return None if could_ever_place(job, nodes, now) else nodes


_SOME = """
    SELECT id FROM nodes
     WHERE pool = :pool AND state <> 'GONE'
     ORDER BY id COLLATE "C"
     LIMIT :first
"""
