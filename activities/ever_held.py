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


class EverHeld:
    """What the nodes of a pool could ever hold, for as many jobs as one transaction asks about."""

    def __init__(self, connection: AsyncConnection, pool: str) -> None:
        self.connection = connection
        self._pool = pool
        self._some: tuple[Node, ...] | None = None
        self._all: tuple[Node, ...] | None = None

    async def nodes_if_none_could(self, job: JobRequest, now: datetime) -> tuple[Node, ...] | None:
        """Return None where nodes of the pool could hold the job when empty; otherwise all of its
        nodes, by id, to say why not.

        A job on one node needs one such node: all are read where it is not among the first. The
        nodes of a gang have to be together: all are read.
        """
        if job.gang is None:
            if self._some is None:
                asked = {"pool": self._pool, "first": _FIRST}
                some = (await self.connection.scalars(text(_SOME), asked)).all()
                self._some = await load_nodes(self.connection, self._pool, some)
                if len(some) < _FIRST:  # these are all
                    self._all = self._some
            if could_ever_place(job, self._some, now):
                return None
            if self._all is self._some:
                return self._all
        if self._all is None:
            self._all = await load_nodes(self.connection, self._pool)
        return None if could_ever_place(job, self._all, now) else self._all


async def nodes_if_none_could_hold(
    connection: AsyncConnection, pool: str, job: JobRequest, now: datetime
) -> tuple[Node, ...] | None:
    """Return the same of one job."""
    return await EverHeld(connection, pool).nodes_if_none_could(job, now)


_SOME = """
    SELECT id FROM nodes
     WHERE pool = :pool AND state <> 'GONE'
     ORDER BY id COLLATE "C"
     LIMIT :first
"""
