"""What San Francisco Compute publishes of the calls that the client makes: requests and answers.

Source: the OpenAPI document of its public preview v2, put together from the blocks that are
published on https://docs.sfcompute.com/preview/api-reference/, as the copy of 2026-07-21 in the
GitHub repository api-evangelist/the-san-francisco-compute-company (openapi/) has it; read on
2026-11-21. The balance is of v1: src/schema.ts of https://github.com/sfcompute/cli of 2026-05-27.
The lists are in our words: names, kinds, and what may be left out.

Unverified, since no document has it: 429 and its body; 403, 500 and 503 where a call does not
list them (a token without a role gets 403, says docs.sfcompute.com); 409 for a key that was used
with another body; of `balances` whether its cents are integers, and what `updated_at` is.
"""

from tests.providers.exchanges import Endpoint
from tests.providers.shapes import (
    Shape,
    boolean,
    by_key,
    either,
    fields,
    like,
    null,
    number,
    or_null,
    several,
    text,
    unverified,
    whole,
    word,
)

V2 = "/preview/v2"
_DOCS = "https://docs.sfcompute.com/preview/api-reference/"
_PART = "[a-zA-Z0-9._-]+"
_NAME = like(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,254}")
_SECOND = whole(0)
_RATE = like(r"\d+\.\d+")
"""Dollars per node-hour."""
_TAGS = by_key(like(r"[^_,= ][^,= ]{0,127}"), like(r"[^,=]{0,256}"))


def _id(prefix: str) -> Shape:
    return like(f"{prefix}_[0-9a-zA-Z_-]{{1,21}}")


def _id_or_path(prefix: str, kind: str, parts: int) -> Shape:
    return either(_id(prefix), like(f"sfc:{kind}:{_PART}(:{_PART}){{{parts}}}"))


def _path(kind: str, parts: int) -> Shape:
    return like(f"sfc:{kind}:({_PART}:){{{parts}}}{_PART}")


_SKU_ID = _id("isku")
_POOL = _id_or_path("pool", "pool", 2)
_WORKSPACE = _id_or_path("wksp", "workspace", 1)
_SCHEDULE = several(
    fields({"start_at": _SECOND, "end_at?": or_null(_SECOND), "node_count": whole(0)})
)
_ONE_WINDOW = several(
    fields({"start_at": _SECOND, "end_at": _SECOND, "node_count": whole(1)}), 1, 1
)
"""The prose of an order: a single range with both ends."""
_REQUIREMENTS = by_key(_NAME, several(_NAME))
_SKU = fields({"object": word("instance_sku"), "id": _SKU_ID, "alias": _NAME})
_POOL_SUMMARY = fields({"id": _id("pool"), "name": _NAME})
_CAPACITY_SUMMARY = fields({"id": either(_id("cap"), _id("pool")), "name": _NAME})
_WHERE = {"owner": _NAME, "workspace": _NAME, "workspace_id": _id("wksp"), "name": _NAME}


def _property(value: Shape) -> Shape:
    return or_null(fields({"value": value, "display_value": text}))


_FULL_SKU = fields(
    {
        "object": word("instance_sku"),
        "id": _SKU_ID,
        "alias": _NAME,
        "region?": _property(text),
        "availability_zone?": _property(text),
        "accelerator?": _property(text),
        "form_factor?": _property(text),
        "rdma_type?": _property(word("infiniband", "roce")),
        "num_accelerators?": _property(whole(0)),
        "num_vcpus?": _property(whole(0)),
        "memory?": _property(whole(0)),
        "local_storage?": _property(whole(0)),
        "supports_public_ipv4?": _property(boolean),
        "audience_hint?": or_null(text),
    }
)
_ORDER_BODY = fields(
    {
        "pool": _POOL,
        "side": word("buy", "sell"),
        "instance_sku": _SKU_ID,
        "allocation_schedule_delta": _ONE_WINDOW,
        "limit_price_dollars_per_node_hour": _RATE,
        "allow_standing?": boolean,
        "allow_partial?": boolean,
    }
)
_ORDER = fields(
    {
        "object": word("order"),
        "id": _id("ordr"),
        "capacity": _CAPACITY_SUMMARY,
        "pool": _POOL_SUMMARY,
        "side": word("buy", "sell"),
        "allow_standing": boolean,
        "allow_partial?": boolean,
        "instance_sku": _SKU,
        "allocation_schedule_delta": _SCHEDULE,
        "filled_allocation_schedule_delta": _SCHEDULE,
        "limit_price_dollars_per_node_hour": _RATE,
        "status": word(
            "pending", "filled", "partially_filled", "rejected", "cancelled", "standing"
        ),
        "created_at": _SECOND,
        "created_by?": or_null(
            fields(
                {
                    "id": text,
                    "type": word("user", "token"),
                    "email?": or_null(text),
                    "name?": or_null(text),
                }
            )
        ),
        "filled_at?": or_null(_SECOND),
        "filled_average_price_dollars_per_node_hour?": or_null(_RATE),
        "fills?": several(
            fields(
                {
                    "contract?": or_null(_id("cont")),
                    "filled_at": _SECOND,
                    "allocation_schedule_delta": _SCHEDULE,
                    "price_dollars_per_node_hour": _RATE,
                }
            )
        ),
        "cancelled_at?": or_null(_SECOND),
    }
)
_FEE = fields({"flat_dollars_per_node_hour": _RATE, "percentage_bps": whole()})
_NOTICES = several(
    fields(
        {
            "type": word("maintenance_window"),
            "start_at": _SECOND,
            "end_at": _SECOND,
            "maintenance_type": word("info", "degraded_performance", "marketplace_unavailable"),
            "title": text,
            "description": text,
            "action_message?": or_null(text),
        }
    )
)
_PREVIEW = either(
    fields(
        {
            "type": word("quoted"),
            "post_order_body": _ORDER_BODY,
            "fee": _FEE,
            "notices?": _NOTICES,
        }
    ),
    fields(
        {
            "type": word("unavailable"),
            "reason": word("no_matching_instance_skus", "no_availability"),
            "fee?": or_null(_FEE),
            "notices?": _NOTICES,
        }
    ),
)
_POOL_ANSWER = fields(
    {
        "object": word("pool"),
        "id": _id("pool"),
        "resource_path": _path("pool", 2),
        **_WHERE,
        "kind": word("market", "originating", "read_only"),
        "allocation_schedule": fields(
            {"total": _SCHEDULE, "by_instance_sku": by_key(_SKU_ID, _SCHEDULE)}
        ),
        "procurements?": several(fields({"id": _id("proc"), "name": _NAME})),
        "deployments?": several(fields({"id": _id("depl"), "name": _NAME})),
        "created_at": _SECOND,
        "tags?": or_null(_TAGS),
    }
)
_PRIORITY = word("yield", "normal", "preferred", "critical")
_INSTANCE_BODY = fields(
    {
        "pool": _POOL,
        "image": _id_or_path("image", "image", 2),
        "instance_sku": _SKU_ID,
        "name?": or_null(_NAME),
        "cloud_init_user_data?": like(r"[A-Za-z0-9+/]*={0,2}"),
        "enable_public_ipv4?": boolean,
        "firewall?": or_null(_id_or_path("frwl", "firewall", 2)),
        "tags?": or_null(_TAGS),
        "priority_level?": or_null(_PRIORITY),
        "_preview_enable_infiniband?": boolean,
    }
)
_INSTANCE = fields(
    {
        "object": word("instance"),
        "id": _id("inst"),
        "resource_path": _path("instance", 2),
        **_WHERE,
        # The document says that more may come; these are all that it knows.
        "status": word("awaiting_allocation", "running", "terminated", "failed"),
        "instance_sku": _SKU,
        "capacity": _CAPACITY_SUMMARY,
        "pool": _POOL_SUMMARY,
        "image": fields({"id": _id("image"), "name": _NAME}),
        "created_at": _SECOND,
        "updated_at": _SECOND,
        "managed_by?": or_null(
            fields({"object": word("deployment", "spot_deployment"), "id": text, "name": _NAME})
        ),
        "cloud_init_user_data_used": boolean,
        "cloud_init_user_data?": text,
        "enable_public_ipv4?": boolean,
        "public_ip?": text,
        "firewall?": or_null(_id("frwl")),
        "tags?": or_null(_TAGS),
        "expected_shutdown_at?": null,
        "priority_level?": or_null(_PRIORITY),
    }
)
_IMAGE = fields(
    {
        "object": word("image"),
        "id": _id("image"),
        "resource_path": _path("image", 2),
        **_WHERE,
        "is_public": boolean,
        "upload_status": word("started", "uploading", "completed", "failed", "revoked"),
        "created_at": _SECOND,
        "provider?": or_null(text),
        "sha256?": or_null(like("[a-f0-9]{64}")),
    }
)
_WORKSPACE_ANSWER = fields(
    {
        "object": word("workspace"),
        "id": _id("wksp"),
        "resource_path": _path("workspace", 1),
        "owner": _NAME,
        "name": _NAME,
        "created_at": _SECOND,
    }
)
_LEVEL = fields(
    {
        "instance_sku": _SKU_ID,
        "dollars_per_node_hour": _RATE,
        "allocation_schedule_delta": _SCHEDULE,
    }
)
_DEPTH = fields(
    {
        "requirements": _REQUIREMENTS,
        "start_at": _SECOND,
        "end_at": _SECOND,
        "requested_at": _SECOND,
        "bids": several(_LEVEL),
        "asks": several(_LEVEL),
    }
)
_ME = fields(
    {
        "object": word("account"),
        "account_id": text,
        "created_at": _SECOND,
        "entity_type?": or_null(word("personal", "business")),
        "user?": or_null(
            fields(
                {
                    "object": word("user"),
                    "id": _NAME,
                    "resource_path": like(f"sfc:user:{_PART}"),
                    "created_at": _SECOND,
                    "email?": or_null(text),
                    "first_name?": or_null(text),
                    "last_name?": or_null(text),
                }
            )
        ),
    }
)
_BALANCES = fields(
    {
        "object": word("balances"),
        "available_balance_cents": number,
        "current_balance_cents": number,
        "current_overage_cents": number,
        "overage_limit_cents": number,
        "updated_at": unverified,
    }
)


def _error(*kinds: str, details: bool = False) -> Shape:
    detail = fields({"field?": or_null(text), "code": text, "message": text})
    inner: dict[str, Shape] = {"type": word(*kinds), "message": text}
    return fields({"error": fields(inner | ({"details?": several(detail)} if details else {}))})


_REFUSALS: dict[int, Shape] = {
    400: _error("invalid_request_error", details=True),
    401: _error("authentication_error"),
    402: _error("payment_required"),
    403: _error("forbidden"),
    404: _error("not_found"),
    409: _error("conflict", "idempotency_error", details=True),
    422: _error("unprocessable_entity", details=True),
    429: unverified,
    500: _error("api_error"),
    503: _error("service_unavailable"),
}
_ANYWHERE = (401, 403, 429, 500, 503)


def _refusals(*more: int) -> dict[int, Shape]:
    return {status: _REFUSALS[status] for status in (*_ANYWHERE, *more)}


def _paged(prefix: str) -> dict[str, Shape]:
    cursor = like(f"{prefix}_[A-Za-z0-9_-]+")
    return {
        "limit?": whole(1, 200),
        "starting_after?": cursor,
        "ending_before?": cursor,
    }


def _page(item: Shape, prefix: str) -> Shape:
    cursor = or_null(like(f"{prefix}_[A-Za-z0-9_-]+"))
    listed = {"object": word("list"), "cursor?": cursor, "has_more": boolean}
    return fields({**listed, "data": several(item)})


ENDPOINTS = (
    Endpoint(f"GET {V2}/me", _DOCS, answers={200: _ME, **_refusals(404)}),
    Endpoint(
        f"GET {V2}/workspaces",
        _DOCS,
        query={"id?": several(either(_WORKSPACE, _NAME))},
        answers={
            # It has no cursor, and takes no limit.
            200: fields(
                {"object": word("list"), "has_more": boolean, "data": several(_WORKSPACE_ANSWER)}
            ),
            **_refusals(422),
        },
    ),
    Endpoint(
        f"GET {V2}/images",
        _DOCS,
        query={"workspace?": _WORKSPACE, "id?": several(_id("image")), **_paged("imagec")},
        answers={200: _page(_IMAGE, "imagec"), **_refusals(400)},
    ),
    Endpoint(f"GET {V2}/images/{{id}}", _DOCS, answers={200: _IMAGE, **_refusals(404)}),
    Endpoint(
        f"GET {V2}/instance_skus",
        _DOCS,
        query=_paged("iskuc"),
        answers={200: _page(_FULL_SKU, "iskuc"), **_refusals(422)},
    ),
    Endpoint(
        f"GET {V2}/orderbook/depth",
        _DOCS,
        query={
            "requirements?": like(r"[^:;]+(:[^:;]+)?:[^:;]+(;[^:;]+(:[^:;]+)?:[^:;]+)*"),
            "start_at": _SECOND,
            "end_at": _SECOND,
            "depth?": whole(1, 100),
        },
        answers={200: _DEPTH, **_refusals(422)},
    ),
    Endpoint(
        f"POST {V2}/order_preview",
        _DOCS,
        body=fields(
            {
                "side": word("buy", "sell"),
                "requirements": _REQUIREMENTS,
                "start_at": _SECOND,
                "duration_seconds": whole(60),
                "node_count": whole(1),
                "pool?": or_null(_POOL),
            }
        ),
        answers={200: _PREVIEW, **_refusals(422)},
    ),
    Endpoint(
        f"POST {V2}/orders",
        _DOCS,
        body=_ORDER_BODY,
        keyed=True,
        answers={201: _ORDER, **_refusals(402, 404, 409, 422)},
    ),
    Endpoint(
        f"GET {V2}/orders",
        _DOCS,
        query={
            "id?": several(_id("ordr")),
            "pool?": _POOL,
            "workspace?": either(_WORKSPACE, _NAME),
            "side?": word("buy", "sell"),
            "status?": several(text),
            "created_after?": _SECOND,
            "created_before?": _SECOND,
            "procurement?": _id_or_path("proc", "procurement", 2),
            "sort_by?": word("created_at", "-created_at", "start_at", "-start_at"),
            **_paged("ordrc"),
        },
        answers={200: _page(_ORDER, "ordrc"), **_refusals(422)},
    ),
    Endpoint(f"GET {V2}/orders/{{id}}", _DOCS, answers={200: _ORDER, **_refusals(404)}),
    Endpoint(f"DELETE {V2}/orders/{{id}}", _DOCS, answers={204: null, **_refusals(404, 422)}),
    Endpoint(
        f"POST {V2}/pools",
        _DOCS,
        body=fields({"workspace": _WORKSPACE, "name?": or_null(_NAME), "tags?": or_null(_TAGS)}),
        answers={201: _POOL_ANSWER, **_refusals(422)},
    ),
    Endpoint(
        f"GET {V2}/pools",
        _DOCS,
        query={
            "workspace?": either(_WORKSPACE, _NAME),
            "id?": several(either(_POOL, _NAME)),
            "schedule_history_minutes?": whole(0, 1440),
            "tag?": several(text),
            "tag_key?": several(text),
            **_paged("poolc"),
        },
        answers={200: _page(_POOL_ANSWER, "poolc"), **_refusals(422)},
    ),
    Endpoint(
        f"GET {V2}/pools/{{id}}",
        _DOCS,
        query={"schedule_history_minutes?": whole(0, 1440)},
        answers={200: _POOL_ANSWER, **_refusals(404)},
    ),
    Endpoint(
        f"POST {V2}/instances",
        _DOCS,
        body=_INSTANCE_BODY,
        answers={201: _INSTANCE, **_refusals(404, 422)},
    ),
    Endpoint(
        f"GET {V2}/instances",
        _DOCS,
        query={
            "workspace?": either(_WORKSPACE, _NAME),
            "id?": several(_id("inst")),
            "pool?": several(_POOL),
            "status?": several(text),
            "created_after?": _SECOND,
            "created_before?": _SECOND,
            "instance_sku?": several(_SKU_ID),
            "include?": several(word("cloud_init_user_data")),
            "tag?": several(text),
            "tag_key?": several(text),
            **_paged("nodec"),
        },
        answers={200: _page(_INSTANCE, "nodec"), **_refusals(404, 422)},
    ),
    Endpoint(f"GET {V2}/instances/{{id}}", _DOCS, answers={200: _INSTANCE, **_refusals(404)}),
    Endpoint(
        f"POST {V2}/instances/{{id}}/terminate",
        _DOCS,
        answers={200: _INSTANCE, **_refusals(404)},
    ),
    Endpoint(
        "GET /v1/balances",
        "https://github.com/sfcompute/cli, src/schema.ts",
        answers={200: _BALANCES, **_refusals(404)},
    ),
)
