"""Routes of the exchange for orders and pools."""

import json
from collections.abc import Iterator
from typing import Any

from longshore.models.market import Side
from longshore.simulation.market.catalogue import SKU
from longshore.simulation.market.exchange import NothingToSellError, OrderRecord
from longshore.simulation.market.faults import SFCOMPUTE
from longshore.simulation.market.http import Answer, ApiError, Call, Handler, invalid, unlagged
from longshore.simulation.market.instances import Pool
from longshore.simulation.market.ledger import ShortError
from longshore.simulation.market.market import WORKSPACE
from longshore.simulation.market.schedule import Schedule
from longshore.simulation.market.sfcompute_bodies import (
    OrderBody,
    PoolBody,
    RenameBody,
    TransferBody,
)
from longshore.simulation.market.sfcompute_json import (
    Json,
    order,
    page,
    pool,
    schedule,
    sku_reference,
    with_odd_status,
)  # fmt: skip

_SORTS = ("created_at", "-created_at", "start_at", "-start_at")


def routes() -> list[tuple[str, str, Handler]]:
    return [
        ("POST", "/orders", _place),
        ("GET", "/orders", _orders),
        ("GET", "/orders/{id}", _one_order),
        ("DELETE", "/orders/{id}", _cancel),
        ("POST", "/pools", _make_pool),
        ("GET", "/pools", _pools),
        ("GET", "/pools/{id}", _one_pool),
        ("PATCH", "/pools/{id}", _rename_pool),
        ("DELETE", "/pools/{id}", _remove_pool),
        ("POST", "/pool_transfers", _transfer),
    ]


def pool_named(call: Call, id_or_path: str) -> Pool:
    """Return a pool by id or path. Raises ApiError (404)."""
    for each in call.market.instances.pools.values():
        if id_or_path in (each.id, pool(each, 0)["resource_path"]):
            return each
    raise ApiError(404, "no such pool")


def sku_wanted(call: Call, sku_id: str) -> SKU:
    """Return a SKU by the id of a body. Raises ApiError (422)."""
    found = call.market.exchange.skus.get(sku_id)
    if found is None:
        raise invalid([("instance_sku", "not_found", "no such instance SKU")])
    return found


def _place(call: Call) -> Answer:
    key = call.request.headers.get("idempotency-key")
    content = json.dumps(call.json(), sort_keys=True)
    if key and (known := call.market.order_keys.get(key)):
        if known[1] != content:
            raise ApiError(
                409, "the idempotency key was used with another body", kind="idempotency_error"
            )
        return Answer(order(call.market.exchange.orders[known[0]]), 201)
    placed = _placed(call, call.body(OrderBody))
    if key:
        call.market.order_keys[key] = (placed.id, content)
    return Answer(order(placed), 201)


def _placed(call: Call, body: OrderBody) -> OrderRecord:
    where = pool_named(call, body.pool)
    sku = sku_wanted(call, body.instance_sku)
    if sku.audience:
        raise ApiError(403, f"the instance SKU {sku.alias} is not generally available")
    if problem := body.window.problem(call.market.world.clock.minute):
        raise invalid([problem])
    faults = call.market.world.faults
    if faults.take("order_invalid", SFCOMPUTE, "POST /orders"):
        raise invalid([("allocation_schedule_delta", "simulated", "the fault order_invalid")])
    if faults.take("funds", SFCOMPUTE, "POST /orders"):
        raise ApiError(402, "the balance is too low")
    try:
        return call.market.exchange.place(
            Side(body.side), where, sku, body.window.schedule, body.limit,
            standing=body.allow_standing, partial=body.allow_partial,
        )  # fmt: skip
    except ShortError:
        raise ApiError(402, "the balance is too low for the worst case of this order") from None
    except NothingToSellError:
        raise invalid(
            [("allocation_schedule_delta", "not_in_pool", "the pool does not hold this time")]
        ) from None


def _orders(call: Call) -> Answer:
    sort = call.query("sort_by") or "-created_at"
    if sort not in _SORTS:
        raise invalid([("sort_by", "invalid", f"must be one of {', '.join(_SORTS)}")])
    found = [
        o
        for o in unlagged(call, SFCOMPUTE, call.market.exchange.orders.values())
        if _kept(call, o)
    ]
    if sort.endswith("start_at"):
        found.sort(key=lambda each: each.wanted.start)
    if sort in ("created_at", "-start_at"):
        found.reverse()
    return page(call, with_odd_status(call, [order(each) for each in found]), "ordrc")


def _kept(call: Call, record: OrderRecord) -> bool:
    ids, states = call.queries("id"), call.queries("status")
    after = call.whole_number("created_after", 0, 0, 10**11)
    before = call.whole_number("created_before", 10**11, 0, 10**11)
    return (
        (not ids or record.id in ids)
        and (not states or record.status in states)
        and call.query("pool") in (None, record.pool.id)
        and call.query("side") in (None, record.side.value)
        and call.query("workspace") in (None, record.pool.workspace)
        and after <= record.created_at <= before
    )


def _one_order(call: Call) -> Answer:
    return Answer(with_odd_status(call, [order(_order(call))])[0])


def _order(call: Call) -> OrderRecord:
    try:
        return call.market.exchange.orders[call.path("id")]
    except KeyError:
        raise ApiError(404, "no such order") from None


def _cancel(call: Call) -> Answer:
    found = _order(call)
    if found.over:
        raise ApiError(422, f"the order is {found.status} and cannot be cancelled")
    call.market.exchange.cancel(found)
    return Answer(status=204)


def _make_pool(call: Call) -> Answer:
    body = call.body(PoolBody)
    if body.workspace != WORKSPACE and not body.workspace.startswith("sfc:workspace:"):
        raise ApiError(404, "no such workspace")
    made = call.market.instances.make_pool(body.name, WORKSPACE, body.tags)
    return Answer(_pool(call, made), 201)


def _pools(call: Call) -> Answer:
    found = unlagged(call, SFCOMPUTE, call.market.instances.pools.values())
    return page(call, [_pool(call, each) for each in found], "poolc")


def _one_pool(call: Call) -> Answer:
    history = call.whole_number("schedule_history_minutes", 0, 0, 1440)
    found = pool_named(call, call.path("id"))
    return Answer(pool(found, call.market.world.clock.minute, history))


def _rename_pool(call: Call) -> Answer:
    found, body = pool_named(call, call.path("id")), call.body(RenameBody)
    found.name = body.name or found.name
    found.tags = found.tags if body.tags is None else body.tags
    return Answer(_pool(call, found))


def _remove_pool(call: Call) -> Answer:
    found = pool_named(call, call.path("id"))
    if why := next(_in_the_way(call, found), None):
        raise ApiError(422, f"the pool has {why}")
    del call.market.instances.pools[found.id]
    return Answer(status=204)


def _in_the_way(call: Call, found: Pool) -> Iterator[str]:
    minute = call.market.world.clock.minute
    if call.market.exchange.open_orders(found):
        yield "active orders"
    if any(nodes.from_minute(minute) for nodes in found.schedules.values()):
        yield "time that is still to come"
    if any(call.market.instances.alive(found)):
        yield "instances"


def _transfer(call: Call) -> Answer:
    body = call.body(TransferBody)
    source, target = pool_named(call, body.from_pool), pool_named(call, body.to_pool)
    sku, window = sku_wanted(call, body.instance_sku), body.allocation_schedule_delta[0]
    if problem := window.problem(call.market.world.clock.minute):
        raise invalid([problem])
    answer = {
        "object": "pool_transfer", "id": call.market.world.new_id("pxfr"), "status": "pending",
        "created_at": int(call.market.world.clock.now),
        "from_pool": source.id, "to_pool": target.id, "instance_sku": sku_reference(sku),
        "allocation_schedule_delta": schedule(window.schedule),
    }  # fmt: skip
    if not _movable(call, source, sku.id, window.schedule):
        return Answer(
            {**answer, "status": "rejected", "rejected_reason": "not held by the pool"}, 202
        )

    def carry_out() -> None:
        if _movable(call, source, sku.id, window.schedule):
            call.market.instances.lose(source, sku.id, window.schedule)
            call.market.instances.gain(target, sku.id, window.schedule)

    call.market.world.clock.after(0, carry_out)
    return Answer(answer, 202)


def _movable(call: Call, source: Pool, sku: str, wanted: Schedule) -> bool:
    return call.market.exchange.sellable(source, sku).covers(wanted)


def _pool(call: Call, record: Pool) -> Json | Any:
    return pool(record, call.market.world.clock.minute)
