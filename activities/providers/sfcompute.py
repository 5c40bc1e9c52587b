"""San Francisco Compute: time of whole nodes, bought by limit order, then used by instances.

Its API v2 is a preview; where its path begins is the setting `sfcompute_prefix`.
"""

import base64
from collections.abc import Sequence
from typing import Any

from longshore.activities.providers import sfcompute_reading as reading
from longshore.activities.providers import sfcompute_units as units
from longshore.activities.providers.access import Access, access
from longshore.activities.providers.base import type_of
from longshore.activities.providers.creation_lookup import Creations, look_by_id
from longshore.activities.providers.http import Answer, MarketHTTP, Patience, in_path
from longshore.activities.providers.http_errors import refused_for_good
from longshore.activities.providers.sfcompute_places import Places
from longshore.activities.providers.sfcompute_shapes import (
    Balances,
    Depth,
    Instance,
    Me,
    OrderPreview,
    OrderShape,
    Page,
    Sku,
)
from longshore.models.errors import (
    AnswerError,
    GoneError,
    InvalidOrderError,
    MarketAwayError,
    MarketError,
    OrderConflictError,
)
from longshore.models.market import (
    Account,
    Capabilities,
    InstanceType,
    Machine,
    MachineRequest,
    MachineState,
    NoQuote,
    NoQuoteReason,
    Offer,
    Order,
    OrderBook,
    OrderRequest,
    Preview,
    Side,
    Window,
)
from longshore.models.settings import Settings

_DEPTH = 100
_LARGEST_SCRIPT = 64 * 1024
_MICRO_PER_CENT = 10_000
NO_IMAGE = (
    "nothing is bought there, since no agent would come up: set LONGSHORE_SFCOMPUTE_IMAGE to an "
    "image with Longshore on it (docs/providers.md)"
)


def connect(settings: Settings) -> "SFCompute | None":
    """Return a client as the settings say; None when there is no token and no simulated market."""
    found = access(settings, settings.sfcompute_url, settings.sfcompute_token)
    if found is None:
        return None
    return SFCompute(
        found,
        prefix=settings.sfcompute_prefix,
        workspace=settings.sfcompute_workspace,
        image=settings.sfcompute_image,
        firewall=settings.sfcompute_firewall,
    )


class SFCompute:
    """A client of San Francisco Compute with one account. See `base.Provider` for the calls."""

    name = reading.NAME
    capabilities = Capabilities(
        order_book=True,
        fixed_window=True,
        resellable=True,
        idempotent=True,
        lot_gpus=reading.USUAL_GPUS,
        grain=units.GRAIN,
    )

    def __init__(
        self,
        found: Access,
        *,
        prefix: str = "/preview/v2",
        workspace: str | None = None,
        image: str | None = None,
        firewall: str | None = None,
        patience: Patience | None = None,
        **parts: Any,
    ) -> None:
        """Raises RefusedError when nothing may be sent to that address."""
        self._http = MarketHTTP(
            self.name, found, token_name="LONGSHORE_SFCOMPUTE_TOKEN", patience=patience, **parts
        )
        self._prefix = "/" + prefix.strip("/")
        self.no_buying = "" if image or found.mode != "real" else NO_IMAGE
        self._places = Places(self._http, self._prefix, workspace, image, firewall)
        self._machines = Creations(self._http, self._machine_named, self.machine)

    async def account(self) -> Account:
        answer = await self._http.get(f"{self._prefix}/me")
        return Account(
            provider=self.name,
            id=answer.read(Me).account_id,
            balance=await self._balance(),
            simulated=answer.simulated,
        )

    async def instance_types(self) -> Sequence[InstanceType]:
        kinds = map(reading.instance_type, await self._places.skus_for_all())
        by_name = {str(kind): kind for kind in kinds if kind}
        return [by_name[name] for name in sorted(by_name)]

    async def book(
        self, wanted: InstanceType, window: Window | None = None
    ) -> OrderBook | NoQuote:
        if window is not None:
            return await self._book(wanted, units.around(window))
        asked = units.next_hour(self._http.now())
        try:
            return await self._book(wanted, asked)
        except InvalidOrderError:
            # A market whose clock runs otherwise has told its time with the refusal.
            if (later := units.next_hour(self._http.now())) == asked:
                raise
            return await self._book(wanted, later)

    async def offers(self, wanted: InstanceType | None = None) -> Sequence[Offer]:
        return ()

    async def preview(self, request: OrderRequest) -> Preview | NoQuote:
        """As documented there; for a sale the fee is what is kept from it. Each SKU has its own:
        with a place that of another is no quote."""
        window = self._window_of(request)
        wanted = type_of(self.name, request)
        known = await self._places.skus_of(wanted, held=request.side is Side.SELL)
        skus = [sku for sku in known if request.place in (None, sku.id)]
        if not skus:
            return _no_such_type(wanted)
        answer = await self._http.ask(
            f"{self._prefix}/order_preview", _preview_body(request, window, skus[0])
        )
        shape = answer.read(OrderPreview)
        return reading.preview(shape, request, window, skus, simulated=answer.simulated)

    async def check_start(self, request: OrderRequest) -> None:
        """Look for the image, and whether the token may see instances: roles are granted one by
        one, and the right to order is not that to start. A firewall cannot be looked for: only
        that it is named as the market does."""
        if self.no_buying:
            raise InvalidOrderError(self.name, self.no_buying)
        if request.for_gang:
            self._places.check_firewall()
        await self._places.image()
        try:
            await self._http.get(f"{self._prefix}/instances", self._places.scope({"limit": "1"}))
        except (AnswerError, MarketAwayError):
            return  # that says nothing of the right; a start is tried again

    async def order(self, request: OrderRequest) -> Order:
        """Place an order under its key, which the market remembers: sent again, it is the first.

        Raises InvalidOrderError before anything is sent when the window is not of whole minutes,
        or no account is given.
        """
        window = self._window_of(request)
        if request.account is None:
            raise InvalidOrderError(self.name, "an order needs the account (pool) of its time")
        conflict: OrderConflictError | None = None
        for sku in await self._candidates(request, window):
            body = _order_body(request, window, sku, request.account)
            try:
                answer = await self._http.create(f"{self._prefix}/orders", body, key=request.key)
            except OrderConflictError as error:
                # The first order of this key was for another SKU of the same type.
                conflict = conflict or error
                continue
            except InvalidOrderError as error:
                if (refused := refused_for_good(error)) is None:
                    raise
                raise refused from error
            return await self._order(answer, key=request.key)
        raise conflict or InvalidOrderError(
            self.name, f"it does not trade {request.instance_type}"
        )

    async def find_order(self, key: str) -> Order | None:
        """Return None, always: this market tells nobody which order a key belongs to.

        It remembers the keys all the same (`capabilities.idempotent`): to learn what became of an
        order whose answer was lost, send it again.
        """
        return None

    async def order_by_id(self, order_id: str) -> Order:
        path = f"{self._prefix}/orders/{in_path(order_id)}"

        async def look() -> Order:
            return await self._order(await self._http.get(path))

        return await look_by_id(order_id, look, self.orders)

    async def orders(self) -> Sequence[Order]:
        params = self._places.scope({"sort_by": "-created_at"})
        shapes, simulated = await self._places.all(
            f"{self._prefix}/orders", Page[OrderShape], params
        )
        return [await self._order_of(shape, None, simulated) for shape in shapes]

    async def cancel_order(self, order_id: str) -> None:
        """Ask for the end of an order; one that has ended already is no error."""
        try:
            await self._http.delete(f"{self._prefix}/orders/{in_path(order_id)}")
        except (InvalidOrderError, OrderConflictError):
            if not (await self.order_by_id(order_id)).state.final:
                raise

    async def make_account(self, name: str) -> str:
        """Return the id of the pool of that name, made in the workspace if need be."""
        return (await self._places.make_pool(name)).id

    async def start_machine(self, request: MachineRequest) -> Machine:
        """Start an instance; its name is unique, and is looked for before one is asked for."""
        script = base64.b64encode(request.startup_script.encode()).decode()
        if len(script) > _LARGEST_SCRIPT:
            raise InvalidOrderError(self.name, "the start-up script is over 64 KB in base64")
        if (known := await self._machines.known(request.name)) is not None:
            return known
        wanted = InstanceType.parse(request.instance_type)
        sku = await self._places.sku_held(request.account, wanted, request.place)
        body: dict[str, object] = {
            "name": request.name,
            "pool": request.account,
            "image": await self._places.image(),
            "instance_sku": sku.id,
            "cloud_init_user_data": script,
        }
        if request.for_gang:
            body |= await self._to_meet(sku, request.account)
        secrets = (script, request.startup_script)
        try:
            answer = await self._http.create(f"{self._prefix}/instances", body, secrets=secrets)
            shape = answer.read(Instance)
        except (MarketAwayError, InvalidOrderError, OrderConflictError) as error:
            return await self._machines.after(request.name, error)
        self._machines.made(request.name, shape.id)
        return reading.machine(shape, sku, simulated=answer.simulated)

    async def machine(self, machine_id: str) -> Machine:
        path = f"{self._prefix}/instances/{in_path(machine_id)}"

        async def look() -> Machine:
            answer = await self._http.get(path)
            return await self._machine_of(answer.read(Instance), answer.simulated)

        return await look_by_id(machine_id, look, self._all_machines)

    async def machines(self) -> Sequence[Machine]:
        found = await self._all_machines()
        return [machine for machine in found if machine.state is not MachineState.ENDED]

    async def stop_machine(self, machine_id: str) -> None:
        try:
            await self._http.ask(f"{self._prefix}/instances/{in_path(machine_id)}/terminate")
        except GoneError:
            if any(machine.id == machine_id for machine in await self.machines()):
                raise
        except (InvalidOrderError, OrderConflictError):
            if (await self.machine(machine_id)).state is not MachineState.ENDED:
                raise

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _to_meet(self, sku: Sku, pool: str) -> dict[str, object]:
        """Return what an instance is asked for by so that ranks on it reach others: both are off
        unless they are asked for, and refused where the SKU does not have them."""
        wanted: dict[str, object] = {}
        if reading.fabric_of(sku) == "infiniband":
            wanted["_preview_enable_infiniband"] = True
        if sku.supports_public_ipv4:
            wanted["enable_public_ipv4"] = True
            wanted["firewall"] = await self._places.firewall(pool)
        return wanted

    async def _balance(self) -> int | None:
        """Return micro-dollars; None where it does not say: v2 has no call for it, v1 may go."""
        try:
            answer = await self._http.get("/v1/balances", tries=1)
            cents = answer.read(Balances).available_balance_cents
        except (MarketError, MarketAwayError):
            return None
        return None if cents is None else cents * _MICRO_PER_CENT

    async def _book(self, wanted: InstanceType, window: Window) -> OrderBook | NoQuote:
        skus = await self._places.skus_of(wanted)
        if not skus:
            return _no_such_type(wanted)
        answer = await self._depth(skus[0], window)
        depth = answer.read(Depth)
        by_id = {sku.id: sku for sku in skus}
        asks, bids = (
            [
                level
                for shape in shapes
                if (sku := by_id.get(shape.instance_sku))
                for level in reading.levels(shape, sku, side)
            ]
            for shapes, side in ((depth.asks, Side.SELL), (depth.bids, Side.BUY))
        )
        if not asks and not bids:
            return NoQuote(
                reason=NoQuoteReason.EMPTY,
                detail=f"{self.name}: nobody sells or buys {wanted} from "
                f"{window.start:%Y-%m-%d %H:%M} to {window.end:%Y-%m-%d %H:%M} UTC",
            )
        return OrderBook(
            provider=self.name,
            instance_type=str(wanted),
            gpus_per_node=wanted.gpus,
            lot=wanted.gpus,
            asks=tuple(asks),
            bids=tuple(bids),
            observed_at=units.moment(depth.requested_at),
            simulated=answer.simulated,
            window=window,
            places={sku.id: sku.name for sku in skus},
            regions={sku.id: sku.region.value for sku in skus if sku.region},
            fabrics={sku.id: fabric for sku in skus if (fabric := reading.fabric_of(sku))},
            closed=tuple(sku.id for sku in skus if not sku.supports_public_ipv4),
        )

    def _window_of(self, request: OrderRequest) -> Window:
        if request.window is None:
            raise InvalidOrderError(self.name, "window: an order needs a start and an end")
        if not units.is_aligned(request.window):
            raise InvalidOrderError(self.name, "window: starts and ends must be whole minutes")
        return request.window

    async def _candidates(self, request: OrderRequest, window: Window) -> list[Sku]:
        """Return the SKUs of the wanted type, the one to be tried first in front.

        Most types have one. Of several, a buy goes where the lowest ask stands, a sale where the
        pool has the time.
        """
        selling = request.side is Side.SELL
        skus = await self._places.skus_of(type_of(self.name, request), held=selling)
        if request.place is not None:
            skus = [sku for sku in skus if sku.id == request.place]
            if not skus:
                raise GoneError(
                    self.name, f"{request.instance_type} is not traded in {request.place} any more"
                )
        if len(skus) < 2:
            return skus
        if selling:
            return await self._places.by_held(skus, request.account or "", window)
        depth = (await self._depth(skus[0], window)).read(Depth)
        ranked = [level.instance_sku for level in depth.asks]
        return sorted(
            skus, key=lambda sku: ranked.index(sku.id) if sku.id in ranked else len(ranked)
        )

    async def _depth(self, sku: Sku, window: Window) -> Answer:
        params: dict[str, str | int] = {
            "start_at": units.seconds(window.start),
            "end_at": units.seconds(window.end),
            "depth": _DEPTH,
        }
        if sku.accelerator:
            params["requirements"] = f"accelerator:{sku.accelerator.value}"
        return await self._http.get(f"{self._prefix}/orderbook/depth", params)

    async def _order(self, answer: Answer, key: str | None = None) -> Order:
        return await self._order_of(answer.read(OrderShape), key, answer.simulated)

    async def _order_of(self, shape: OrderShape, key: str | None, simulated: bool) -> Order:
        sku = await self._places.sku(shape.instance_sku.id)
        return reading.order(shape, sku, key=key, simulated=simulated)

    async def _machine_of(self, shape: Instance, simulated: bool) -> Machine:
        sku = await self._places.sku(shape.instance_sku.id)
        return reading.machine(shape, sku, simulated=simulated)

    async def _all_machines(self) -> list[Machine]:
        path, params = f"{self._prefix}/instances", self._places.scope()
        shapes, simulated = await self._places.all(path, Page[Instance], params)
        return [await self._machine_of(shape, simulated) for shape in shapes]

    async def _machine_named(self, name: str) -> Machine | None:
        return next((m for m in await self._all_machines() if m.name == name), None)


def _preview_body(request: OrderRequest, window: Window, sku: Sku) -> dict[str, object]:
    body: dict[str, object] = {
        "side": request.side.value,
        "requirements": {"accelerator": [sku.accelerator.value]} if sku.accelerator else {},
        "start_at": units.seconds(window.start),
        "duration_seconds": int(window.length.total_seconds()),
        "node_count": request.nodes,
    }
    return {**body, "pool": request.account} if request.account else body


def _order_body(request: OrderRequest, window: Window, sku: Sku, pool: str) -> dict[str, object]:
    limit = units.native_limit(request.limit, reading.gpus_of(sku), request.side)
    return {
        "side": request.side.value,
        "pool": pool,
        "instance_sku": sku.id,
        "allocation_schedule_delta": [
            {
                "start_at": units.seconds(window.start),
                "end_at": units.seconds(window.end),
                "node_count": request.nodes,
            }
        ],
        "limit_price_dollars_per_node_hour": limit,
        "allow_standing": request.standing,
        "allow_partial": request.partial,
    }


def _no_such_type(wanted: InstanceType) -> NoQuote:
    return NoQuote(
        reason=NoQuoteReason.UNKNOWN_TYPE, detail=f"{reading.NAME} does not trade {wanted}"
    )
