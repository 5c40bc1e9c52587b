"""The exchange's HTTP API as San Francisco Compute's v2 has it, with the balance of v1."""

from starlette.routing import BaseRoute, Mount

from models.money import MICRO
from simulation.market import sfcompute_market, sfcompute_orders
from simulation.market.faults import SFCOMPUTE
from simulation.market.http import Answer, Api, ApiError, Call, Handler, invalid
from simulation.market.instances import Instance, OverPoolError
from simulation.market.market import ACCOUNT, WORKSPACE, Market
from simulation.market.sfcompute_bodies import InstanceBody, RenameBody
from simulation.market.sfcompute_json import (
    IMAGES,
    Json,
    error,
    instance,
    page,
    unlagged,
    with_odd_status,
)  # fmt: skip
from simulation.market.sfcompute_orders import pool_named, sku_wanted

PREFIXES = ("/preview/v2", "/v2")
_CENT = MICRO // 100


def routes(market: Market, token: str) -> list[BaseRoute]:
    """Return what answers below both prefixes, and below /v1."""
    api = Api(SFCOMPUTE, market, token, error, lambda route: _odd_error(market, route))
    second = [
        *_ACCOUNT_ROUTES, *sfcompute_market.routes(), *sfcompute_orders.routes(),
        *_INSTANCE_ROUTES,
    ]  # fmt: skip
    made = [api.route(*each) for each in second]
    first = [api.route("GET", "/balances", _balances), api.route("GET", "/transactions", _moves)]
    return [*(Mount(prefix, routes=made) for prefix in PREFIXES), Mount("/v1", routes=first)]


def _odd_error(market: Market, route: str) -> Answer | None:
    if market.world.faults.take("bare_error", SFCOMPUTE, route):
        return Answer({"type": "service_unavailable", "message": "simulated: no wrapper"}, 503)
    if market.world.faults.take("old_error", SFCOMPUTE, route):
        return Answer(
            {
                "object": "error",
                "code": "trading_engine.is_halted",
                "message": "simulated: the trading engine is halted",
                "details": {},
            },
            503,
        )
    return None


def _me(call: Call) -> Answer:
    account = {"object": "account", "id": ACCOUNT, "name": "simulated"}
    return Answer({"object": "me", "account_id": ACCOUNT, "account": account, "user": None})


def _workspaces(call: Call) -> Answer:
    path = f"sfc:workspace:{ACCOUNT}:simulated"
    row = {"object": "workspace", "id": WORKSPACE, "name": "simulated", "resource_path": path}
    return page(call, [row])


def _image(image_id: str, name: str) -> Json:
    return {
        "object": "image", "id": image_id, "name": name, "upload_status": "completed",
        "resource_path": f"sfc:image:sfcompute:public:{name}",
    }  # fmt: skip


def _images(call: Call) -> Answer:
    return page(call, [_image(*each) for each in IMAGES])


def _one_image(call: Call) -> Answer:
    for image_id, name in IMAGES:
        if image_id == call.path("id"):
            return Answer(_image(image_id, name))
    raise ApiError(404, "no such image")


def _balances(call: Call) -> Answer:
    ledger = call.market.ledger
    return Answer(
        {
            "object": "balances",
            "available_balance_cents": ledger.available // _CENT,
            "current_balance_cents": ledger.balance // _CENT,
            "current_overage_cents": 0,
            "overage_limit_cents": 0,
            "updated_at": int(call.market.world.clock.now),
        }
    )


def _moves(call: Call) -> Answer:
    limit = call.whole_number("limit", 10, 1, 100)
    rows = [
        {
            "object": "transaction",
            "id": move.id,
            "created_at": int(move.at),
            "type": move.kind,
            "amount_cents": round(move.amount / _CENT),
            "balance": move.balance // _CENT,
            "reference": move.reference,
        }
        for move in reversed(call.market.ledger.movements)
    ]
    after = call.query("starting_after_cursor")
    ids = [row["id"] for row in rows]
    start = ids.index(after) + 1 if after in ids else 0
    data = rows[start : start + limit]
    more = start + limit < len(rows)
    cursor = data[-1]["id"] if data else None
    return Answer({"object": "list", "data": data, "has_more": more, "cursor": cursor})


def _create(call: Call) -> Answer:
    body = call.body(InstanceBody)
    where, sku = pool_named(call, body.pool), sku_wanted(call, body.instance_sku)
    if body.image not in dict(IMAGES):
        raise ApiError(404, "no such image")
    if body.firewall is not None and not body.enable_public_ipv4:
        raise invalid([("firewall", "forbidden", "goes with enable_public_ipv4 alone")])
    if body.enable_public_ipv4 and body.firewall is None:
        raise invalid([("firewall", "missing", "is needed with enable_public_ipv4")])
    options = {
        "enable_public_ipv4": body.enable_public_ipv4, "firewall": body.firewall,
        "tags": body.tags or {},
    }  # fmt: skip
    try:
        made = call.market.instances.create(
            where, sku, image=body.image, name=body.name, user_data=body.cloud_init_user_data,
            priority=body.priority_level, options=options,
        )  # fmt: skip
    except OverPoolError:
        raise ApiError(422, "the pool never has so many nodes of this SKU") from None
    return Answer(instance(made), 201)


def _instances(call: Call) -> Answer:
    states, where = call.queries("status"), call.query("pool")
    found = [
        each
        for each in unlagged(call, call.market.instances.by_id.values())
        if (not states or each.status in states) and where in (None, each.pool.id)
    ]
    return page(call, with_odd_status(call, [instance(each) for each in found]))


def _one(call: Call) -> Answer:
    return Answer(with_odd_status(call, [instance(_instance(call))])[0])


def _rename(call: Call) -> Answer:
    found, body = _instance(call), call.body(RenameBody)
    found.name = body.name or found.name
    if body.tags is not None:
        found.options["tags"] = body.tags
    return Answer(instance(found))


def _terminate(call: Call) -> Answer:
    found = _instance(call)
    call.market.instances.terminate(found)
    return Answer(instance(found))


def _remove(call: Call) -> Answer:
    found = _instance(call)
    if not found.over:
        raise ApiError(409, "the instance has not ended: terminate it first")
    del call.market.instances.by_id[found.id]
    return Answer(status=204)


def _replace(call: Call) -> Answer:
    found = _instance(call)
    if found.over:
        raise ApiError(409, "the instance has ended")
    try:
        return Answer(instance(call.market.instances.replace(found)), 201)
    except OverPoolError:
        raise ApiError(422, "the pool has no time left for a new instance") from None


def _ssh(call: Call) -> Answer:
    found = _instance(call)
    if found.status != "running" or found.silent:
        raise ApiError(404, "no SSH address yet")
    return Answer({"hostname": "127.0.0.1", "port": 22, "host_keys": []})


def _logs(call: Call) -> Answer:
    found = _instance(call)
    return Answer({"object": "list", "data": [f"simulated instance: {found.status}"]})


def _instance(call: Call) -> Instance:
    try:
        return call.market.instances.by_id[call.path("id")]
    except KeyError:
        raise ApiError(404, "no such instance") from None


_ACCOUNT_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/me", _me),
    ("GET", "/workspaces", _workspaces),
    ("GET", "/images", _images),
    ("GET", "/images/{id}", _one_image),
]
_INSTANCE_ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/instances", _create),
    ("GET", "/instances", _instances),
    ("GET", "/instances/{id}", _one),
    ("PATCH", "/instances/{id}", _rename),
    ("DELETE", "/instances/{id}", _remove),
    ("POST", "/instances/{id}/terminate", _terminate),
    ("POST", "/instances/{id}/replace", _replace),
    ("GET", "/instances/{id}/ssh", _ssh),
    ("GET", "/instances/{id}/logs", _logs),
]
