"""The exchange's HTTP API as San Francisco Compute's v2 has it, with the balance of v1."""

from starlette.routing import BaseRoute, Mount

from longshore.models.money import MICRO
from longshore.simulation.market import sfcompute_market, sfcompute_orders
from longshore.simulation.market.faults import SFCOMPUTE
from longshore.simulation.market.http import (
    Answer,
    Api,
    ApiError,
    Call,
    Handler,
    invalid,
    unlagged,
)
from longshore.simulation.market.instances import Instance, OverPoolError
from longshore.simulation.market.market import ACCOUNT, WORKSPACE, Market
from longshore.simulation.market.sfcompute_bodies import InstanceBody, RenameBody
from longshore.simulation.market.sfcompute_json import (
    IMAGES,
    Json,
    error,
    instance,
    page,
    with_odd_status,
)  # fmt: skip
from longshore.simulation.market.sfcompute_orders import pool_named, sku_wanted

FIREWALLS = ("frwl_default", f"sfc:firewall:{ACCOUNT}:simulated:default")
"""The workspace's own, by its id and by its path."""
PREFIXES = ("/preview/v2", "/v2")
_CENT = MICRO // 100
_PUBLIC = ("sfc:workspace:sfcompute:public", "wksp_public")


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
    return Answer(
        {
            "object": "account",
            "account_id": ACCOUNT,
            "created_at": int(call.market.opened),
            "entity_type": "business",
            "user": None,
        }
    )


def _workspaces(call: Call) -> Answer:
    """Answer with the only one there is: this list has no pages."""
    row = {
        "object": "workspace",
        "id": WORKSPACE,
        "resource_path": f"sfc:workspace:{ACCOUNT}:simulated",
        "owner": ACCOUNT,
        "name": "simulated",
        "created_at": int(call.market.opened),
    }
    return Answer({"object": "list", "has_more": False, "data": [row]})


def _image(call: Call, image_id: str, name: str) -> Json:
    return {
        "object": "image",
        "id": image_id,
        "resource_path": f"sfc:image:sfcompute:public:{name}",
        "owner": "sfcompute",
        "workspace": "public",
        "workspace_id": "wksp_public",
        "name": name,
        "is_public": True,
        "upload_status": "completed",
        "created_at": int(call.market.opened),
    }


def _images(call: Call) -> Answer:
    """Answer with the public images, which are in no list but that of their own workspace."""
    public = call.query("workspace") in _PUBLIC
    return page(call, [_image(call, *each) for each in IMAGES if public], "imagec")


def _one_image(call: Call) -> Answer:
    for image_id, name in IMAGES:
        if image_id == call.path("id"):
            return Answer(_image(call, image_id, name))
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
    if body.enable_public_ipv4 and not sku.public:
        raise invalid([("enable_public_ipv4", "unsupported", "the SKU has no public addresses")])
    if body.enable_infiniband and sku.rdma != "infiniband":
        raise invalid([("_preview_enable_infiniband", "unsupported", "the SKU has no InfiniBand")])
    if body.firewall not in (None, *FIREWALLS):
        raise ApiError(404, "no such firewall")
    options = {"enable_public_ipv4": body.enable_public_ipv4, "tags": body.tags or {}}
    if body.firewall is not None:
        options["firewall"] = FIREWALLS[0]  # by its id, whether its path was sent or that
    try:
        made = call.market.instances.create(
            where, sku, image=body.image, name=body.name, user_data=body.cloud_init_user_data,
            priority=body.priority_level, options=options, infiniband=body.enable_infiniband,
        )  # fmt: skip
    except OverPoolError:
        raise ApiError(422, "the pool never has so many nodes of this SKU") from None
    return Answer(instance(made), 201)


def _instances(call: Call) -> Answer:
    states, where = call.queries("status"), call.query("pool")
    found = [
        each
        for each in unlagged(call, SFCOMPUTE, call.market.instances.by_id.values())
        if (not states or each.status in states) and where in (None, each.pool.id)
    ]
    return page(call, with_odd_status(call, [instance(each) for each in found]), "nodec")


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
