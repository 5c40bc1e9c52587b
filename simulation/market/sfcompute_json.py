"""How the exchange writes its things: decimal strings, unix seconds, schedules as arrays."""

import base64
from collections.abc import Sequence
from typing import Any

from longshore.simulation.market.catalogue import SKU
from longshore.simulation.market.exchange import OrderRecord, PublicFill
from longshore.simulation.market.faults import SFCOMPUTE
from longshore.simulation.market.http import Answer, ApiError, Call, invalid
from longshore.simulation.market.instances import Instance, Pool
from longshore.simulation.market.market import ACCOUNT, WORKSPACE
from longshore.simulation.market.rates import format_rate
from longshore.simulation.market.schedule import Schedule

Json = dict[str, Any]
IMAGES = (
    ("image_ubuntu2204", "ubuntu-22.04-cuda-12"),
    ("image_ubuntu2404", "ubuntu-24.04-cuda-13"),
)
ODD_STATUS = "reticulating"
_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "payment_required",
    403: "forbidden", 404: "not_found", 409: "conflict", 422: "unprocessable_entity",
    429: "rate_limited", 500: "api_error", 503: "service_unavailable",
}  # fmt: skip


def error(problem: ApiError) -> Json:
    inner: Json = {
        "type": problem.kind or _TYPES.get(problem.status, "api_error"),
        "message": problem.message,
    }
    if problem.problems:
        inner["details"] = [
            {"field": field, "code": code, "message": message}
            for field, code, message in problem.problems
        ]
    return {"error": inner}


def page(
    call: Call,
    rows: Sequence[Json],
    prefix: str,
    *,
    keys: Sequence[str] | None = None,
    heading: Json | None = None,
) -> Answer:
    """Answer with the page of `rows` that the query asks for, below a `heading`.

    A cursor begins with `prefix` and hides one of `keys`, which are the ids of rows that have any.
    """
    limit = call.whole_number("limit", 50, 1, 200)
    keys = [_cursor(prefix, key) for key in keys or [row["id"] for row in rows]]
    after, before = call.query("starting_after"), call.query("ending_before")
    for name, cursor in (("starting_after", after), ("ending_before", before)):
        if cursor is not None and cursor not in keys:
            raise invalid([(name, "unknown_cursor", "is not a cursor of this list")])
    end = keys.index(before) if before is not None else len(rows)
    start = keys.index(after) + 1 if after is not None else 0
    if before is not None and after is None:
        start = max(end - limit, 0)
    data = list(rows[start : min(start + limit, end)])
    more = start + limit < len(rows) if before is None else start > 0
    edge = start if before is not None else start + len(data) - 1
    cursor = keys[edge] if data else None
    faults = call.market.world.faults
    if faults.take("cursor_missing", SFCOMPUTE):
        more, cursor = True, None
    elif faults.take("cursor_repeated", SFCOMPUTE):
        more, cursor = True, after or (keys[0] if keys else _cursor(prefix, "again"))
    listed = {"object": "list", "cursor": cursor, "has_more": more, "data": data}
    return Answer({**(heading or {}), **listed})


def _cursor(prefix: str, key: str) -> str:
    hidden = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    return f"{prefix}_{hidden}"


def schedule(nodes: Schedule) -> list[Json]:
    return [
        {"start_at": start * 60, "end_at": end * 60, "node_count": count}
        for start, end, count in nodes
    ]


def sku_reference(sku: SKU) -> Json:
    return {"object": "instance_sku", "id": sku.id, "alias": sku.alias}


def full_sku(sku: SKU) -> Json:
    shown = {
        key: {"value": value, "display_value": display}
        for key, (value, display) in sku.properties.items()
    }
    hint = {"audience_hint": sku.audience} if sku.audience else {}
    return {**sku_reference(sku), **shown, **hint}


def level(sku: SKU, price: int, start: int, end: int, nodes: int) -> Json:
    return {
        "instance_sku": sku.id,
        "dollars_per_node_hour": format_rate(price),
        "allocation_schedule_delta": schedule(Schedule.of(start, end, nodes)),
    }


def public_fill(fill: PublicFill) -> Json:
    return {
        "instance_sku": fill.sku,
        "dollars_per_node_hour": format_rate(fill.price),
        "allocation_schedule_delta": schedule(fill.schedule),
        "filled_at": int(fill.at),
    }


def order(record: OrderRecord) -> Json:
    """`limit` and prices are strings in dollars per node-hour; the delta is what was asked."""
    pool = {"id": record.pool.id, "name": record.pool.name}
    return {
        "object": "order",
        "id": record.id,
        "side": record.side.value,
        "status": record.status,
        "pool": pool,
        "capacity": pool,
        "instance_sku": sku_reference(record.sku),
        "allow_standing": record.standing,
        "allow_partial": record.partial,
        "allocation_schedule_delta": schedule(record.wanted),
        "filled_allocation_schedule_delta": schedule(record.filled),
        "limit_price_dollars_per_node_hour": format_rate(record.limit),
        "created_at": int(record.created_at),
        "created_by": {"id": "tok_simulated", "type": "token", "name": "simulated"},
        "filled_at": _second(record.filled_at),
        "filled_average_price_dollars_per_node_hour": _average(record),
        "cancelled_at": _second(record.cancelled_at),
        "fills": [
            {
                "contract": fill.contract,
                "filled_at": int(fill.at),
                "allocation_schedule_delta": schedule(fill.schedule),
                "price_dollars_per_node_hour": format_rate(fill.price),
            }
            for fill in record.fills
        ],
    }


def pool(record: Pool, minute: int, history: int = 0) -> Json:
    """`minute` is now; the schedule shows that and what follows, and `history` minutes before."""
    by_sku = {
        sku: kept
        for sku, nodes in record.schedules.items()
        if (kept := nodes.from_minute(minute - history))
    }
    total = Schedule()
    for nodes in by_sku.values():
        total = total.plus(nodes)
    return {
        "object": "pool",
        "id": record.id,
        "resource_path": f"sfc:pool:{ACCOUNT}:simulated:{record.name}",
        "owner": ACCOUNT,
        "workspace": "simulated",
        "workspace_id": record.workspace,
        "name": record.name,
        "kind": "market",
        "allocation_schedule": {
            "total": schedule(total),
            "by_instance_sku": {sku: schedule(nodes) for sku, nodes in by_sku.items()},
        },
        "procurements": [],
        "deployments": [],
        "created_at": int(record.created_at),
        "tags": record.tags,
    }


def instance(record: Instance) -> Json:
    home = {"id": record.pool.id, "name": record.pool.name}
    made: Json = {
        "object": "instance",
        "id": record.id,
        "resource_path": f"sfc:instance:{ACCOUNT}:simulated:{record.name}",
        "owner": ACCOUNT,
        "workspace": "simulated",
        "workspace_id": WORKSPACE,
        "name": record.name,
        "status": record.status,
        "instance_sku": sku_reference(record.sku),
        "pool": home,
        "capacity": home,
        "image": {"id": record.image, "name": dict(IMAGES).get(record.image, record.image)},
        "created_at": int(record.created_at),
        "updated_at": int(record.updated_at),
        "cloud_init_user_data_used": record.user_data is not None,
        "priority_level": record.priority,
        "expected_shutdown_at": None,
        "enable_public_ipv4": False,
        "tags": {},
        **record.options,
    }
    if made["enable_public_ipv4"] and record.status == "running":
        made["public_ip"] = "127.0.0.1"
    return made


def with_odd_status(call: Call, rows: list[Json]) -> list[Json]:
    """Give the first row a status that nobody has heard of, when that fault is set."""
    if rows and call.market.world.faults.take("unknown_status", SFCOMPUTE):
        rows[0]["status"] = ODD_STATUS
    return rows


def _average(record: OrderRecord) -> str | None:
    minutes = record.filled.node_minutes
    if not minutes:
        return None
    cost = sum(fill.price * fill.schedule.node_minutes for fill in record.fills)
    return format_rate(round(cost / minutes))


def _second(at: float | None) -> int | None:
    return None if at is None else int(at)
