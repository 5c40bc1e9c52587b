"""Turns San Francisco Compute's shapes into ours."""

from decimal import ROUND_CEILING, Decimal

from longshore.activities.providers import sfcompute_units as units
from longshore.activities.providers.sfcompute_shapes import (
    Fee,
    Instance,
    OrderFill,
    OrderPreview,
    OrderShape,
    PriceLevel,
    Sku,
)
from longshore.models.market import (
    Fill,
    InstanceType,
    Level,
    Machine,
    MachineState,
    NoQuote,
    NoQuoteReason,
    Order,
    OrderRequest,
    OrderState,
    Preview,
    Side,
    Window,
)
from longshore.models.money import MICRO, MOST

NAME = "sfcompute"
USUAL_GPUS = 8
"""Of a node, where its type does not say."""

_ORDER_STATES = {
    "pending": OrderState.PENDING,
    "standing": OrderState.STANDING,
    "partially_filled": OrderState.PARTIAL,
    "filled": OrderState.FILLED,
    "cancelled": OrderState.CANCELLED,
    "rejected": OrderState.REJECTED,
}
_MACHINE_STATES = {
    "awaiting_allocation": MachineState.STARTING,
    "running": MachineState.READY,
    "failed": MachineState.FAILED,
    "terminated": MachineState.ENDED,
}


def instance_type(sku: Sku) -> InstanceType | None:
    """Return what a SKU is; None for one without GPUs. Its answers name no memory."""
    count = sku.num_accelerators.value if sku.num_accelerators else USUAL_GPUS
    if sku.accelerator is None or count < 1:
        return None
    return InstanceType(gpus=count, gpu_type=sku.accelerator.value.upper())


def fabric_of(sku: Sku) -> str:
    """Return the fast fabric of a SKU's machines, in the market's word; empty for none."""
    fabric = sku.rdma_type.value.casefold() if sku.rdma_type else ""
    return "" if fabric == "none" else fabric


def gpus_of(sku: Sku | None) -> int:
    """Return how many GPUs a node has."""
    kind = instance_type(sku) if sku else None
    return kind.gpus if kind else USUAL_GPUS


def levels(level: PriceLevel, sku: Sku, side: Side) -> list[Level]:
    """Return one price level of the book, none for a price that no amount can be; `side` is who
    stands there."""
    gpus = gpus_of(sku)
    to_price = units.ask_price if side is Side.SELL else units.bid_price
    price = to_price(level.dollars_per_node_hour, gpus)
    if price > MOST:
        return []  # one row that nobody means does not hide the others
    return [
        Level(price=price, gpus=piece.nodes * gpus, start=piece.start, end=piece.end, place=sku.id)
        for piece in units.rectangles(level.allocation_schedule_delta)
    ]


def order(shape: OrderShape, sku: Sku | None, *, key: str | None, simulated: bool) -> Order:
    """Return an order with all of its fills, whatever its state."""
    gpus = gpus_of(sku)
    kind = instance_type(sku) if sku else None
    wanted = shape.allocation_schedule_delta[0]
    side = Side.SELL if shape.side == "sell" else Side.BUY
    fills = [fill for one in _fill_shapes(shape) for fill in _fills(one, gpus)]
    return Order(
        provider=NAME,
        id=shape.id,
        key=key,
        side=side,
        state=_order_state(shape, bool(fills)),
        instance_type=str(kind) if kind else "",
        gpus_per_node=gpus,
        nodes=wanted.node_count,
        window=_window(wanted.start_at, wanted.end_at),
        limit=units.gpu_hour_price(shape.limit_price_dollars_per_node_hour, gpus),
        fills=tuple(fills),
        account=shape.pool.id if shape.pool else None,
        place=shape.instance_sku.id,
        created_at=units.moment(shape.created_at),
        simulated=simulated,
        native_state=shape.status,
    )


def machine(shape: Instance, sku: Sku | None, *, simulated: bool) -> Machine:
    """Return an instance; a status that nobody knows counts as starting."""
    kind = instance_type(sku) if sku else None
    state = _MACHINE_STATES.get(shape.status, MachineState.STARTING)
    over = state in (MachineState.ENDED, MachineState.FAILED)
    return Machine(
        provider=NAME,
        id=shape.id,
        name=shape.name,
        state=state,
        instance_type=str(kind) if kind else "",
        gpus=gpus_of(sku),
        account=shape.pool.id if shape.pool else None,
        address=shape.public_ip,
        created_at=units.moment(shape.created_at),
        ended_at=units.moment(shape.updated_at) if over and shape.updated_at else None,
        simulated=simulated,
        native_state=shape.status,
    )


def preview(
    shape: OrderPreview, request: OrderRequest, window: Window, skus: list[Sku], *, simulated: bool
) -> Preview | NoQuote:
    """Return what an order would cost; no quote where it is unavailable, or for another SKU."""
    body = shape.post_order_body
    if shape.type != "quoted" or body is None:
        unknown = shape.reason == "no_matching_instance_skus"
        reason = NoQuoteReason.UNKNOWN_TYPE if unknown else NoQuoteReason.EMPTY
        return NoQuote(reason=reason, detail=f"{NAME}: {shape.reason or 'unavailable'}")
    sku = next((sku for sku in skus if sku.id == body.instance_sku), None)
    if sku is None:
        where = f" in {request.place}" if request.place else ""
        detail = f"{NAME}: what it quotes is no {request.instance_type}{where}"
        return NoQuote(reason=NoQuoteReason.LEFT_OUT, detail=detail)
    rate = body.limit_price_dollars_per_node_hour
    to_price = units.ask_price if request.side is Side.BUY else units.bid_price
    return Preview(
        provider=NAME,
        instance_type=request.instance_type,
        window=window,
        nodes=request.nodes,
        price=to_price(rate, gpus_of(sku)),
        fee=fee_of(shape.fee, rate, request.nodes, window) if shape.fee else 0,
        fee_bps=shape.fee.percentage_bps if shape.fee else 0,
        fee_flat=_micro(shape.fee.flat_dollars_per_node_hour) if shape.fee else 0,
        notices=tuple(f"{note.title}: {note.description}" for note in shape.notices),
        simulated=simulated,
    )


def fee_of(fee: Fee, rate: Decimal, nodes: int, window: Window) -> int:
    """Return the fee for an order that fills at `rate`, in micro-dollars, rounded up."""
    flat = units.cost(fee.flat_dollars_per_node_hour, nodes, window.length)
    share = Decimal(units.cost(rate, nodes, window.length) * fee.percentage_bps) / 10_000
    return flat + int(share.to_integral_value(ROUND_CEILING))


def _micro(dollars: Decimal) -> int:
    return int((dollars * MICRO).to_integral_value(ROUND_CEILING))


def _order_state(shape: OrderShape, has_fills: bool) -> OrderState:
    """Return the state; a word that nobody knows is never final unless the order says it ended."""
    known = _ORDER_STATES.get(shape.status)
    if known is not None:
        return known
    if shape.cancelled_at is not None:
        return OrderState.CANCELLED
    return OrderState.PARTIAL if has_fills else OrderState.PENDING


def _fill_shapes(shape: OrderShape) -> list[OrderFill]:
    """Return the fills; in one, at the average price, where an order only sums them up."""
    if shape.fills:
        return list(shape.fills)
    average = shape.filled_average_price_dollars_per_node_hour
    if not shape.filled_allocation_schedule_delta or average is None:
        return []
    return [
        OrderFill(
            filled_at=shape.filled_at or shape.created_at,
            allocation_schedule_delta=shape.filled_allocation_schedule_delta,
            price_dollars_per_node_hour=average,
        )
    ]


def _fills(shape: OrderFill, gpus: int) -> list[Fill]:
    rate = shape.price_dollars_per_node_hour
    return [
        Fill(
            at=units.moment(shape.filled_at),
            nodes=span.nodes,
            window=span.window,
            price=units.gpu_hour_price(rate, gpus),
            cost=units.cost(rate, span.nodes, span.window.length) if span.window else None,
        )
        for span in units.spans(shape.allocation_schedule_delta)
    ]


def _window(start: int, end: int | None) -> Window | None:
    if end is None or end <= start:
        return None
    return Window(start=units.moment(start), end=units.moment(end))
