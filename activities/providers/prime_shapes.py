"""What Prime Intellect's API answers, as far as it is read. Other fields are ignored."""

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from longshore.models.base import Instant, Wire
from longshore.models.money import MICRO, MOST, exact


def _with_zone(value: object) -> object:
    """Times come in ISO 8601, now and then without their zone, which is UTC."""
    if isinstance(value, str) and value and not value.endswith("Z") and "+" not in value[10:]:
        return value if "-" in value[10:] else value + "Z"
    return value


def _one_or_many(value: object) -> list[object]:
    """Clusters give a list, whose items may be null; single machines give text or null."""
    values = list[object](value) if isinstance(value, list | tuple) else [value]
    return [item for item in values if isinstance(item, str) and item.strip()]


Dollars = Annotated[
    Decimal,
    BeforeValidator(exact),
    Field(allow_inf_nan=False, le=MOST // MICRO),
]
"""No larger than an amount can be: a row that says more is left out like any odd one."""
Price = Annotated[Dollars, Field(ge=0)]
_Hours = Annotated[Dollars, Field(ge=0, le=100_000)]
_Minutes = Annotated[int, Field(ge=0, le=100_000)]
Time = Annotated[Instant, BeforeValidator(_with_zone)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]


class Wallet(Wire):
    balance_usd: Dollars | None = None
    currency: str = "USD"


class Who(Wire):
    id: str | None = None
    email: str | None = None
    name: str | None = None


class WhoAmI(Wire):
    data: Who


class Spec(Wire):
    """How much of something a row has: `defaultCount` is in the price."""

    defaultCount: int | None = None


class Prices(Wire):
    onDemand: Price | None = None
    communityPrice: Price | None = None
    isVariable: bool | None = None
    currency: str = "USD"


class Row(Wire):
    """One offer: its price is that of all of its GPUs for an hour."""

    cloudId: str
    gpuType: str
    socket: str
    provider: str
    gpuCount: int
    gpuMemory: Annotated[int, Field(ge=0)] | None = None
    """GB of one GPU."""
    security: str
    prices: Prices
    region: str | None = None
    dataCenter: str | None = None
    country: str | None = None
    stockStatus: str | None = None
    disk: Spec | None = None
    vcpu: Spec | None = None
    memory: Spec | None = None
    images: tuple[str, ...] = ()
    isSpot: bool | None = None
    prepaidTime: _Hours | None = None
    provisioningTime: _Minutes | None = None
    interconnectType: str | None = None
    several: bool = False
    """It was in the list of clusters. No field of the vendor's."""


class Rows(Wire):
    """A page of the list; its items are rows one by one, so that an odd one spoils no other."""

    items: tuple[Any, ...]
    totalCount: int


class Pod(Wire):
    """A machine, live or in the history."""

    id: str
    name: str | None = None
    status: str = "UNKNOWN"
    installationStatus: str | None = None
    installationFailure: str | None = None
    createdAt: Time | None = None
    terminatedAt: Time | None = None
    gpuName: str | None = None
    gpuCount: int = 0
    clusterId: str | None = None
    """Of a pod that is several machines."""
    priceHr: Dollars | None = None
    totalBilledPrice: Dollars | None = None
    sshConnection: Texts = ()
    ip: Texts = ()


class Pods(Wire):
    data: tuple[Pod, ...]
    total_count: int = 0


Summary = dict[str, dict[str, Any]]
"""GPU type to count to where it is cheapest."""
