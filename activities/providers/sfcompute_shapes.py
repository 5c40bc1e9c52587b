"""What San Francisco Compute's API v2 answers, as far as it is read; the rest is ignored."""

from decimal import Decimal
from typing import Annotated, Generic, TypeVar

from pydantic import AliasChoices, BeforeValidator, Field

from longshore.models.base import Wire
from longshore.models.money import exact

T = TypeVar("T")


Rate = Annotated[Decimal, BeforeValidator(exact), Field(ge=0, allow_inf_nan=False)]
"""Dollars per node-hour."""


class Listed(Wire):
    id: str


class Page(Wire, Generic[T]):
    data: tuple[T, ...]
    has_more: bool = False
    cursor: str | None = None


class Me(Wire):
    account_id: str


class Balances(Wire):
    available_balance_cents: int | None = None


class Named(Listed):
    name: str = ""


class ScheduleEntry(Wire):
    start_at: int
    end_at: int | None = None
    node_count: int


Schedule = tuple[ScheduleEntry, ...]


class Text(Wire):
    value: str


class Flag(Wire):
    """Whether a machine has something: a boolean, or yes as text."""

    value: bool | str

    def __bool__(self) -> bool:
        return str(self.value).casefold() in ("true", "yes")


class Count(Wire):
    value: int


class Sku(Listed):
    alias: str = ""
    accelerator: Text | None = None
    num_accelerators: Count | None = None
    region: Text | None = None
    audience_hint: str | None = None
    """Whom it is for, where it is not for everybody."""
    rdma_type: Text | None = None
    """The fast fabric of its machines, such as infiniband or roce; none without."""
    supports_public_ipv4: Flag | None = Field(
        default=None, validation_alias=AliasChoices("supports_public_ipv4", "public_ipv4")
    )
    """Its machines may have a public address. Without one nothing but SSH comes in."""

    @property
    def name(self) -> str:
        """What people call the place where its machines are."""
        where = self.region.value if self.region else ""
        return " ".join(filter(None, (where, f"({self.alias})" if self.alias else ""))) or self.id


class SkuRef(Wire):
    id: str
    alias: str = ""


class PriceLevel(Wire):
    instance_sku: str
    dollars_per_node_hour: Rate
    allocation_schedule_delta: Schedule


class Depth(Wire):
    requested_at: int
    bids: tuple[PriceLevel, ...]
    asks: tuple[PriceLevel, ...]


class Fee(Wire):
    flat_dollars_per_node_hour: Rate = Decimal(0)
    percentage_bps: int = 0


class Notice(Wire):
    title: str = ""
    description: str = ""


class PreviewBody(Wire):
    instance_sku: str
    limit_price_dollars_per_node_hour: Rate


class OrderPreview(Wire):
    type: str
    reason: str = ""
    post_order_body: PreviewBody | None = None
    fee: Fee | None = None
    notices: tuple[Notice, ...] = ()


class OrderFill(Wire):
    filled_at: int
    allocation_schedule_delta: Schedule
    price_dollars_per_node_hour: Rate


class OrderShape(Listed):
    side: str
    status: str
    pool: Named | None = Field(default=None, validation_alias=AliasChoices("pool", "capacity"))
    """Older answers call it `capacity`."""
    instance_sku: SkuRef
    allocation_schedule_delta: Schedule = Field(min_length=1)
    filled_allocation_schedule_delta: Schedule = ()
    limit_price_dollars_per_node_hour: Rate
    filled_average_price_dollars_per_node_hour: Rate | None = None
    fills: tuple[OrderFill, ...] = ()
    created_at: int
    filled_at: int | None = None
    cancelled_at: int | None = None


class AllocationSchedule(Wire):
    by_instance_sku: dict[str, Schedule] = Field(default_factory=dict[str, Schedule])


class Pool(Listed):
    name: str
    owner: str = ""
    workspace: str = ""
    """By name."""
    kind: str = "market"
    allocation_schedule: AllocationSchedule = AllocationSchedule()


class Image(Listed):
    name: str = ""
    upload_status: str = "completed"


class Instance(Listed):
    name: str
    status: str
    instance_sku: SkuRef
    pool: Named | None = Field(default=None, validation_alias=AliasChoices("pool", "capacity"))
    created_at: int
    updated_at: int | None = None
    public_ip: str | None = None
