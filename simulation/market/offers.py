"""The cloud's offers: rows that change their price and stock every few minutes, and vanish."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from longshore.models.money import MICRO
from longshore.simulation.market.background import MOST_SPIKED, SPIKE, Profile
from longshore.simulation.market.world import World

EVERY = 3
"""Minutes between two changes of the list."""
EUR_IN_USD = 1.1
"""Rows in euros are billed at this."""
TEMPLATE = "custom_template"
"""The one image that runs something of its own when it starts."""
IMAGES = ("ubuntu_22_cuda_12", "cuda_12_4_pytorch_2_4", TEMPLATE)
_STOCK = ("Available", "Available", "High", "Medium", "Low")
_DISK_CENTS_PER_TB = 14
CLUSTER_NODE_GPUS = 8
"""Of each machine of a cluster."""


@dataclass(frozen=True)
class Kind:
    """A GPU as the list names it."""

    gpu_type: str
    socket: str
    memory: int
    """GB of one GPU."""
    cents: int
    """Around this the price of a GPU-hour lies."""

    @property
    def hardware(self) -> str:
        return f"{self.gpu_type.split('_')[0]}-{self.memory}GB"


@dataclass(frozen=True)
class Seller:
    name: str
    factor: float
    """Its prices against the usual."""
    places: tuple[tuple[str, str, str], ...]
    """Data centre, country, region."""
    counts: tuple[int, ...]
    kinds: tuple[str, ...]
    currency: str = "USD"
    community: bool = False
    spot: bool = False
    prepaid_hours: float | None = None
    needs: tuple[str, ...] = ()
    """Fields of an order that it refuses to go without."""
    without_template: tuple[str, ...] = ()
    """Kinds whose rows do not list the image of templates."""
    drops_variables: bool = False
    """Its pods get no environment variables, whatever the order says."""


KINDS = {
    kind.gpu_type: kind
    for kind in (
        Kind("H100_80GB", "SXM5", 80, 210),
        Kind("H200_141GB", "SXM5", 141, 280),
        Kind("B200_180GB", "SXM6", 180, 420),
        Kind("A100_80GB", "SXM4", 80, 130),
        Kind("L40S_48GB", "PCIe", 48, 85),
        Kind("RTX4090_24GB", "PCIe", 24, 45),
    )
}
_US = ("US-EAST-1", "US", "united_states")
_US_WEST = ("US-WEST-2", "US", "united_states")
_NL = ("EU-NL-1", "NL", "eu_west")
_FI = ("EU-FI-1", "FI", "eu_north")
_FR = ("PAR-2", "FR", "eu_west")
_SINGLY = (1, 2, 3, 4, 5, 6, 7, 8)
SELLERS = (
    Seller("runpod", 0.98, (_US, _NL), _SINGLY, ("H100_80GB", "A100_80GB", "L40S_48GB",
           "RTX4090_24GB"), community=True, drops_variables=True),
    Seller("lambdalabs", 1.1, (_US_WEST,), (1, 2, 4, 8), ("H100_80GB", "B200_180GB")),
    Seller("hyperstack", 0.95, (("CANADA-1", "CA", "canada"),), (1, 2, 4, 8),
           ("H100_80GB", "A100_80GB"), needs=("dataCenterId",), without_template=("H100_80GB",)),
    Seller("datacrunch", 0.9, (_FI,), (1, 2, 4, 8), ("H100_80GB", "H200_141GB", "B200_180GB"),
           spot=True),
    Seller("scaleway", 1.15, (_FR,), (1, 2, 4, 8), ("H100_80GB", "L40S_48GB"), currency="EUR"),
    Seller("massedcompute", 0.93, (_US,), (1, 2, 4, 8), ("H100_80GB", "L40S_48GB"),
           needs=("maxPrice",)),
    Seller("primecompute", 1.0, (_US,), (8,), ("H100_80GB", "H200_141GB"), prepaid_hours=24.0),
    Seller("nebius", 1.05, (_FI,), (16, 32), ("H100_80GB", "H200_141GB"),
           needs=("dataCenterId",)),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One offer. It is taken whole."""

    cloud_id: str
    kind: Kind
    seller: Seller
    place: tuple[str, str, str]
    count: int
    price: int
    """Micro-units of its currency, an hour, for all its GPUs and the default disk."""
    stock: str
    spot: bool = False
    minutes: int | None = None
    """The estimate of how long it takes to come up."""

    @property
    def images(self) -> tuple[str, ...]:
        """What an order may name as its image."""
        plain = self.kind.gpu_type in self.seller.without_template
        return tuple(image for image in IMAGES if not (plain and image == TEMPLATE))

    @property
    def nodes(self) -> int:
        """Machines: more than one are a cluster."""
        return max(self.count // CLUSTER_NODE_GPUS, 1)

    @property
    def hardware(self) -> str:
        """What an agent on each of its machines says that it has, such as ``2xH100-80GB``."""
        return f"{self.count // self.nodes}x{self.kind.hardware}"

    def usd_per_hour(self, extra_disk: int) -> int:
        """Return micro-dollars an hour, with `extra_disk` GB over the default."""
        native = self.price + extra_disk * _disk_price()
        return round(native * EUR_IN_USD) if self.seller.currency == "EUR" else native

    def json(self) -> dict[str, Any]:
        data_centre, country, region = self.place
        community = self.seller.community
        prices = {
            "onDemand": None if community else self.price / MICRO,
            "communityPrice": self.price / MICRO if community else None,
            "isVariable": self.spot,
            "currency": self.seller.currency,
        }
        return {
            "cloudId": self.cloud_id,
            "gpuType": self.kind.gpu_type,
            "socket": self.kind.socket,
            "provider": self.seller.name,
            "region": region,
            "dataCenter": data_centre,
            "country": country,
            "gpuCount": self.count,
            "gpuMemory": self.kind.memory,
            "disk": _spec(self.default_disk, 10_000, _disk_price() / MICRO),
            "sharedDisk": _spec(None, None, None),
            "vcpu": _spec(13 * self.count, 13 * self.count, None),
            "memory": _spec(94 * self.count, 94 * self.count, None),
            "internetSpeed": 10_000,
            "interconnect": 3200 if self.nodes > 1 else None,
            "interconnectType": "Infiniband" if self.nodes > 1 else None,
            "provisioningTime": self.minutes,
            "stockStatus": self.stock,
            "security": "community_cloud" if community else "secure_cloud",
            "prices": prices,
            "images": list(self.images),
            "isSpot": self.spot,
            "prepaidTime": self.seller.prepaid_hours,
        }

    @property
    def default_disk(self) -> int:
        """GB."""
        return 120 * self.count


class Offers:
    """The list as it is now. The same seed and minutes give the same rows.

    A steady one changes only when its prices are told to jump.
    """

    def __init__(self, world: World, profile: Profile, steady: bool = False) -> None:
        self._world = world
        self._steady = steady
        self._profile = profile
        self._random = random.Random(f"{world.seed}/offers")
        self._level = 1.0
        self._rows: tuple[Row, ...] = ()
        self._possible = tuple(self._every_row())
        self._change()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The list as anybody sees it; rows whose stock is Unavailable are on it too."""
        return self._rows

    def find(self, wanted: Callable[[Row], bool]) -> Row | None:
        """Return the first row that is wanted and to be had."""
        return next(
            (row for row in self._rows if row.stock != "Unavailable" and wanted(row)), None
        )

    def spike(self) -> None:
        """Let every price jump at once."""
        self._level = min(self._level * SPIKE, MOST_SPIKED)
        self._draw()

    def _every_row(self) -> list[Row]:
        rows: list[Row] = []
        for seller in SELLERS:
            for place in seller.places:
                for name in seller.kinds:
                    rows += self._rows_of(seller, place, KINDS[name])
        return rows

    def _rows_of(self, seller: Seller, place: tuple[str, str, str], kind: Kind) -> list[Row]:
        rows: list[Row] = []
        for count in seller.counts:
            cloud_id = f"{seller.name}-{kind.gpu_type}-{count}".lower()
            price = round(kind.cents * seller.factor) * 10_000 * count
            price += 120 * count * _disk_price()
            minutes = 5 if seller.name == "lambdalabs" else None
            rows.append(Row(cloud_id, kind, seller, place, count, price, "High", False, minutes))
            if seller.spot:
                spot = Row(
                    f"{cloud_id}-spot", kind, seller, place, count, round(price * 0.45), "High",
                    True, minutes,
                )  # fmt: skip
                rows.append(spot)
        return rows

    def _change(self) -> None:
        spikes = self._profile is Profile.SPIKE and self._random.random() < EVERY / (4 * 60)
        self._level += (1 - self._level) * 0.1
        self._level = min(self._level * (SPIKE if spikes else 1.0), MOST_SPIKED)
        self._draw()
        if not self._steady:
            self._world.clock.after(EVERY * 60, self._change)

    def _draw(self) -> None:
        """Draw anew which rows there are, with what stock, at what price."""
        share = {Profile.THIN: 0.25, Profile.EMPTY: 0.0}.get(self._profile, 0.85)
        rows: list[Row] = []
        for row in self._possible:
            there, stock = self._random.random() < share, self._random.choice(_STOCK)
            gone, factor = self._random.random() < 0.04, 1 + self._random.gauss(0, 0.02)
            if there:
                cents = round(row.price * self._level * factor / 10_000)
                stock = "Unavailable" if gone else stock
                rows.append(replace(row, price=cents * 10_000, stock=stock))
        self._rows = tuple(rows)


def _disk_price() -> int:
    """Micro-dollars per GB-hour."""
    return _DISK_CENTS_PER_TB * 10


def _spec(default: int | None, most: int | None, price: float | None) -> dict[str, Any]:
    return {
        "minCount": default,
        "defaultCount": default,
        "maxCount": most,
        "step": None if default is None else 1,
        "pricePerUnit": price,
        "defaultIncludedInPrice": False,
        "additionalInfo": None,
    }
