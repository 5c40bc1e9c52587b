"""The one interface to every market. A new one is a file beside this with a class of this shape.

How a market is bought from follows from its `capabilities`, and from no name. Every call may raise
MarketAwayError (try again later; `uncertain` after a request that creates) and the MarketError
tree; calls that create are safe to repeat with the same key or name.
"""

from collections.abc import Sequence
from typing import Protocol

from longshore.models.errors import InvalidOrderError
from longshore.models.market import (
    Account,
    Capabilities,
    InstanceType,
    Machine,
    MachineRequest,
    NoQuote,
    Offer,
    Order,
    OrderBook,
    OrderRequest,
    Preview,
    Window,
)


def type_of(market: str, request: OrderRequest) -> InstanceType:
    """Return the type of machine that an order asks a market for. Raises InvalidOrderError."""
    try:
        return InstanceType.parse(request.instance_type)
    except ValueError as error:
        raise InvalidOrderError(market, f"instance_type: {error}") from None


class Provider(Protocol):
    """A client of one market with one account. Close it after use (`aclose`)."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def no_buying(self) -> str:
        """Why nothing may be bought there with these settings; empty where it may.

        No agent would come up on what was bought.
        """
        ...

    async def account(self) -> Account:
        """Return who we are there; the cheapest way to try the credentials."""
        ...

    async def instance_types(self) -> Sequence[InstanceType]:
        """Return what is traded there, whether there is stock or not."""
        ...

    async def book(
        self, wanted: InstanceType, window: Window | None = None
    ) -> OrderBook | NoQuote:
        """Return asks and bids for a type: of the window, or of the next whole hour without one.

        An offer list reads as a book of asks, each sold whole.
        """
        ...

    async def offers(self, wanted: InstanceType | None = None) -> Sequence[Offer]:
        """Return what can be taken at once, cheapest first; none where there is no offer list.

        Clusters are among them only where no type is wanted: a type is one of a machine.
        """
        ...

    async def preview(self, request: OrderRequest) -> Preview | NoQuote:
        """Return what an order would cost, by the market's own word. Nothing is held."""
        ...

    async def check_start(self, request: OrderRequest) -> None:
        """Look whether a machine could start on what this order buys, before it is sent.

        Raises InvalidOrderError, CredentialsError: what is missing is said before it is paid for.
        """
        ...

    async def order(self, request: OrderRequest) -> Order:
        """Place an order; the same key again returns the first. The answer may be PENDING.

        Where an order is a machine (no `fixed_window`), what was created has the key as its name.
        `start_machine` and `make_account` raise InvalidOrderError there.
        """
        ...

    async def find_order(self, key: str) -> Order | None:
        """Return the order that was placed with a key, if any.

        None also where the market cannot tell. Such a market is `idempotent`: to learn what became
        of an order whose answer was lost, send it again.
        """
        ...

    async def order_by_id(self, order_id: str) -> Order:
        """Return an order. Raises GoneError when the market neither knows nor lists it."""
        ...

    async def orders(self) -> Sequence[Order]:
        """Return every order of the account that the market still lists, newest first."""
        ...

    async def cancel_order(self, order_id: str) -> None:
        """Ask for the end of an order. It may fill on: read it until its state is final."""
        ...

    async def make_account(self, name: str) -> str:
        """Return where bought time goes (a pool) by its name, made if need be; its id."""
        ...

    async def start_machine(self, request: MachineRequest) -> Machine:
        """Start a machine on bought time; the same name again returns the first."""
        ...

    async def machine(self, machine_id: str) -> Machine:
        """Return one machine, also when it has ended. Raises GoneError when the market neither
        knows nor lists it."""
        ...

    async def machines(self) -> Sequence[Machine]:
        """Return every machine of the account that has not ended."""
        ...

    async def stop_machine(self, machine_id: str) -> None:
        """End a machine; one that is gone already is no error. What runs on it is lost.

        Raises GoneError where the market says so of a machine that it lists.
        """
        ...

    async def aclose(self) -> None: ...
