"""Placements as they are signalled to their jobs, from their rows."""

from collections.abc import Sequence

from sqlalchemy import RowMapping

from models.placement import Placement, Rank


def placement_of(rows: Sequence[RowMapping]) -> Placement:
    """Return a placement as it is signalled to its job, from its rows joined with their nodes'.

    One row for each node, by rank.
    """
    first, ranks = rows[0], tuple(_rank(row) for row in rows)
    return Placement(
        job_id=first["job_id"], attempt=first["attempt"], rank=first["rank"],
        node_id=first["node_id"], epoch=first["epoch"],
        gpu_indices=tuple(first["gpu_indices"]), slices=first["slices"],
        cycle_id=first["cycle_id"], placed_at=first["placed_at"],
        node_expires_at=first["expires_at"],
        simulated=first["simulated"], reason=first["decision"].get("reason", ""),
        ranks=ranks if len(ranks) > 1 else (),
    )  # fmt: skip


def _rank(row: RowMapping) -> Rank:
    return Rank(
        rank=row["rank"], node_id=row["node_id"], epoch=row["epoch"],
        gpu_indices=tuple(row["gpu_indices"]), address=row["address"],
        expires_at=row["expires_at"],
    )  # fmt: skip
