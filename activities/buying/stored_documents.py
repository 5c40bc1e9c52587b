"""What is stored of a purchase, of a block and of a pool's decision to buy as JSON.

Somebody may have written into the row by hand, or another version. What comes is reckoned without
such a purchase, `longshore doctor` names it, and while it is under way its pool buys nothing: that
might be bought twice.
"""

import logging
from functools import lru_cache
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.stored_pools import pool_and_trouble
from longshore.models.block_end import BlockDecision
from longshore.models.problems import describe_all
from longshore.models.purchase import PurchaseRequest
from longshore.models.spending import BuyingRecord

M = TypeVar("M", bound=BaseModel)
_log = logging.getLogger(__name__)


def stored_request(
    purchase_id: str, stored: object, option: int | None = None
) -> PurchaseRequest | None:
    """Return what a purchase was asked for with; None where it cannot be read, or has no option of
    this number, which was ordered."""
    found = _read(stored, option)
    if isinstance(found, PurchaseRequest):
        return found
    _say_once("purchase", purchase_id, found)
    return None


async def unreadable_purchases(
    connection: AsyncConnection, pool: str | None = None
) -> list[tuple[str, str]]:
    """Return the purchases that have not ended whose request cannot be read, and why: of a pool
    those that still buy, or of all pools."""
    rows = await connection.execute(text(_OPEN), {"pool": pool})
    found = [(row.id, _read(row.request, row.option)) for row in rows]
    return [(id, why) for id, why in found if isinstance(why, str)]


async def why_left_alone(connection: AsyncConnection, block_id: str) -> str:
    """Return why nothing is decided about a block but its end: its purchase or the settings of its
    pool cannot be read. Empty where they can."""
    found = await connection.execute(text(_BEHIND), {"id": block_id})
    row = found.one()
    if why := why_unreadable(row.request, row.option):
        return f"its purchase cannot be read: {why}"
    _, trouble = pool_and_trouble(row.pool, row.spec)
    return f"the settings of its pool cannot be read: {trouble}" if trouble else ""


def why_unreadable(stored: object, option: int | None) -> str:
    """Return why what a purchase was asked for with cannot be read; empty where it can."""
    found = _read(stored, option)
    return found if isinstance(found, str) else ""


def readable(model: type[M], stored: object) -> tuple[M, tuple[str, ...]]:
    """Return what can be read of a document whose fields may all be left out, and a line for each
    mistake in the others."""
    try:
        return model.model_validate({} if stored is None else stored), ()
    except ValidationError as error:
        problems = describe_all(error, stored, "all of it")
        wrong = {each["loc"][0] for each in error.errors(include_url=False) if each["loc"]}
    fields = cast("dict[str, object]", stored) if isinstance(stored, dict) else {}
    rest = {name: value for name, value in fields.items() if name not in wrong}
    return model.model_validate(rest), problems


def stored_decision(block_id: str, stored: object) -> BlockDecision | None:
    """Return what was decided last about a block; None where nothing was, or it cannot be read."""
    fields = {**stored, "block_id": block_id} if isinstance(stored, dict) else stored
    return _or_none(BlockDecision, fields, "the decision about block", block_id)


def stored_record(pool: str, stored: object) -> BuyingRecord | None:
    """Return what a pool decided last about buying; None where there is none that can be read."""
    return _or_none(BuyingRecord, stored, "the decision to buy of pool", pool)


def _or_none(model: type[M], stored: object, what: str, id: str) -> M | None:
    """Return what is stored; None where nothing is, or it cannot be read."""
    try:
        return None if stored is None else model.model_validate(stored)
    except ValidationError as error:
        _say_once(what, id, _problems(error, stored))
        return None


def _read(stored: object, option: int | None) -> PurchaseRequest | str:
    """Return a stored request, or why it cannot be read."""
    try:
        request = PurchaseRequest.model_validate(stored)
    except ValidationError as error:
        return _problems(error, stored)
    if option is not None and option >= len(request.options):
        return f"there is no option {option}, which was ordered"
    return request


def _problems(error: ValidationError, stored: object) -> str:
    return "; ".join(describe_all(error, stored, "stored"))


@lru_cache(maxsize=1000)
def _say_once(what: str, id: str, problems: str) -> None:
    """Name a row in the log; later looks find the same, and say nothing."""
    _log.warning("%s %s is left alone: what is stored cannot be read (%s)", what, id, problems)


_BEHIND = """
    SELECT b.pool, o.option, p.request, s.spec
      FROM blocks b
      LEFT JOIN purchases p ON p.id = b.purchase_id
      LEFT JOIN orders o ON o.key = b.id
      LEFT JOIN pools s ON s.name = b.pool
     WHERE b.id = :id
"""

_OPEN = """
    SELECT id, request,
           (SELECT max(o.option) FROM orders o WHERE o.purchase_id = p.id) AS option
      FROM purchases p
     WHERE state NOT IN ('ENDED', 'REFUSED')
       AND (CAST(:pool AS text) IS NULL OR (pool = :pool AND buying))
     ORDER BY created_at, id
"""
