"""What nodes hold by their agents' word: data sets, images, environments."""

import json

from sqlalchemy import text
from temporalio import activity

from longshore.activities.database import Database
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.models.node_messages import Holdings


class HoldingActivities:
    """Activity of `NodeWorkflow` on the capacity database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @activity.defn
    @reports_errors
    async def store_holdings(self, request: Holdings) -> None:
        """Record what a node holds, in place of what was recorded as held there.

        All in one transaction, so a repeat changes nothing. What jobs were seen to use there by
        name stays. A registration that is over says nothing any more: its machine may be another.
        """
        rows = [each.model_dump(mode="json") for each in request.report.held]
        async with self._database.transaction() as connection:
            # Two reports of one node come one after the other.
            live = await connection.scalar(
                text(_LIVE), {"node": request.node_id, "epoch": request.epoch}
            )
            if live is None:
                return
            await connection.execute(
                text("DELETE FROM node_data WHERE node_id = :node AND held"),
                {"node": request.node_id},
            )
            await connection.execute(
                text(_HOLDS), {"node": request.node_id, "rows": json.dumps(rows)}
            )
            await failpoint("store_holdings.before-commit")
        await failpoint("store_holdings.after-commit")


_LIVE = """
    SELECT id FROM nodes
     WHERE id = :node AND epoch = :epoch AND state IN ('READY', 'DRAINING') FOR NO KEY UPDATE
"""

_HOLDS = """
    INSERT INTO node_data (node_id, name, tenant, source, bytes, total, used_at, held)
    SELECT DISTINCT ON (name, tenant, source)
           :node, name, tenant, source, bytes, greatest(bytes, total),
           coalesce(used_at, clock_timestamp()), true
      FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
           name text, tenant text, source text, bytes bigint, total bigint, used_at timestamptz)
     ORDER BY name, tenant, source, bytes DESC
    ON CONFLICT (node_id, name, tenant, source)
       DO UPDATE SET bytes = excluded.bytes, total = excluded.total, used_at = excluded.used_at,
                     held = true
"""
"""What a job was seen to use by a bare name may be what the agent means."""
