"""What the exchange takes in its requests, and what it refuses."""

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from longshore.simulation.market.rates import Rate, parse_rate
from longshore.simulation.market.schedule import Schedule

USER_DATA_LIMIT = 64 * 1024
"""Characters of base64."""
_YEARS = 3 * 366 * 24 * 3600


def _aligned(value: int) -> int:
    if value % 60:
        raise PydanticCustomError("not_aligned", "must be a multiple of 60 seconds")
    return value


def _rate(value: str) -> str:
    try:
        parse_rate(value)
    except ValueError as error:
        raise PydanticCustomError("invalid_decimal", "{why}", {"why": str(error)}) from None
    return value


def _startable(value: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except binascii.Error:
        raise PydanticCustomError("not_base64", "must be base64") from None
    if len(value) > USER_DATA_LIMIT:
        raise PydanticCustomError("too_long", "must be at most 64 KB")
    return value


Seconds = Annotated[int, Field(strict=True, ge=0), AfterValidator(_aligned)]
Nodes = Annotated[int, Field(strict=True, ge=1, le=1024)]
Dollars = Annotated[str, Field(strict=True), AfterValidator(_rate)]
"""Dollars per node-hour; what lies between two grains is rounded to the nearest."""
Label = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class Body(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Entry(Body):
    start_at: Seconds
    end_at: Seconds
    node_count: Nodes

    @property
    def schedule(self) -> Schedule:
        return Schedule.of(self.start_at // 60, self.end_at // 60, self.node_count)

    def problem(self, minute: int) -> tuple[str, str, str] | None:
        """Return why this window cannot be traded at `minute`, if it cannot."""
        if self.end_at <= self.start_at:
            return ("allocation_schedule_delta", "empty", "end_at must be after start_at")
        if self.start_at // 60 < minute:
            return ("allocation_schedule_delta", "in_the_past", "start_at is past")
        if self.end_at - minute * 60 > _YEARS:
            return ("allocation_schedule_delta", "too_far", "end_at is more than 3 years ahead")
        return None


class OrderBody(Body):
    pool: str
    side: Literal["buy", "sell"]
    instance_sku: str
    allocation_schedule_delta: list[Entry] = Field(min_length=1, max_length=1)
    limit_price_dollars_per_node_hour: Dollars
    allow_standing: bool = Field(default=False, strict=True)
    allow_partial: bool = Field(default=False, strict=True)

    @property
    def window(self) -> Entry:
        return self.allocation_schedule_delta[0]

    @property
    def limit(self) -> Rate:
        return parse_rate(self.limit_price_dollars_per_node_hour)


class PreviewBody(Body):
    side: Literal["buy", "sell"]
    requirements: dict[str, list[str]]
    start_at: Seconds
    duration_seconds: Annotated[Seconds, Field(gt=0)]
    node_count: Nodes
    pool: str | None = None

    @property
    def window(self) -> Entry:
        return Entry(
            start_at=self.start_at,
            end_at=self.start_at + self.duration_seconds,
            node_count=self.node_count,
        )


class PoolBody(Body):
    workspace: str
    name: Label | None = None
    tags: dict[str, str] = Field(default_factory=dict)


class RenameBody(Body):
    name: Label | None = None
    tags: dict[str, str] | None = None


class TransferBody(Body):
    from_pool: str
    to_pool: str
    instance_sku: str
    allocation_schedule_delta: list[Entry] = Field(min_length=1, max_length=1)


class InstanceBody(Body):
    pool: str
    image: str
    instance_sku: str
    name: Label | None = None
    cloud_init_user_data: Annotated[str, AfterValidator(_startable)] | None = None
    enable_public_ipv4: bool = False
    enable_infiniband: bool = Field(default=False, alias="_preview_enable_infiniband")
    firewall: Any = None
    tags: dict[str, str] | None = None
    priority_level: Literal["yield", "normal", "preferred", "critical"] = "normal"
