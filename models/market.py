"""What is bought and sold at compute markets: types, books, offers, orders, machines.

Prices are micro-dollars per GPU-hour, quantities GPUs, times aware UTC: the clients of the markets
(`activities/providers`) convert. What a market needs back in its own words travels as `native`.
"""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, model_validator

from longshore.models.base import Frozen, Instant, Name, Wire
from longshore.models.money import MicroDollars
from longshore.models.units import GB, format_gb, parse_gb
from longshore.models.visible import shown

_INSTANCE_TYPE = re.compile(
    r"^(?P<gpus>[1-9]\d{0,3})x(?P<type>[A-Za-z][A-Za-z0-9_+.]*)(-(?P<vram>\d+(\.\d+)?GB))?$",
    re.ASCII | re.IGNORECASE,
)


_MOST_GPUS = 10**9


class InstanceType(Frozen):
    """A kind of machine by what it has: ``8xH100``, ``8xH100-80GB``."""

    gpus: int = Field(ge=1, le=9999)
    gpu_type: str = Field(min_length=1, max_length=64)
    vram: GB | None = None
    """Memory of one GPU; any when left out."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the type written as ``8xH100`` or ``8xH100-80GB``. Raises ValueError."""
        match = _INSTANCE_TYPE.match(text.strip())
        if match is None:
            raise ValueError(
                f"expected an instance type such as 8xH100 or 8xH100-80GB, not {shown(text)}"
            )
        vram = parse_gb(match["vram"]) if match["vram"] else None
        return cls(gpus=int(match["gpus"]), gpu_type=match["type"].upper(), vram=vram)

    def __str__(self) -> str:
        memory = f"-{format_gb(self.vram)}" if self.vram is not None else ""
        return f"{self.gpus}x{self.gpu_type}{memory}"

    def takes(self, other: "InstanceType") -> bool:
        """Return whether `other` is one of these: same count and GPU, memory where both say it."""
        same_memory = self.vram is None or other.vram is None or self.vram == other.vram
        same_gpu = self.gpu_type.casefold() == other.gpu_type.casefold()
        return self.gpus == other.gpus and same_gpu and same_memory


class Window(Frozen):
    """A span of time that is bought: from `start` up to, not including, `end`."""

    start: Instant
    end: Instant

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end <= self.start:
            raise ValueError(f"a window must end after it starts, got {self.start} to {self.end}")
        return self

    @property
    def length(self) -> timedelta:
        return self.end - self.start

    @property
    def hours(self) -> float:
        return self.length / timedelta(hours=1)

    def covers(self, other: "Window") -> bool:
        return self.start <= other.start and self.end >= other.end


class Level(Frozen):
    """One entry of an order book."""

    price: MicroDollars
    """Micro-dollars per GPU-hour."""
    gpus: int = Field(ge=0, le=_MOST_GPUS)
    start: Instant | None = None
    """From when it holds; at once when left out."""
    end: Instant | None = None
    """Until when; unlimited when left out and `duration` is left out."""
    duration: timedelta | None = None
    """How long it holds from `start`, where the market says that instead of an end."""
    instance_type: str | None = None
    """Where it differs from its book's, or the book holds several."""
    lot: int | None = Field(default=None, ge=1, le=_MOST_GPUS)
    """GPUs that are sold together only; the book's lot when left out."""
    place: str | None = None
    """Where the machines are, at a market that fills an order in one place: its id there."""

    @property
    def ends_at(self) -> Instant | None:
        if self.end is None and self.start is not None and self.duration is not None:
            return self.start + self.duration
        return self.end


class OrderBook(Wire):
    """Asks and bids of one instance type at one market, at one moment, in the market's order."""

    provider: str
    instance_type: str
    gpus_per_node: int = Field(default=8, ge=1)
    lot: int = Field(default=1, ge=1, le=_MOST_GPUS)
    """GPUs that are bought together at least: the node, where only whole nodes are sold."""
    asks: tuple[Level, ...] = ()
    bids: tuple[Level, ...] = ()
    observed_at: Instant
    simulated: bool = False
    window: Window | None = None
    """The window that was asked for, where the market keeps a book for each."""
    places: dict[str, str] = Field(default_factory=dict[str, str])
    """What people call the places of its levels, by their ids."""
    regions: dict[str, str] = Field(default_factory=dict[str, str])
    """In which region each place is, by its id, where the market says it."""
    fabrics: dict[str, str] = Field(default_factory=dict[str, str])
    """By place the fast fabric that nodes of one order share there; a place without has none."""
    closed: tuple[str, ...] = ()
    """Places whose machines take no connection from each other: ranks of a gang cannot meet."""
    refused: dict[str, str] = Field(default_factory=dict[str, str])
    """By place when and why the market took no order of late; its asks are left out meanwhile."""


class Capabilities(Frozen):
    """What a market can do: how it is bought from follows from these and from no name."""

    order_book: bool = False
    """It shows asks and bids, and takes limit orders."""
    offer_list: bool = False
    """It lists offers at fixed prices; each is taken whole."""
    fixed_window: bool = False
    """Time is bought from a start to an end, and paid whether it is used or not."""
    resellable: bool = False
    interruptible: bool = False
    """Machines may be taken away before their time (spot)."""
    idempotent: bool = False
    """An order sent twice with one key is one order; else the name has to be looked for first."""
    fast_fabric: bool = False
    """Nodes of one order share fast fabric, wherever its books and offers do not say it by place
    or row. Other machines are not taken to."""
    lot_gpus: int = Field(default=1, ge=1)
    """GPUs that are sold together at least."""
    grain: timedelta = timedelta(0)
    """Starts and ends are multiples of this since the epoch."""
    notice: timedelta | None = None
    """Between the warning and the end of a machine; None where there is no warning."""


class Offer(Wire):
    """A row of an offer list: what can be had now, taken whole."""

    provider: str
    id: str
    instance_type: str
    """Of one machine."""
    gpus: int = Field(ge=1)
    """Of one machine."""
    nodes: int = Field(default=1, ge=1)
    """Machines that are taken together, by one order: more than one are a cluster."""
    fabric: str = ""
    """What connects the machines of a cluster, in the market's word; empty for one machine."""
    price: MicroDollars
    """Micro-dollars per GPU-hour, with what comes with it by default."""
    spot: bool = False
    variable: bool = False
    """Its price may change while it runs."""
    stock: str = ""
    seller: str = ""
    """Whose machine it is, at a market of several sellers."""
    region: str | None = None
    country: str | None = None
    community: bool = False
    """Whether it is a machine of a private host."""
    image: str = ""
    """What it starts from: an image or template, by the market's name for it."""
    unusable: str = ""
    """Why no agent would come up there, as in ``3 offers whose image runs no start-up script``. It
    is shown with the others, and not bought."""
    refused: str = ""
    """When and why its seller took no order with this image, of late; it is left out meanwhile."""
    prepaid: timedelta = timedelta(0)
    """Paid in advance, whatever is used of it."""
    startup: timedelta | None = None
    """The market's estimate of how long it takes to come up."""
    cpus: float | None = None
    ram: GB | None = None
    simulated: bool = False
    native: dict[str, Any] = Field(default_factory=dict[str, Any])


class Side(StrEnum):
    BUY = "buy"
    SELL = "sell"


class OrderState(StrEnum):
    PENDING = "PENDING"
    """Sent; the market has not said yet what became of it."""
    STANDING = "STANDING"
    """On the book, nothing of it filled."""
    PARTIAL = "PARTIAL"
    """Some of it filled; more may come."""
    FILLED = "FILLED"
    CANCELLED = "CANCELLED"
    """Over; it may own fills all the same."""
    REJECTED = "REJECTED"

    @property
    def final(self) -> bool:
        return self in (OrderState.FILLED, OrderState.CANCELLED, OrderState.REJECTED)


class OrderRequest(Wire):
    """A purchase, or a sale, that is wanted. `key` makes it one order however often it is sent."""

    key: Name
    """Stored before the call: the market's idempotency key, and the name of what it creates."""
    side: Side = Side.BUY
    instance_type: str
    nodes: int = Field(ge=1)
    window: Window | None = None
    """What time; from now until it is stopped, where the market sells no windows."""
    limit: MicroDollars
    """Micro-dollars per GPU-hour: at most this for a buy, at least this for a sale."""
    standing: bool = False
    """Rest on the book until filled; else what is not filled at once is cancelled."""
    partial: bool = False
    """Fewer nodes, or a part of the window, will do."""
    account: str | None = None
    """Where bought time goes, or sold time comes from (a pool at SFCompute)."""
    place: str | None = None
    """Where, at a market that fills an order in one place; where it is cheapest when left out."""
    for_gang: bool = False
    """Its machines are to be started for a gang: see `MachineRequest`."""
    offer: Offer | None = None
    """The row to take, at a market with an offer list."""
    startup_script: str | None = Field(default=None, repr=False)
    """What the machine runs when it comes up, at a market where an order is a machine."""


class Fill(Wire):
    """A part of an order that came true."""

    at: Instant
    nodes: int
    window: Window | None = None
    price: MicroDollars
    """Micro-dollars per GPU-hour, rounded to the nearest; `cost` is exact."""
    cost: MicroDollars | None = None
    """Micro-dollars for all of it; None where it is billed as it runs."""


class Order(Wire):
    """An order as the market holds it."""

    provider: str
    id: str
    key: str | None = None
    side: Side = Side.BUY
    state: OrderState
    instance_type: str = ""
    gpus_per_node: int = 8
    nodes: int
    window: Window | None = None
    limit: MicroDollars | None = None
    fills: tuple[Fill, ...] = ()
    account: str | None = None
    place: str | None = None
    """Where its time is, at a market that fills an order in one place."""
    created_at: Instant | None = None
    reason: str = ""
    simulated: bool = False
    native_state: str = ""
    """The market's own word."""


class MachineState(StrEnum):
    STARTING = "STARTING"
    READY = "READY"
    """It is up; its agent registers by itself."""
    ENDING = "ENDING"
    """The market is taking it away; what runs there may have a moment left."""
    FAILED = "FAILED"
    ENDED = "ENDED"


class MachineRequest(Wire):
    """A machine to be started on time that was bought."""

    name: Name
    """Unique: it is looked for before the machine is asked for again."""
    account: str
    instance_type: str
    place: str | None = None
    """Where the time is that it uses, at a market with places."""
    for_gang: bool = False
    """Ranks are to meet across it and its neighbours: it is asked for with the fast fabric and the
    open ports that its place has."""
    startup_script: str = Field(repr=False)
    """What it runs when it comes up: see activities/providers/startup.py."""


class Machine(Wire):
    """A machine at a market: an instance or a pod. A cluster has one id there, and ends whole."""

    provider: str
    id: str
    name: str
    state: MachineState
    instance_type: str = ""
    """Of each of its machines, where it is a cluster."""
    gpus: int = 0
    """Of all of its machines."""
    nodes: int = 1
    """Machines behind this id: more than one are a cluster."""
    account: str | None = None
    order_id: str | None = None
    price: MicroDollars | None = None
    """Micro-dollars per GPU-hour, where it is billed as it runs."""
    billed: MicroDollars | None = None
    """Micro-dollars so far, where the market says it."""
    address: str | None = None
    created_at: Instant | None = None
    ended_at: Instant | None = None
    reason: str = ""
    simulated: bool = False
    native_state: str = ""


class Account(Wire):
    """Who we are at a market, and what is left to spend."""

    provider: str
    id: str
    balance: int | None = None
    """Micro-dollars; below zero where it is overdrawn, None where the market does not say."""
    simulated: bool = False


class Preview(Wire):
    """What an order would cost, by the market's own word. Nothing is held."""

    provider: str
    instance_type: str
    window: Window | None = None
    nodes: int
    price: MicroDollars
    """Micro-dollars per GPU-hour."""
    fee: MicroDollars = 0
    """Micro-dollars on top of it, for all of it."""
    fee_bps: int = 0
    """The part of the fee that is a share of the price, in hundredths of a percent."""
    fee_flat: MicroDollars = 0
    """The part that is the same at every price, for a node-hour."""
    notices: tuple[str, ...] = ()
    simulated: bool = False


class NoQuoteReason(StrEnum):
    """Why there is no price."""

    EMPTY = "empty"
    """The market offers nothing of this kind."""
    LEFT_OUT = "left_out"
    """There are asks, and none is for this window, type and lot."""
    UNREACHABLE = "unreachable"
    NOTHING_NEEDED = "nothing_needed"
    UNKNOWN_TYPE = "unknown_type"


class NoQuote(Wire):
    """The market has no price, and why. Never made-up asks."""

    reason: NoQuoteReason
    detail: str = ""
    left_out: dict[str, int] = Field(default_factory=dict[str, int])
    """How many asks do not count, by reason."""
