"""A pool: a queue with its own nodes, policy and weights."""

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from longshore.models.base import Frozen, Name
from longshore.models.bounds import TAKEN, is_taken
from longshore.models.buying import BuyingPolicy
from longshore.models.checkpointing import CheckpointPolicy
from longshore.models.errors import NotFoundError
from longshore.models.gpu_hour_price import GPUHourPrice
from longshore.models.margins import Margins
from longshore.models.placement import PackingPolicy, PackingRule
from longshore.models.preemption import PreemptionPolicy
from longshore.models.price_series import PoolPrice
from longshore.models.score import ScorePolicy, ScoreProfile
from longshore.models.text import format_duration
from longshore.models.units import Duration, limit_leaves_time
from longshore.models.visible import shown


class Growth(StrEnum):
    """Whether more capacity can come."""

    OPEN = "open"
    """Nodes may join or be bought: a job that nothing can hold waits, with that reason."""
    FIXED = "fixed"
    """What is there is all: a job that no node could hold is refused at submit."""


class PoolPacking(PackingPolicy):
    """How a pool packs unless it says otherwise."""

    rule: PackingRule = PackingRule.KEEP_ROOM


LEAST_INTERVAL = timedelta(milliseconds=100)


def _leaves_time(interval: timedelta, info: ValidationInfo) -> timedelta:
    if interval < LEAST_INTERVAL and not is_taken(info):
        least = format_duration(LEAST_INTERVAL)
        raise ValueError(f"must be at least {least}, got {format_duration(interval)}")
    return interval


class PoolSpec(Frozen):
    name: Name = "default"
    growth: Growth = Growth.OPEN
    packing: PoolPacking = PoolPacking()
    interval: Annotated[Duration, AfterValidator(_leaves_time)] = timedelta(seconds=30)
    """Run a cycle at least this often while jobs wait; 100ms at least."""
    grow_after: Duration = timedelta(minutes=5)
    """A running malleable job gets more GPUs when they were idle for so long; 0 never
    (docs/elastic.md)."""
    max_duration: Duration | None = Field(default=None, exclude_if=lambda limit: limit is None)
    """The most that an attempt of a job may run, and the time limit of jobs that name none; no
    limit when left out. A job that asks for more is refused."""
    price: PoolPrice | None = Field(default=None, exclude_if=lambda price: price is None)
    """Where the price of a GPU-hour comes from that jobs may wait for (docs/price-series.md)."""
    start_below: GPUHourPrice | None = Field(default=None, exclude_if=lambda price: price is None)
    """No job of it starts before that price is below this, whatever the job says."""
    buying: BuyingPolicy = BuyingPolicy()
    """What it may buy; nothing, unless this is switched on (docs/buying.md)."""
    preemption: PreemptionPolicy = PreemptionPolicy()
    """When running jobs are preempted for those of higher classes (docs/preemption.md)."""
    checkpoints: CheckpointPolicy = CheckpointPolicy()
    """When running jobs are asked to save."""

    _limit_leaves_time = field_validator("max_duration")(limit_leaves_time)

    @classmethod
    def new(cls, name: str) -> Self:
        """Return the settings of a pool that is made: those of one that is stored without them
        stay what they were."""
        score = ScorePolicy(profile=ScoreProfile.BALANCED)
        return cls(name=name, packing=PoolPacking(score=score))

    @classmethod
    def as_known(cls, stored: object) -> Self:
        """Return settings that were stored: an earlier version took longer lists and names than
        are taken now. Raises ValidationError."""
        return cls.model_validate(stored, context=TAKEN)

    def within(self, margins: Margins) -> Self:
        """Return the pool as a control worker with these margins plans it."""
        preemption = self.preemption
        measured = {
            "margins": margins,
            "owned_gpu_price": preemption.owned_gpu_price,
            "delay_price": preemption.delay_price,
        }
        return self.model_copy(update={"packing": self.packing.model_copy(update=measured)})

    @property
    def purchasing(self) -> BuyingPolicy:
        """What it may buy, for as long as its packer asks of a node at least."""
        return self.buying.beside(self.packing)

    @property
    def first_purchases(self) -> BuyingPolicy:
        """The same for jobs that have not started: nothing above what they start below."""
        return self.purchasing.model_copy(update={"below": self.start_below})


def no_such_pool(name: str, known: Iterable[str]) -> NotFoundError:
    """Return the error for a pool that is not among the `known` ones; it names the first few."""
    names = sorted(known)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    there = f"there are {', '.join(names[:_NAMED])}{more}" if names else "there is none yet"
    return NotFoundError(f"no pool {shown(name)}: `longshore pools` lists them; {there}")


_NAMED = 5
