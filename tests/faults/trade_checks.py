"""What has to hold of bills and prices after a run of purchases, by the market's own word."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from longshore.activities.markets.reconcile import MarketFinding, Mismatch

AT_ONCE = timedelta(seconds=15)
"""A machine above its limit may be kept for so long after its agent came, for another reason than
its price."""
TOO_DEAR = "above the limit"


def wrong_bills(
    found: Sequence[MarketFinding],
    booked: Mapping[str, int],
    pods: Sequence[Mapping[str, Any]],
    late: int,
) -> list[str]:
    """Return what differs between market and ledger and is no bill that came late.

    A late bill is for one minute more of a pod, and no more of them differ than the market has
    sent (`late`). `booked` are micro-dollars by the key of the order.
    """
    by_id = {pod["id"]: pod for pod in pods}
    bills = [each for each in found if each.kind is Mismatch.BILL and each.order is not None]
    wrong = [f"{each}" for each in found if each not in bills]
    for bill in bills:
        lacks = bill.cost_micro_usd - booked.get(bill.order or "", 0)
        minute = _last_minute(by_id[bill.id]) if bill.id in by_id else None
        if lacks != minute:
            wrong.append(
                f"{bill}: {lacks} micro-dollars are not booked, and a late minute is {minute}"
            )
    if len(bills) > late:
        wrong.append(f"{len(bills)} bills are not booked, and {late} came late")
    return wrong


def dear_machines(
    machines: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the pods that cost more than their order allowed and were not stopped for it.

    Each of `machines` has `order_id`, `most` (micro-dollars per GPU-hour), `reason`, and `kept`,
    which is how long it was there after its agent came.
    """
    by_id = {pod["id"]: pod for pod in pods}
    return [
        f"pod {each['order_id']} cost {price} micro-dollars a GPU-hour, its limit was"
        f" {each['most']}, and it was kept for {each['kept']}: {each['reason']}"
        for each in machines
        if each["order_id"] in by_id
        and (price := _price(by_id[each["order_id"]])) > each["most"]
        and TOO_DEAR not in each["reason"] and each["kept"] > AT_ONCE
    ]  # fmt: skip


def _last_minute(pod: Mapping[str, Any]) -> int:
    """Return what the last minute of a pod was billed at: all of it is rounded down as a whole."""
    return pod["billed"] - pod["rate"] * (pod["minutes"] - 1) // 60


def _price(pod: Mapping[str, Any]) -> int:
    """Return micro-dollars per GPU-hour; `hardware` is that of each of its machines."""
    gpus = int(pod["hardware"].partition("x")[0]) * len(pod["machines"])
    return round(pod["rate"] / gpus)
