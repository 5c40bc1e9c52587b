"""How elements of an array are cancelled."""

from sqlalchemy import text

from longshore.activities.database import Database
from longshore.activities.failpoints import failpoint
from longshore.activities.partners import settle_followers, wake
from longshore.activities.signals import Signals
from longshore.models.array import parse_indices
from longshore.models.array_messages import CancelElements, ElementsReply, StopElements
from longshore.models.elements import ElementState
from longshore.models.placement import PlacementKey


async def cancel_elements(
    database: Database, signals: Signals, request: CancelElements
) -> ElementsReply:
    """Cancel elements: those that wait at once, those in a batch by their slot. A repeat finds
    them cancelled."""
    try:
        ranges = parse_indices(request.indices)
    except ValueError as error:
        return ElementsReply(refusal=str(error))
    asked = {
        "id": request.array_id, "why": request.reason or "cancelled by its user",
        "firsts": [each.first for each in ranges], "lasts": [each.last for each in ranges],
        "steps": [each.step for each in ranges],
    }  # fmt: skip
    async with database.transaction() as connection:
        found = (await connection.execute(text(_ASKED), asked)).mappings().all()
        if not found:
            return ElementsReply(
                refusal=f"the array has no element {request.indices}: `longshore job "
                f"{request.array_id}` says which it has"
            )
        running = [each for each in found if each["state"] == ElementState.RUNNING]
        waiting = [
            each["index"]
            for each in found
            if each["state"] in (ElementState.BLOCKED, ElementState.WAITING)
        ]
        await connection.execute(text(_CANCEL_ASKED), {**asked, "waiting": waiting,
                                 "running": [each["index"] for each in running]})  # fmt: skip
        woken = await settle_followers(connection, request.array_id, waiting)
        await failpoint("cancel_elements.before-commit")
    await wake(database, signals, woken)
    by_claim: dict[tuple[str, int, int], list[int]] = {}
    for each in running:
        claim = (each["job_id"], each["job_attempt"], each["batch"])
        by_claim.setdefault(claim, []).append(each["index"])
    stops = {
        job_id: StopElements(
            key=PlacementKey(job_id=job_id, attempt=attempt), batch=batch,
            indices=tuple(indices), reason=str(asked["why"]),
        )
        for (job_id, attempt, batch), indices in by_claim.items()
    }  # fmt: skip
    await signals.tell_jobs("stop_elements", list(stops.items()))
    return ElementsReply(
        waiting=len(waiting), running=len(running),
        ended=len(found) - len(waiting) - len(running),
    )  # fmt: skip


_ASKED = """
    SELECT e.index, e.state, e.job_id, e.job_attempt, e.batch
      FROM elements e
     WHERE e.array_id = :id AND e.newest
       AND EXISTS (SELECT FROM unnest(CAST(:firsts AS integer[]), CAST(:lasts AS integer[]),
                                      CAST(:steps AS integer[])) AS r (first, last, step)
                    WHERE e.index BETWEEN r.first AND r.last
                      AND (e.index - r.first) % r.step = 0)
     ORDER BY e.index
       FOR UPDATE
"""

_CANCEL_ASKED = """
    UPDATE elements
       SET cancel = true,
           state = CASE WHEN index = ANY (:waiting) THEN 'CANCELLED' ELSE state END,
           message = CASE WHEN index = ANY (:waiting) THEN :why ELSE message END,
           ended_at = CASE WHEN index = ANY (:waiting) THEN clock_timestamp() END
     WHERE array_id = :id AND newest AND (index = ANY (:waiting) OR index = ANY (:running))
"""
