"""Reading why a pool bought, or did not, and what became of its blocks, for people."""

from sqlalchemy import text

from activities.database import Database
from models.block_end import BlockDecision
from models.spending import BuyingRecord


class BuyingReasons:
    """Read-only. Every call may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_pool(self, pool: str) -> BuyingRecord | None:
        """Return what a pool decided last about buying; None where it never has."""
        async with self._database.transaction() as connection:
            found = await connection.scalar(
                text("SELECT buying_decision FROM pools WHERE name = :pool"), {"pool": pool}
            )
        return None if found is None else BuyingRecord.model_validate(found)

    async def blocks_of_job(self, job_id: str) -> tuple[BlockDecision, ...]:
        """Return what was decided last about each block that a job runs on, by their ids."""
        async with self._database.transaction() as connection:
            found = await connection.execute(text(_BLOCKS_OF_JOB), {"id": job_id})
            return tuple(
                BlockDecision.model_validate({**row.decision, "block_id": row.id}) for row in found
            )


_BLOCKS_OF_JOB = """
    SELECT DISTINCT ON (b.id) b.id, b.decision
      FROM placements p
      JOIN nodes n ON n.id = p.node_id
      JOIN blocks b ON b.id = n.block_id
     WHERE p.job_id = :id AND p.ended_at IS NULL AND b.decision IS NOT NULL
     ORDER BY b.id
"""
