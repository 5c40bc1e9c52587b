"""The market's own controls, below /simulation: clock, faults, knobs, books, and a view of all."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field, ValidationError
from starlette.routing import Mount

from longshore.models.base import Frozen
from longshore.models.market import Side
from longshore.simulation.market.background import Profile
from longshore.simulation.market.catalogue import SKU
from longshore.simulation.market.faults import FAULTS, FOREVER
from longshore.simulation.market.http import Answer, Api, ApiError, Call
from longshore.simulation.market.instances import Instance
from longshore.simulation.market.market import Market
from longshore.simulation.market.rates import per_gpu_hour, rate_of_gpu_hour
from longshore.simulation.market.schedule import Schedule
from longshore.simulation.market.sfcompute_json import error, instance, order, pool
from longshore.simulation.market.world import Knobs

_MONTH = 30 * 24 * 60
"""Minutes."""
_YEAR = 366 * 24 * 3600
FASTEST = 100_000
"""More than a day a second is no clock that anybody could follow."""
WORKED_EXAMPLE: tuple[tuple[Literal["buy", "sell"], str, int], ...] = (
    ("sell", "24", 32), ("sell", "24.5", 64), ("sell", "25", 128), ("sell", "25.5", 48),
    ("sell", "26", 96), ("sell", "27", 64),
    ("buy", "23", 16), ("buy", "22.5", 24), ("buy", "22", 48), ("buy", "21", 32),
)  # fmt: skip
"""Side, dollars per GPU-hour, GPUs: the book of the documentation's example."""


class ClockBody(Frozen):
    advance_seconds: float | None = Field(default=None, ge=0, le=_YEAR)
    speed: float | None = Field(default=None, ge=0, le=FASTEST)


class FaultBody(Frozen):
    name: str
    times: int = Field(default=1, ge=FOREVER)
    provider: Literal["sfcompute", "prime"] | None = None
    route: str | None = None
    seller: str | None = None


class ScriptedOrder(Frozen):
    side: Literal["buy", "sell"]
    dollars_per_gpu_hour: Decimal = Field(gt=0)
    nodes: int = Field(ge=1)
    start_at: int | None = Field(default=None, multiple_of=60)
    """Unix seconds; the hour that has begun when left out."""
    end_at: int | None = Field(default=None, multiple_of=60)
    """30 days after the start when left out."""
    divisible: bool = True


class BooksBody(Frozen):
    sku: str | None = None
    """Id or alias; the first of `accelerator` when left out."""
    accelerator: str = "h100"
    clear: bool = False
    """Send every stranger away first, for good."""
    worked_example: bool = False
    """Place the book of the documentation's example."""
    orders: tuple[ScriptedOrder, ...] = ()


def routes(market: Market, token: str) -> Mount:
    api = Api("simulation", market, token, error)
    return Mount(
        "/simulation",
        routes=[
            api.route("GET", "/clock", _clock),
            api.route("POST", "/clock", _move_clock),
            api.route("GET", "/faults", _faults),
            api.route("POST", "/faults", _set_fault),
            api.route("DELETE", "/faults", _clear_faults),
            api.route("GET", "/knobs", _knobs),
            api.route("POST", "/knobs", _turn_knobs),
            api.route("GET", "/books", _books),
            api.route("POST", "/books", _place),
            api.route("GET", "/state", _state),
        ],
    )


def _clock(call: Call) -> Answer:
    clock = call.market.world.clock
    return Answer({"now": clock.now, "speed": clock.factor})


def _move_clock(call: Call) -> Answer:
    body, clock = call.body(ClockBody), call.market.world.clock
    if body.speed is not None:
        clock.set_factor(body.speed)
    clock.advance(body.advance_seconds or 0)
    return _clock(call)


def _faults(call: Call) -> Answer:
    faults = call.market.world.faults
    armed = {
        each.fault.name: {
            "times": each.times,
            "provider": each.provider,
            "route": each.route,
            "seller": each.seller,
        }
        for each in faults.armed
    }
    known = [
        {
            "name": fault.name,
            "providers": list(fault.providers),
            "route": fault.route,
            "sentence": fault.sentence,
            "set": armed.get(fault.name),
            "happened": faults.happened.get(fault.name, 0),
        }
        for fault in FAULTS.values()
    ]
    return Answer({"faults": known})


def _set_fault(call: Call) -> Answer:
    body = call.body(FaultBody)
    if body.name not in FAULTS:
        raise ApiError(404, f"no such fault: {body.name}. GET /simulation/faults lists them")
    call.market.world.faults.set(
        body.name, body.times, provider=body.provider, route=body.route, seller=body.seller
    )
    return _faults(call)


def _clear_faults(call: Call) -> Answer:
    call.market.world.faults.clear()
    return _faults(call)


def _knobs(call: Call) -> Answer:
    return Answer(call.market.world.knobs.model_dump())


def _turn_knobs(call: Call) -> Answer:
    world = call.market.world
    try:
        world.knobs = Knobs.model_validate({**world.knobs.model_dump(), **call.json()})
    except (ValidationError, TypeError) as problem:
        raise ApiError(422, str(problem)) from None
    return _knobs(call)


def _books(call: Call) -> Answer:
    exchange = call.market.exchange
    return Answer(
        {
            sku.alias: {
                side.value: [
                    {
                        "owner": each.owner,
                        "per_gpu_hour": per_gpu_hour(each.price, sku.gpus),
                        "schedule": [list(step) for step in each.remaining],
                    }
                    for each in exchange.book(sku.id).orders(side)
                ]
                for side in Side
            }
            for sku in exchange.skus.values()
        }
    )


def _place(call: Call) -> Answer:
    body, exchange = call.body(BooksBody), call.market.exchange
    sku = _sku(call, body)
    if body.clear:
        exchange.send_strangers_away()
    example = tuple(
        ScriptedOrder(side=side, dollars_per_gpu_hour=Decimal(dollars), nodes=gpus // sku.gpus)
        for side, dollars, gpus in WORKED_EXAMPLE
        if body.worked_example
    )
    hour = call.market.world.clock.minute // 60 * 60
    ids: list[str] = []
    for each in (*example, *body.orders):
        start = hour if each.start_at is None else each.start_at // 60
        end = start + _MONTH if each.end_at is None else each.end_at // 60
        if end <= start:
            raise ApiError(422, "end_at must be after start_at")
        ids.append(
            exchange.script(
                sku.id,
                Side(each.side),
                rate_of_gpu_hour(each.dollars_per_gpu_hour, sku.gpus),
                Schedule.of(start, end, each.nodes),
                divisible=each.divisible,
            )
        )
    return Answer({"sku": sku.id, "orders": ids}, 201)


def _sku(call: Call, body: BooksBody) -> SKU:
    for sku in call.market.exchange.skus.values():
        if body.sku in (sku.id, sku.alias):
            return sku
        if body.sku is None and sku.accelerator == body.accelerator.lower():
            return sku
    raise ApiError(404, "no such SKU")


def _state(call: Call) -> Answer:
    """Answer with everything at a glance; amounts are micro-dollars, no page is cut."""
    market = call.market
    minute = market.world.clock.minute
    return Answer(
        {
            "now": market.world.clock.now,
            "seed": market.options.seed,
            "profile": Profile(market.options.profile).value,
            "money": {
                "sfcompute": {
                    "balance": market.ledger.balance,
                    "available": market.ledger.available,
                    "holds": market.ledger.holds,
                },
                "prime": {"balance": market.cloud.wallet.balance},
            },
            "orders": _all(order, market.exchange.orders.values()),
            "pools": [pool(each, minute) for each in market.instances.pools.values()],
            "instances": _all(_instance, market.instances.by_id.values()),
            "pods": _all(lambda pod: pod.state(), market.cloud.pods.values()),
            "faults": market.world.faults.happened,
        }
    )


def _instance(record: Instance) -> dict[str, Any]:
    """Return an instance as its API shows it, and what that does not say."""
    return {**instance(record), "infiniband": record.infiniband}


def _all(write: Callable[[Any], Any], things: Any) -> list[Any]:
    return [write(each) for each in things]
