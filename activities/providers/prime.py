"""Prime Intellect: pods that run from now on, chosen from a list of offers.

It has no idempotency keys. The key of an order is the pod's name, which is looked for before a pod
is asked for and, in a list that lags behind, after a request whose answer was lost.
"""

import base64
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from longshore.activities.providers import prime_reading as reading
from longshore.activities.providers.access import Access, access
from longshore.activities.providers.base import type_of
from longshore.activities.providers.creation_lookup import Creations, look_by_id
from longshore.activities.providers.http import MarketHTTP, Patience, in_path
from longshore.activities.providers.http_errors import refused_for_good
from longshore.activities.providers.prime_rows import all_rows, known_types
from longshore.activities.providers.prime_shapes import Pod, Pods, Row, Wallet, Who, WhoAmI
from longshore.models.errors import (
    GoneError,
    InvalidOrderError,
    MarketAwayError,
    MarketError,
)
from longshore.models.market import (
    Account,
    Capabilities,
    InstanceType,
    Level,
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
from longshore.models.money import dollars_of, micro_of
from longshore.models.settings import Settings
from longshore.models.text import count, format_dollars, format_duration

STARTUP_VARIABLE = "LONGSHORE_STARTUP"
"""Of the pod's environment: the start-up script, in base64."""
SIMULATED_TEMPLATE = "simulated-longshore"
"""What pods of a simulated market start from when nothing is set: any name will do there."""
NO_TEMPLATE = (
    "nothing is bought there, since no agent would come up: set LONGSHORE_PRIME_TEMPLATE to a "
    "template with Longshore on it (docs/providers.md)"
)
_API = "/api/v1"
_PAGE = 100
_HISTORY_PAGES = 10
"""How far back ended pods are looked for: a thousand."""
_log = logging.getLogger(__name__)


def connect(settings: Settings) -> "Prime | None":
    """Return a client as the settings say; None when there is no token and no simulated market."""
    found = access(settings, settings.prime_url, settings.prime_token)
    if found is None:
        return None
    simulated = SIMULATED_TEMPLATE if settings.market == "simulated" else None
    template = settings.prime_template or simulated
    return Prime(found, team=settings.prime_team, template=template)


class Prime:
    """A client of Prime Intellect with one account. See `base.Provider` for the calls."""

    name = reading.NAME
    capabilities = Capabilities(offer_list=True, interruptible=True)

    def __init__(
        self,
        found: Access,
        *,
        team: str | None = None,
        template: str | None = None,
        patience: Patience | None = None,
        **parts: Any,
    ) -> None:
        """Raises RefusedError when nothing may be sent to that address."""
        self._http = MarketHTTP(
            self.name, found, token_name="LONGSHORE_PRIME_TOKEN", patience=patience, **parts
        )
        self._team = team
        self._template = template
        self.no_buying = "" if template else NO_TEMPLATE
        self._creations = Creations(self._http, self.find_order, self.order_by_id)

    async def account(self) -> Account:
        answer = await self._http.get(f"{_API}/user/whoami")
        wrapped = isinstance(answer.value, dict) and "data" in answer.value
        who = answer.read(WhoAmI).data if wrapped else answer.read(Who)
        return Account(
            provider=self.name,
            id=self._team or who.id or who.email or who.name or "",
            balance=await self._balance(),
            simulated=answer.simulated,
        )

    async def instance_types(self) -> Sequence[InstanceType]:
        by_name = {str(kind): kind for kind in await known_types(self._http, _API)}
        return [by_name[name] for name in sorted(by_name)]

    async def book(
        self, wanted: InstanceType, window: Window | None = None
    ) -> OrderBook | NoQuote:
        """Return the offers of a type as asks. Not among them, and in `offers` alone, are spot,
        clusters and, unless nothing is bought there at all, those where no agent would come up."""
        rows, simulated = await all_rows(self._http, _API)
        kept = [
            offer
            for offer in _of_type(self._read(rows, simulated), wanted)
            if not offer.spot and offer.nodes == 1 and (self.no_buying or not offer.unusable)
        ]
        if not kept:
            return await self._no_quote(wanted)
        return OrderBook(
            provider=self.name,
            instance_type=str(wanted),
            gpus_per_node=wanted.gpus,
            lot=wanted.gpus,
            asks=tuple(_level(offer, wanted) for offer in kept),
            observed_at=self._http.now(),
            simulated=simulated,
            window=window,
        )

    async def offers(self, wanted: InstanceType | None = None) -> Sequence[Offer]:
        rows, simulated = await all_rows(self._http, _API)
        found = self._read(rows, simulated)
        if wanted is None:
            return found
        return [offer for offer in _of_type(found, wanted) if offer.nodes == 1]

    async def preview(self, request: OrderRequest) -> Preview | NoQuote:
        """Return the price of the request's offer as it is now, or of the cheapest one kept."""
        wanted = type_of(self.name, request)
        found = _of_type(await self.offers(), wanted)
        if request.offer is not None:
            best = next((offer for offer in found if offer.id == request.offer.id), None)
        else:
            kept = (
                o for o in found
                if not o.spot and o.nodes == request.nodes and (self.no_buying or not o.unusable)
            )  # fmt: skip
            best = next(kept, None)
        if best is None:
            return await self._no_quote(wanted)
        notices = (f"{format_duration(best.prepaid)} are paid in advance",) if best.prepaid else ()
        return Preview(
            provider=self.name,
            instance_type=best.instance_type,
            nodes=best.nodes,
            price=best.price,
            notices=notices,
            simulated=best.simulated,
        )

    async def check_start(self, request: OrderRequest) -> None:
        self._offer_of(request)

    async def order(self, request: OrderRequest) -> Order:
        """Take an offer: the pod that comes of it has the key as its name.

        A name that is known already is that order, and nothing is sent. Raises InvalidOrderError
        before anything is sent for a sale, without an offer, above the limit, or where what is to
        start there would not.
        """
        offer = self._offer_of(request)
        if (known := await self._creations.known(request.key)) is not None:
            return known
        body = self._order_body(request, offer)
        script = _encoded(request.startup_script)
        secrets = (script, request.startup_script or "")
        try:
            answer = await self._http.create(f"{_API}/pods/", body, secrets=secrets)
            pod = answer.read(Pod)
        except MarketAwayError as error:
            return await self._creations.after(request.key, error)
        except InvalidOrderError as error:
            # What is wrong by the schema is of our request.
            refused = None if error.status == 422 else refused_for_good(error)
            if refused is None:
                raise
            raise refused from error
        self._creations.made(request.key, pod.id)
        return reading.order(pod, simulated=answer.simulated)

    async def find_order(self, key: str) -> Order | None:
        """Return the pod of that name, live or ended. The list may lag behind for a while."""
        found = await self._pod_named(reading.name_of(key))
        if found is None:
            return None
        return reading.order(found[0], simulated=found[1]).model_copy(update={"key": key})

    async def order_by_id(self, order_id: str) -> Order:
        async def look() -> Order:
            pod, simulated = await self._pod(order_id)
            return reading.order(pod, simulated=simulated)

        return await look_by_id(order_id, look, self.orders)

    async def orders(self) -> Sequence[Order]:
        pods, simulated = await self._every_pod()
        first = datetime.fromtimestamp(0, UTC)
        pods.sort(key=lambda pod: pod.createdAt or first, reverse=True)
        return [reading.order(pod, simulated=simulated) for pod in pods]

    async def cancel_order(self, order_id: str) -> None:
        """End the pod: here an order and its machine are one."""
        await self.stop_machine(order_id)

    async def make_account(self, name: str) -> str:
        raise InvalidOrderError(self.name, "it sells no time to be kept: an order is a machine")

    async def start_machine(self, request: MachineRequest) -> Machine:
        raise InvalidOrderError(self.name, "machines come with their order: use `order`")

    async def machine(self, machine_id: str) -> Machine:
        async def look() -> Machine:
            pod, simulated = await self._pod(machine_id)
            return reading.machine(pod, simulated=simulated)

        return await look_by_id(machine_id, look, self._every_machine)

    async def machines(self) -> Sequence[Machine]:
        pods, simulated = await self._live()
        found = [reading.machine(pod, simulated=simulated) for pod in pods]
        going = (MachineState.ENDING, MachineState.ENDED)
        return [machine for machine in found if machine.state not in going]

    async def stop_machine(self, machine_id: str) -> None:
        try:
            await self._http.delete(f"{_API}/pods/{in_path(machine_id)}")
        except GoneError:
            if any(machine.id == machine_id for machine in await self.machines()):
                raise

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _balance(self) -> int | None:
        """Return micro-dollars; None where the key may not see the wallet, or it is in euros."""
        params = {"limit": 1} | ({"teamId": self._team} if self._team else {})
        try:
            wallet = (await self._http.get(f"{_API}/billing/wallet", params)).read(Wallet)
        except MarketError:
            return None
        if wallet.balance_usd is None or wallet.currency != "USD":
            return None
        return micro_of(wallet.balance_usd)

    def _offer_of(self, request: OrderRequest) -> Offer:
        offer = request.offer
        if request.side is Side.SELL:
            raise InvalidOrderError(self.name, "side: it buys nothing back")
        if offer is None or offer.provider != self.name or "pod" not in offer.native:
            raise InvalidOrderError(self.name, "offer: an order takes one of its offers")
        if request.nodes != offer.nodes:
            held = count(offer.nodes, "machine")
            raise InvalidOrderError(self.name, f"nodes: the offer is {held}, taken whole")
        if offer.price > request.limit:
            raise InvalidOrderError(
                self.name,
                f"limit: the offer costs {format_dollars(offer.price)} per GPU-hour, more than "
                f"{format_dollars(request.limit)}",
            )
        if request.startup_script and (why := self.no_buying or _unusable(offer)):
            raise InvalidOrderError(self.name, why)
        return offer

    def _read(self, rows: Sequence[Row], simulated: bool) -> list[Offer]:
        return reading.offers(rows, self._template, simulated=simulated)

    def _order_body(self, request: OrderRequest, offer: Offer) -> dict[str, Any]:
        most = dollars_of(request.limit * offer.gpus * offer.nodes)
        pod: dict[str, Any] = {
            **offer.native["pod"],
            "name": reading.name_of(request.key),
            "maxPrice": json_number(most),
        }
        if self._template:  # an offer that was read by another version, or for another template
            pod |= {"image": reading.TEMPLATE_IMAGE, "customTemplateId": self._template}
        if request.startup_script:
            script = _encoded(request.startup_script)
            pod["envVars"] = [{"key": STARTUP_VARIABLE, "value": script}]
        body: dict[str, Any] = {"pod": pod, "provider": offer.native["provider"]}
        return body | ({"team": {"teamId": self._team}} if self._team else {})

    async def _pod_named(self, name: str) -> tuple[Pod, bool] | None:
        for pods, simulated in (await self._live(), await self._history()):
            for pod in pods:
                if reading.name_of(pod.name or "") == name:
                    return pod, simulated
        return None

    async def _pod(self, pod_id: str) -> tuple[Pod, bool]:
        answer = await self._http.get(f"{_API}/pods/{in_path(pod_id)}")
        pod = answer.read(Pod)
        if reading.is_over(pod) and pod.totalBilledPrice is None:
            pod = await self._with_bill(pod)
        return pod, answer.simulated

    async def _with_bill(self, pod: Pod) -> Pod:
        """Return a pod that has ended with what the history says: it alone has the bill."""
        try:
            ended, _ = await self._history()
        except MarketError as error:
            _log.warning("%s: the bill of %s cannot be read: %s", self.name, pod.id, error)
            return pod
        return next((each for each in ended if each.id == pod.id), pod)

    async def _every_pod(self) -> tuple[list[Pod], bool]:
        """Return the pods that are live, and those that have ended."""
        live, simulated = await self._live()
        ended, _ = await self._history()
        ids = {pod.id for pod in live}
        return [*live, *(pod for pod in ended if pod.id not in ids)], simulated

    async def _every_machine(self) -> list[Machine]:
        pods, simulated = await self._every_pod()
        return [reading.machine(pod, simulated=simulated) for pod in pods]

    async def _live(self) -> tuple[list[Pod], bool]:
        return await self._listed(f"{_API}/pods/", {}, pages=None)

    async def _history(self) -> tuple[list[Pod], bool]:
        newest_first = {"sort_by": "terminatedAt", "sort_order": "desc"}
        path = f"{_API}/pods/history"
        pods, simulated = await self._listed(path, newest_first, pages=_HISTORY_PAGES)
        return [reading.ended(pod) for pod in pods], simulated

    async def _listed(
        self, path: str, params: dict[str, str], pages: int | None
    ) -> tuple[list[Pod], bool]:
        """Return the pods of a list; it ends with an empty page, whatever count it gives."""
        found: dict[str, Pod] = {}
        page, offset = 0, 0
        while True:
            query = {**params, "offset": offset, "limit": _PAGE}
            answer = await self._http.get(path, query)
            shape = answer.read(Pods)
            new = {pod.id: pod for pod in shape.data if pod.id not in found}
            found |= new
            page, offset = page + 1, offset + len(shape.data)
            if not new or offset >= shape.total_count or page == pages:
                return list(found.values()), answer.simulated

    async def _no_quote(self, wanted: InstanceType) -> NoQuote:
        known = await known_types(self._http, _API)
        if any(wanted.takes(kind) for kind in known):
            return NoQuote(
                reason=NoQuoteReason.EMPTY, detail=f"{self.name}: no offer of {wanted} now"
            )
        return NoQuote(
            reason=NoQuoteReason.UNKNOWN_TYPE, detail=f"{self.name} does not trade {wanted}"
        )


def _unusable(offer: Offer) -> str:
    return f"offer: it is one {offer.unusable}" if offer.unusable else ""


def _of_type(found: Sequence[Offer], wanted: InstanceType) -> list[Offer]:
    return [offer for offer in found if wanted.takes(InstanceType.parse(offer.instance_type))]


def _level(offer: Offer, wanted: InstanceType) -> Level:
    other = offer.instance_type if offer.instance_type != str(wanted) else None
    return Level(price=offer.price, gpus=offer.gpus, instance_type=other, lot=offer.gpus)


def _encoded(script: str | None) -> str:
    return base64.b64encode(script.encode()).decode() if script else ""


def json_number(amount: Decimal) -> int | float:
    """Return an amount as JSON has it: six places at most, which a float gives back exactly."""
    return int(amount) if amount == amount.to_integral_value() else float(amount)
