"""Scenes of faults of Prime Intellect alone."""

from datetime import timedelta

import pytest

from longshore.models.errors import (
    GoneError,
    InvalidOrderError,
    MarketAwayError,
    OfferRefusedError,
)
from longshore.models.market import (
    MachineState,
    OrderState,
)
from longshore.simulation.market.faults import FOREVER, PRIME
from tests.providers.contract import TYPE
from tests.providers.fault_scenes import Shop, meets, refused


@meets(
    "empty_availability", (PRIME,),
    "looks again, and at the summary; `MarketAwayError` when the two contradict each other",
)  # fmt: skip
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    assert await shop.provider.offers()
    await shop.control.fault(fault, FOREVER)
    with pytest.raises(MarketAwayError, match="its summary has") as raised:
        await shop.provider.offers()
    assert not raised.value.uncertain
    with pytest.raises(MarketAwayError, match="its summary has"):
        await shop.provider.book(TYPE)


@meets("stale_offer", (PRIME,), "`GoneError`: take another offer")
async def _(shop: Shop, fault: str) -> None:
    await refused(shop, fault, GoneError, 400, "no longer available")


@meets(
    "seller_refuses", (PRIME,),
    "`OfferRefusedError` with the market's sentence: take an offer of another seller",
)  # fmt: skip
async def _(shop: Shop, fault: str) -> None:
    await refused(shop, fault, OfferRefusedError, 400, "is not supported by the provider")


@meets("pod_cap", (PRIME,), "`InvalidOrderError` with the market's sentence")
async def _(shop: Shop, fault: str) -> None:
    await refused(shop, fault, InvalidOrderError, 400, "limit of running instances")


@meets("fastapi_error", (PRIME,), "`InvalidOrderError` with a line for each field")
async def _(shop: Shop, fault: str) -> None:
    said = "body.pod.gpuType: simulated: not a GPU type"
    await refused(shop, fault, InvalidOrderError, 422, said)


@meets("pod_error", (PRIME,), "order REJECTED without fills, machine FAILED, with the reason")
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    placed = await shop.provider.order(await shop.request())
    order = await shop.settled(placed.id)
    assert (order.state, order.fills) == (OrderState.REJECTED, ())
    assert "could not start" in order.reason
    assert await shop.machine_state(placed.id) is MachineState.FAILED


@meets("pod_without_ssh", (PRIME,), "order FILLED, machine STARTING for ever, and billed")
async def _(shop: Shop, fault: str) -> None:
    await shop.control.fault(fault)
    placed = await shop.provider.order(await shop.request())
    assert (await shop.settled(placed.id)).state is OrderState.FILLED
    await shop.control.advance(timedelta(minutes=30))
    assert await shop.machine_state(placed.id) is MachineState.STARTING
    assert shop.simulated.cloud.pods[placed.id].billed > 0


@meets(
    "spot_lost",
    (PRIME,),
    "machine ENDING while it is announced; then ENDED with what was billed,"
    " the cost of its CANCELLED order",
)
async def _(shop: Shop, fault: str) -> None:
    placed = await shop.provider.order(await shop.request())
    await shop.settled(placed.id)
    await shop.control.advance(timedelta(minutes=10))
    world = shop.simulated.world
    world.knobs = world.knobs.model_copy(update={"spot_notice_seconds": 30.0})
    await shop.control.fault(fault)
    assert await shop.machine_state(placed.id) is MachineState.ENDING
    await shop.control.advance(timedelta(seconds=31))
    machine = await shop.provider.machine(placed.id)
    assert machine.state is MachineState.ENDED
    assert machine.billed == shop.simulated.cloud.pods[placed.id].billed > 0
    order = await shop.provider.order_by_id(placed.id)
    assert (order.state, order.fills[0].cost) == (OrderState.CANCELLED, machine.billed)
    assert await shop.provider.machines() == []


@meets("pod_stopped", (PRIME,), "machine FAILED, and billed on: it is stopped")
async def _(shop: Shop, fault: str) -> None:
    machine = await shop.start()
    await shop.reached(machine.id, MachineState.READY)
    await shop.control.fault(fault)
    assert await shop.machine_state(machine.id) is MachineState.FAILED
    before = shop.simulated.cloud.pods[machine.id].billed
    await shop.control.advance(timedelta(minutes=2))
    assert shop.simulated.cloud.pods[machine.id].billed > before
    await shop.provider.stop_machine(machine.id)
    assert await shop.machine_state(machine.id) is MachineState.ENDED


@meets("delete_error", (PRIME,), "asks again; `MarketAwayError` when it goes on: the pod runs")
async def _(shop: Shop, fault: str) -> None:
    machine = await shop.start()
    await shop.control.fault(fault, FOREVER)
    with pytest.raises(MarketAwayError) as raised:
        await shop.provider.stop_machine(machine.id)
    assert raised.value.status == 500
    assert [each.id for each in await shop.provider.machines()] == [machine.id]
    await shop.control.fault(fault)
    await shop.provider.stop_machine(machine.id)
    assert await shop.machine_state(machine.id) is MachineState.ENDED


@meets("delete_late", (PRIME,), "asks again until the market says that it is over, FAILED or not")
async def _(shop: Shop, fault: str) -> None:
    machine = await shop.start()
    await shop.control.fault(fault)
    await shop.provider.stop_machine(machine.id)
    assert await shop.machine_state(machine.id) is not MachineState.ENDED
    await shop.control.advance(timedelta(seconds=10))
    assert await shop.machine_state(machine.id) is MachineState.ENDED


@meets("price_above", (PRIME,), "its price is the pod's own: the step that waits for it stops it")
async def _(shop: Shop, fault: str) -> None:
    usual = await shop.start()
    await shop.control.fault(fault)
    assert (await shop.start()).price == 2 * (usual.price or 0)


@meets("late_bill", (PRIME,), "a pass of `longshore reconcile` finds it and books it")
async def _(shop: Shop, fault: str) -> None:
    machine = await shop.start()
    await shop.control.fault(fault)
    await shop.provider.stop_machine(machine.id)
    before = (await shop.provider.machine(machine.id)).billed or 0
    await shop.control.advance(timedelta(seconds=1))
    assert ((await shop.provider.machine(machine.id)).billed or 0) > before
