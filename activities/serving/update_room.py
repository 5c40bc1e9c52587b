"""The replicas beside which a new one of their service waits for a GPU: each goes on until another
is ready in its place, as `scheduling.serving.replicas` has it."""

from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection


class OldReplica(NamedTuple):
    job_id: str
    tenant: str
    node_id: str


class Replaced(NamedTuple):
    """Those that go on until the new one is ready."""

    replicas: tuple[OldReplica, ...] = ()
    alone: bool = False
    """Whether nobody answers where one of them leaves first."""

    @property
    def job_ids(self) -> frozenset[str]:
        return frozenset(each.job_id for each in self.replicas)

    @property
    def says(self) -> str:
        """What has one of them leave before."""
        nobody = ", and nobody answers meanwhile" if self.alone else ""
        return (
            "have an old replica leave first: `unavailable: 1` in the file of its service, and "
            f"`longshore serve FILE`{nobody}"
        )


async def replaced_by(connection: AsyncConnection, job_id: str) -> Replaced:
    """Return the replicas with a GPU that the job of a replica which waits is to replace; none
    where one of them leaves before it is ready, and of any other job."""
    rows = (await connection.execute(text(_REPLACED), {"job_id": job_id})).all()
    old = tuple(OldReplica(row.job_id, row.tenant, row.node_id) for row in rows)
    return Replaced(old, any(row.replicas == 1 for row in rows))


_REPLACED = """
    SELECT o.job_id, j.tenant, p.node_id, s.replicas
      FROM replicas r
      JOIN services s ON s.name = r.service AND s.revision = r.revision AND s.state = 'RUNNING'
      JOIN service_revisions v ON v.service = s.name AND v.number = s.revision
      JOIN replicas o ON o.service = s.name AND o.revision <> s.revision
       AND o.ended_at IS NULL AND o.stopping_at IS NULL
      JOIN jobs j ON j.id = o.job_id
      JOIN placements p ON p.job_id = o.job_id AND p.rank = 0 AND p.ended_at IS NULL
     WHERE r.job_id = :job_id AND r.stopping_at IS NULL
       AND coalesce(v.spec ->> 'unavailable', '0') = '0'
     ORDER BY o.job_id
"""
