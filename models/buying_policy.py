"""What a pool may buy, by which rule, and when it waits. docs/buying.md tells the rules.

Prices are micro-dollars per GPU-hour, costs micro-dollars.
"""

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from longshore.models.base import Frozen
from longshore.models.bounds import Most
from longshore.models.counts import Count
from longshore.models.job import Tier
from longshore.models.margins import DEFAULT_MARGINS, Margins
from longshore.models.market import InstanceType
from longshore.models.money import Cap, Money
from longshore.models.packing import PackingPolicy
from longshore.models.units import Duration

USUAL_MAX_PRICE = 10_000_000
_GPU_OF_TYPE = re.compile(r"([1-9]\d{0,3}x)?(?P<gpu>[a-z][a-z0-9_+.]*)(-\d+(\.\d+)?GB)?", re.I)
""""8xH100-80GB" and its parts."""


class BuyingRule(StrEnum):
    """How it is chosen what to buy."""

    SEED = "seed"
    """By size: an offer below 8 GPUs, whole nodes from an order book from 8 on."""
    LEAST_COST = "least-cost"
    """What costs least in all: money committed, less what is left over, plus delay."""


class Caps(Frozen):
    """The most that may be committed, in micro-dollars; no limit where one is ``none``."""

    per_purchase: Cap = None
    per_day: Cap = 1_000_000_000
    """For the whole pool, by days in UTC. $1,000.00 when left out."""
    per_tier_day: dict[Tier, Money] = Field(default_factory=dict[Tier, Money])
    per_tenant_day: Cap = None
    """For each tenant; a purchase counts whole for the one that pays most of it: whose jobs of
    those that it serves have the most GPU-hours."""


def _as_names(value: object) -> object:
    """A text holds names that commas part: `sellers.exclude=runpod,nebius`."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    return tuple(cast(list[object], value)) if isinstance(value, list) else value


_NAME = Most(200, one_line=True)
_NAMES = Most(1_000)
Names = Annotated[
    tuple[Annotated[str, Field(min_length=1), _NAME], ...], BeforeValidator(_as_names), _NAMES
]


class Among(Frozen):
    """Which names will do, whatever their case: those of `include`, or all, without `exclude`."""

    include: Names = ()
    exclude: Names = ()

    def takes(self, name: str | None) -> bool:
        """Return whether a name will do. What has none is not among those that are named."""
        known = (name or "").casefold()
        if any(known == each.casefold() for each in self.exclude):
            return False
        return not self.include or any(known == each.casefold() for each in self.include)

    def __bool__(self) -> bool:
        return bool(self.include or self.exclude)


class BuyingPolicy(Frozen):
    """What a pool may buy. Nothing is ever bought unless `enabled`."""

    enabled: bool = False
    rule: BuyingRule = BuyingRule.LEAST_COST
    instance_types: Annotated[
        tuple[Annotated[str, _NAME], ...], BeforeValidator(_as_names), _NAMES
    ] = ()
    """Such as 8xH100: what may be bought; any type that a job can use when left out."""
    spot: bool = False
    """Whether machines that may be taken away before their time, or whose price may change, will
    do."""
    sellers: Among = Among()
    """From whom, as an offer names its provider, such as hyperstack; a market without offers, such
    as sfcompute, sells itself."""
    community: bool = False
    """Whether machines of private hosts (`community_cloud`) will do: who owns one can read the
    join token that its agent is given."""
    regions: Among = Among()
    """Where, as the market names it, such as united_states. What names no region is not among
    those to include."""
    countries: Among = Among()
    """Where, as an offer names it, such as US."""
    refused_for: Duration = timedelta(days=1)
    """For so long an offer is left out whose seller took no order with the same image."""
    caps: Caps = Caps()
    max_price: dict[Tier, Cap] = Field(default_factory=dict[Tier, Cap], validate_default=True)
    """Micro-dollars per GPU-hour for each tier: $10.00 for one that is not named, no limit where
    it is ``none``. A limit order never offers more, and an offer above it is not taken."""

    below: SkipJsonSchema[int | None] = Field(default=None, exclude=True)
    """Of jobs that start only below a price: nothing is bought for them above it."""
    slippage: float = Field(default=0.1, ge=0, le=10)
    """How far a limit may be above the price that the last GPU has when it is decided to buy: 0.1
    is 10 %. An order that finds nobody within it is decided anew, at the prices of then."""

    fast_safety_factor: float = Field(default=1.0, ge=0, le=10)
    """Warm target of FAST: the whole part of (queued + used GPUs) times this. Above 1 the average
    of `smoothing` counts where that is more, so that it stays when the queue is empty."""
    fast_warm_gpus: Count = Field(default=0, ge=0, le=100_000)
    """The warm target is never below this."""
    fast_warm_type: Annotated[str, _NAME] | None = None
    """The GPU type that is kept warm, such as H100: other GPUs do not count for the target then,
    and are not bought for it. Of an instance type such as 8xH100-80GB it is the GPU. Any type when
    left out."""
    fast_delay_price: Money = 30_000_000
    """What it costs that a FAST job waits: for each of its GPUs, an hour."""
    fast_patience: Duration = timedelta(0)
    """A FAST job waits for so long after it was submitted, while what there is costs more than the
    rest of that wait and its time at `flex_price`, risen: for a machine of its size."""
    flex_price: Money = 2_000_000
    """A FLEX job whose time costs no more than this for a GPU-hour starts now; else it waits."""
    flex_rise: float = Field(default=0.25, ge=0, le=10)
    """By how much of itself that price rises, evenly, until the latest start of the job: the less
    time is left, the less can be hoped for."""
    flex_deadline: Duration = timedelta(hours=24)
    """A FLEX job starts at most this long after it was submitted, at any price within the cap."""

    smoothing: Duration = timedelta(minutes=30)
    """Demand counts as sustained when it was there for so long (consolidation)."""
    cooldown: Duration = timedelta(0)
    """Nothing is bought for so long after a purchase."""
    startup_limit: Duration = timedelta(minutes=15)
    """Machines that take longer to come up are not bought. Capacity that is there within this
    time is waited for."""
    usual_startup: Duration = timedelta(minutes=5)
    """How long a machine takes to come up, where the market does not say."""
    safety_margin: Duration = timedelta(seconds=300)
    """Bought time must outlast a job's expected duration by this much, and by as much as it needs
    to leave a node."""
    margins: SkipJsonSchema[Margins] = Field(default=DEFAULT_MARGINS, exclude=True)
    """How early jobs are asked to leave a node that ends: those of the pool's packing."""

    shortest_window: Duration = timedelta(hours=1)
    longest_window: Duration = timedelta(hours=24)
    window_step: Duration = Field(default=timedelta(minutes=15), ge=timedelta(minutes=1))
    """Windows are whole multiples of it: what is rounded up is room for a late start-up."""
    seed_window: Duration = timedelta(hours=24)
    """What the seed rule buys, at a market of fixed windows."""
    prime_max_gpus: Count = Field(default=8, ge=1, le=1024)
    """The most GPUs that the seed rule takes from a list of offers."""
    prime_max_price: Money | None = None
    """The most that the seed rule pays there, for a GPU-hour; no limit when left out."""

    idle_after: Duration = timedelta(minutes=1)
    """A machine that is billed as it runs is stopped when it was idle for so long. It was bought
    for what it serves, and has no time left for much else."""
    resale_share: float = Field(default=0.5, ge=0, le=1)
    """How much of the highest bid is hoped for when time that is left over is sold again."""
    resale_fee: float = Field(default=0.0, ge=0, le=1)
    """What the market keeps of it."""
    resell: bool = True
    """Whether time of its blocks that nobody needs is sold again."""
    renew: bool = True
    """Whether the time after a block is bought where that costs less than to let its work end."""
    reuse_share: float = Field(default=0.5, ge=0, le=1)
    """How much of its price time that is left over is worth while demand of late would use it."""

    @property
    def keeps_warm(self) -> bool:
        """Whether FAST capacity is bought ahead of the jobs that will use it."""
        return self.enabled and (self.fast_warm_gpus > 0 or self.fast_safety_factor > 1)

    def most(self, tier: Tier) -> int | None:
        """Return the most that a GPU-hour may cost for a tier, in micro-dollars; None for no
        limit."""
        known = [each for each in (self.max_price.get(tier), self.below) if each is not None]
        return min(known, default=None)

    def beside(self, packing: PackingPolicy) -> Self:
        """Return the policy of a pool that packs so.

        What is bought must last as long as the packer asks of a node, or nothing would run there.
        """
        longer = max(self.safety_margin, packing.safety_margin)
        return self.model_copy(update={"safety_margin": longer, "margins": packing.margins})

    @field_validator("max_price")
    @classmethod
    def _price_for_each_tier(cls, prices: dict[Tier, int | None]) -> dict[Tier, int | None]:
        return {**dict.fromkeys(Tier, USUAL_MAX_PRICE), **prices}

    @field_validator("fast_warm_type")
    @classmethod
    def _type_of_gpu(cls, named: str | None) -> str | None:
        """No GPU is called after its machine or its memory: none would ever be kept warm."""
        if named is None:
            return None
        found = _GPU_OF_TYPE.fullmatch(named.strip())
        return found["gpu"].upper() if found else named

    @field_validator("instance_types")
    @classmethod
    def _types_can_be_read(cls, types: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(InstanceType.parse(named)) for named in types)

    @model_validator(mode="after")
    def _windows_in_order(self) -> Self:
        if self.shortest_window > self.longest_window:
            raise ValueError("shortest_window must not be longer than longest_window")
        return self
