"""Engines that go on under another registration of their node: which of them may, and which do."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.snapshot import to_mb, to_milli
from longshore.models.node import GPUInventory
from longshore.models.node_messages import Registration
from longshore.models.placement import PlacementKey


async def adoptable(
    connection: AsyncConnection, registration: Registration
) -> tuple[Sequence[PlacementKey], frozenset[int]]:
    """Return the engines that may go on, and the GPUs that these hold: of a node that is the same
    machine as before, and no smaller."""
    inventory = registration.inventory
    found = await connection.execute(
        text(_ADOPTABLE),
        {
            **_named(registration), "agent": registration.identity.agent_id,
            "pool": registration.identity.pool, "cpu": to_milli(inventory.cpus),
            "ram": to_mb(inventory.ram), "storage": or_none(to_mb, inventory.storage_bandwidth),
            "power": or_none(to_milli, inventory.power),
            "gpus": json.dumps(
                [gpu_row(registration.identity.node_id, gpu) for gpu in inventory.gpus]
            ),
        },
    )  # fmt: skip
    rows = found.all()
    keys = [PlacementKey(job_id=row.job_id, attempt=row.attempt) for row in rows]
    return keys, frozenset(index for row in rows for index in row.gpu_indices)


async def holding(
    connection: AsyncConnection, registration: Registration
) -> tuple[PlacementKey, ...]:
    """Return those of the engines that an agent names which hold their leases."""
    found = await connection.execute(text(_HOLDING), _named(registration))
    return tuple(PlacementKey(job_id=row.job_id, attempt=row.attempt) for row in found)


def _named(registration: Registration) -> dict[str, Any]:
    return {
        "id": registration.identity.node_id,
        "jobs": [each.job_id for each in registration.engines],
        "attempts": [each.attempt for each in registration.engines],
    }


def or_none(convert: Callable[[float], int], amount: float | None) -> int | None:
    return None if amount is None else convert(amount)


def gpu_row(node_id: str, gpu: GPUInventory) -> dict[str, Any]:
    instances = [instance.model_dump() for instance in gpu.mig_instances]
    return {
        "node": node_id, "index": gpu.index, "model": gpu.model, "uuid": gpu.uuid,
        "vram": to_mb(gpu.vram), "mig": None if gpu.mig is None else json.dumps(gpu.mig),
        "instances": json.dumps(instances) if instances else None,
    }  # fmt: skip


_CLAIMED = """
    unnest(CAST(:jobs AS text[]), CAST(:attempts AS integer[])) AS claimed (job_id, attempt)
"""
_HOLDING = f"""
    SELECT p.job_id, p.attempt
      FROM placements p JOIN {_CLAIMED} USING (job_id, attempt)
     WHERE p.node_id = :id AND p.ended_at IS NULL
     ORDER BY p.job_id
"""
_ADOPTABLE = f"""
    SELECT p.job_id, p.attempt, p.gpu_indices
      FROM placements p JOIN {_CLAIMED} USING (job_id, attempt)
      JOIN jobs j ON j.id = p.job_id
      JOIN nodes n ON n.id = p.node_id
     WHERE p.node_id = :id AND p.ended_at IS NULL AND p.rank = 0 AND NOT p.spare
       AND (p.borrowed_from IS NULL OR p.kept_at IS NOT NULL)
       AND jsonb_typeof(j.spec -> 'engine') = 'object'
       AND n.state IN ('READY', 'DRAINING') AND n.agent_id = :agent AND n.pool = :pool
       AND n.cpu_milli <= :cpu AND n.ram_mb <= :ram
       AND coalesce(n.storage_mb_s <= CAST(:storage AS bigint),
                    CAST(:storage AS bigint) IS NULL)
       AND coalesce(n.milliwatts <= CAST(:power AS bigint), CAST(:power AS bigint) IS NULL)
       AND NOT EXISTS (
           SELECT FROM gpus g
            WHERE g.node_id = p.node_id AND g.index = ANY (p.gpu_indices)
              AND NOT EXISTS (
                  SELECT FROM jsonb_to_recordset(CAST(:gpus AS jsonb))
                           AS now (index integer, model text, uuid text, vram bigint, mig text)
                   WHERE (now.index, now.model, now.uuid, now.vram)
                         = (g.index, g.model, g.uuid, g.vram_mb)
                     AND now.mig IS NULL AND g.mig IS NULL))
     ORDER BY p.job_id
"""
