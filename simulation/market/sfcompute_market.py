"""Routes of the exchange that anybody may read: SKUs, the order book, previews."""

from collections.abc import Iterator

from longshore.models.market import Side
from longshore.simulation.market.catalogue import SKU
from longshore.simulation.market.exchange import FEE_BPS
from longshore.simulation.market.faults import SFCOMPUTE
from longshore.simulation.market.http import Answer, ApiError, Call, Handler, invalid
from longshore.simulation.market.rates import Rate, format_rate
from longshore.simulation.market.schedule import Schedule
from longshore.simulation.market.sfcompute_bodies import PreviewBody
from longshore.simulation.market.sfcompute_json import (
    Json,
    full_sku,
    level,
    page,
    public_fill,
    schedule,
    sku_reference,
)  # fmt: skip

PLACEHOLDER_POOL = "pool_REPLACE_ME"
_WEEK = 7 * 24 * 3600
_PROPERTIES = (
    "region", "availability_zone", "accelerator", "form_factor", "rdma_type", "num_accelerators",
    "num_vcpus", "memory", "local_storage", "supports_public_ipv4",
)  # fmt: skip


def routes() -> list[tuple[str, str, Handler]]:
    return [
        ("GET", "/instance_skus", _skus),
        ("GET", "/instance_skus/availability", _availabilities),
        ("GET", "/instance_skus/{id}", lambda call: Answer(full_sku(_sku(call)))),
        ("GET", "/instance_skus/{id}/availability", _one_availability),
        ("GET", "/instance_sku_property_catalog", _catalog),
        ("GET", "/orderbook/windows", _windows),
        ("GET", "/orderbook/quote", _quote),
        ("GET", "/orderbook/depth", _depth),
        ("GET", "/orderbook/fills", _fills),
        ("POST", "/order_preview", _preview),
    ]


def _skus(call: Call) -> Answer:
    return page(call, [full_sku(sku) for sku in _all(call)], "iskuc")


def _availabilities(call: Call) -> Answer:
    wanted = {key: call.queries(key) for key in _PROPERTIES if call.queries(key)}
    ids = call.queries("id")
    skus = [sku for sku in _all(call) if sku.meets(wanted) and (not ids or sku.id in ids)]
    rows = [_availability(call, sku) for sku in skus]
    return page(call, rows, "iskuc", keys=[sku.id for sku in skus])


def _one_availability(call: Call) -> Answer:
    return Answer(_availability(call, _sku(call)))


def _availability(call: Call, sku: SKU) -> Json:
    total = Schedule()
    for order in call.market.exchange.book(sku.id).orders(Side.SELL):
        total = total.plus(order.remaining)
    return {
        "object": "instance_sku_availability",
        "instance_sku": sku_reference(sku),
        "schedule": schedule(total),
    }


def _catalog(call: Call) -> Answer:
    values: dict[str, dict[str, str]] = {}
    for sku in _all(call):
        for key, (value, display) in sku.properties.items():
            values.setdefault(key, {})[str(value)] = display

    def described(name: str, display: str) -> Json:
        return {
            "name": name, "display_name": display, "description": "simulated",
            "stable_at": int(call.market.opened),
        }  # fmt: skip

    rows = [
        {
            "type": "enumeration",
            "key": described(key, key.replace("_", " ").capitalize()),
            "values": [described(*each) for each in sorted(known.items())],
        }
        for key, known in values.items()
    ]
    return page(call, rows, "ipropc", keys=list(values))


def _windows(call: Call) -> Answer:
    start, end = _range(call, "range_start_at", "range_end_at")
    found = [
        (first, last, sku)
        for sku in _meeting(call)
        for first, last in set(_whole_hours(call, sku, start, end))
    ]
    found.sort(key=lambda each: (each[0], each[1], each[2].id))
    heading = {
        "requirements": _requirements(call), "range_start_at": start * 60,
        "range_end_at": end * 60,
    }  # fmt: skip
    rows = [_window(call, sku, first, last) for first, last, sku in found]
    keys = [f"{sku.id}-{first}-{last}" for first, last, sku in found]
    return page(call, rows, "mwin", keys=keys, heading=heading)


def _window(call: Call, sku: SKU, start: int, end: int) -> Json:
    book = call.market.exchange.book(sku.id)
    counts = {
        side: sum(1 for each in book.orders(side) if each.remaining.least(start, end))
        for side in Side
    }
    row: Json = {
        "instance_sku": sku.id,
        "start_at": start * 60,
        "end_at": end * 60,
        "duration_hours": (end - start) // 60,
        "total_bid_order_count": counts[Side.BUY],
        "total_ask_order_count": counts[Side.SELL],
    }
    for name, side in (("best_bid", Side.BUY), ("best_ask", Side.SELL)):
        if levels := book.depth(side, start, end):
            row[name] = level(sku, levels[0][0], start, end, levels[0][1])
    return row


def _whole_hours(call: Call, sku: SKU, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the windows of the orders, in whole hours, that lie between two minutes."""
    book = call.market.exchange.book(sku.id)
    for side in Side:
        for order in book.orders(side):
            for begin, finish, _ in order.remaining:
                first = -(-max(begin, start) // 60) * 60
                last = min(finish, end) // 60 * 60
                if first < last:
                    yield first, last


def _quote(call: Call) -> Answer:
    start, end = _range(call, "start_at", "end_at")
    answer = _heading(call, start, end)
    for name, side in (("best_bid", Side.BUY), ("best_ask", Side.SELL)):
        if levels := _levels(call, side, start, end):
            answer[name] = levels[0]
    return Answer(answer)


def _depth(call: Call) -> Answer:
    start, end = _range(call, "start_at", "end_at")
    depth = call.whole_number("depth", 20, 1, 100)
    return Answer(
        {
            **_heading(call, start, end),
            "bids": _levels(call, Side.BUY, start, end)[:depth],
            "asks": _levels(call, Side.SELL, start, end)[:depth],
        }
    )


def _heading(call: Call, start: int, end: int) -> Json:
    return {
        "requirements": _requirements(call),
        "start_at": start * 60,
        "end_at": end * 60,
        "requested_at": int(call.market.world.clock.now),
    }


def _levels(call: Call, side: Side, start: int, end: int) -> list[Json]:
    """Return the levels of all SKUs that meet the requirements: dearest bids, cheapest asks."""
    found = [
        (price, sku, nodes)
        for sku in _meeting(call)
        for price, nodes in call.market.exchange.book(sku.id).depth(side, start, end)
    ]
    found.sort(key=lambda each: -each[0] if side is Side.BUY else each[0])
    return [level(sku, price, start, end, nodes) for price, sku, nodes in found]


def _fills(call: Call) -> Answer:
    start, end = _range(call, "start_at", "end_at", past=True)
    now = int(call.market.world.clock.now)
    since = call.whole_number("since_at", now - _WEEK, 0, now + 60)
    skus = {sku.id for sku in _meeting(call)}
    found = [
        (str(number), public_fill(fill))
        for number, fill in enumerate(call.market.exchange.public_fills)
        if fill.sku in skus
        and fill.at >= since
        and start <= fill.schedule.start
        and fill.schedule.end <= end
    ][::-1]
    rows, keys = [fill for _, fill in found], [number for number, _ in found]
    return page(call, rows, "mfilc", keys=keys, heading=_heading(call, start, end))


def _preview(call: Call) -> Answer:
    body = call.body(PreviewBody)
    if problem := body.window.problem(call.market.world.clock.minute):
        raise invalid([("start_at", *problem[1:])])
    if body.pool and body.pool not in call.market.instances.pools:
        raise ApiError(404, "no such pool")
    side = Side(body.side)
    fee = {
        "flat_dollars_per_node_hour": "0.000000",
        "percentage_bps": FEE_BPS if side is Side.SELL else 0,
    }
    notices = _notices(call)
    skus = [sku for sku in _all(call) if sku.meets(body.requirements)]
    quoted = [
        (price, sku) for sku in skus if (price := _marginal(call, sku, side, body)) is not None
    ]
    if not quoted:
        reason = "no_availability" if skus else "no_matching_instance_skus"
        return Answer({"type": "unavailable", "reason": reason, "fee": fee, "notices": notices})
    choose = min if side is Side.BUY else max
    price, sku = choose(quoted, key=lambda each: each[0])
    order = {
        "pool": body.pool or PLACEHOLDER_POOL,
        "side": side.value,
        "instance_sku": sku.id,
        "allocation_schedule_delta": schedule(body.window.schedule),
        "limit_price_dollars_per_node_hour": format_rate(price),
        "allow_standing": False,
        "allow_partial": False,
    }
    return Answer({"type": "quoted", "post_order_body": order, "fee": fee, "notices": notices})


def _marginal(call: Call, sku: SKU, side: Side, body: PreviewBody) -> Rate | None:
    """Return the worst rate that an order of this size would meet; None when it finds too few."""
    start, end, wanted = body.window.schedule.steps[0]
    opposite = Side.SELL if side is Side.BUY else Side.BUY
    for price, nodes in call.market.exchange.book(sku.id).depth(opposite, start, end):
        wanted -= nodes
        if wanted <= 0:
            return price
    return None


def _notices(call: Call) -> list[Json]:
    if not call.market.world.faults.take("maintenance", SFCOMPUTE):
        return []
    soon = int(call.market.world.clock.now) // 3600 * 3600 + 7200
    return [
        {
            "type": "maintenance_window",
            "start_at": soon,
            "end_at": soon + 3600,
            "maintenance_type": "marketplace_unavailable",
            "title": "Simulated maintenance",
            "description": "The simulated market says that it will be away for an hour.",
        }
    ]


def _all(call: Call) -> list[SKU]:
    return list(call.market.exchange.skus.values())


def _sku(call: Call) -> SKU:
    try:
        return call.market.exchange.skus[call.path("id")]
    except KeyError:
        raise ApiError(404, "no such instance SKU") from None


def _meeting(call: Call) -> list[SKU]:
    requirements = _requirements(call)
    return [sku for sku in _all(call) if sku.meets(requirements)]


def _requirements(call: Call) -> dict[str, list[str]]:
    """Return what ``accelerator:H100;region:us-west`` asks for; the operator may be left out."""
    found: dict[str, list[str]] = {}
    for item in filter(None, (call.query("requirements") or "").split(";")):
        parts = item.split(":")
        if len(parts) not in (2, 3):
            raise invalid([("requirements", "invalid", "items are key:value or key:op:value")])
        if len(parts) == 3 and parts[1] not in ("eq", "in"):
            raise invalid([("requirements", "unknown_operator", "operators are eq and in")])
        found.setdefault(parts[0], []).extend(parts[-1].split(","))
    return found


def _range(call: Call, first: str, last: str, *, past: bool = False) -> tuple[int, int]:
    """Return the minutes of a window in the query. Raises ApiError when it is no window."""
    far = 10**11
    for name in (first, last):
        if call.query(name) is None:
            raise invalid([(name, "missing", "is required")])
        if call.whole_number(name, 0, 0, far) % 60:
            raise invalid([(name, "not_aligned", "must be a multiple of 60 seconds")])
    start, end = (call.whole_number(name, 0, 0, far) // 60 for name in (first, last))
    if end <= start:
        raise invalid([(last, "empty", f"must be after {first}")])
    if not past and end <= call.market.world.clock.minute:
        raise invalid([(last, "in_the_past", "is past")])
    return start, end
