"""What is stored of a purchase, of a block and of a pool's decision to buy as JSON.

Somebody may have written into the row by hand, or another version. Such a purchase is left alone:
what the pool lacks, and what comes, is reckoned without it, and `longshore doctor` names it.
"""

import logging
from functools import lru_cache

from pydantic import ValidationError

from models.block_end import BlockDecision
from models.problems import describe_all
from models.purchase import PurchaseRequest
from models.spending import BuyingRecord

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


def why_unreadable(stored: object, option: int | None = None) -> str:
    """Return why `stored_request` returns none; empty where it returns a request."""
    found = _read(stored, option)
    return "" if isinstance(found, PurchaseRequest) else found


def stored_decision(block_id: str, stored: object) -> BlockDecision | None:
    """Return what was decided last about a block; None where nothing was, or it cannot be read."""
    if stored is None:
        return None
    fields = {**stored, "block_id": block_id} if isinstance(stored, dict) else stored
    try:
        return BlockDecision.model_validate(fields)
    except ValidationError as error:
        _say_once("the decision about block", block_id, _problems(error, fields))
        return None


def stored_record(pool: str, stored: object) -> BuyingRecord | None:
    """Return what a pool decided last about buying; None where there is none that can be read."""
    if stored is None:
        return None
    try:
        return BuyingRecord.model_validate(stored)
    except ValidationError as error:
        _say_once("the decision to buy of pool", pool, _problems(error, stored))
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
