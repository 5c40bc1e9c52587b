"""What people are shown of bought capacity, in detail: one purchase, one block, its use.

Names say what an amount is counted in: `_micro_usd` are micro-dollars, prices those of a GPU-hour.
What is stored (options and decisions) keeps short names, of the same units. Times are aware UTC.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Self

from pydantic import Field

from longshore.models.base import Instant, Wire
from longshore.models.block import BlockState
from longshore.models.block_end import BlockDecision
from longshore.models.limit import Limit
from longshore.models.purchase import PurchaseState
from longshore.models.text import amount, format_dollars, listed
from longshore.models.units import Duration

_PAYERS = 12
"""Tenants that are named with their parts of a purchase."""


NOT_BILLED = "by price and time, which the market has not billed yet"


class Account(Wire):
    """What was paid, and what became of it: paid - resold + fees = used + idle + open."""

    paid_micro_usd: int = 0
    """To markets, less what they gave back."""
    resold_micro_usd: int = 0
    """What others paid for time of it, before the fees."""
    fees_micro_usd: int = 0
    """What the markets kept of that."""
    used_micro_usd: int = 0
    """By jobs, of blocks that have ended: a job pays its share then."""
    idle_micro_usd: int = 0
    """By nobody, of blocks that have ended, less what was resold and with its fees: below zero
    where that brought more than idle time had cost."""
    open_micro_usd: int = 0
    """Of blocks that have not ended: not yet divided into used and idle."""
    estimated_micro_usd: int = 0
    """What machines that are billed as they run have cost beyond what is paid, by their price and
    time: an estimate until the market tells its bill, and no part of the sum. None of costs."""

    @property
    def adds_up(self) -> bool:
        cost = self.paid_micro_usd - self.resold_micro_usd + self.fees_micro_usd
        return cost == self.used_micro_usd + self.idle_micro_usd + self.open_micro_usd

    @property
    def paid_so_far(self) -> str:
        """What was paid; with ``about`` in front where a part of it is an estimate."""
        about = "about " if self.estimated_micro_usd else ""
        return f"{about}{amount(self.paid_micro_usd + self.estimated_micro_usd)}"

    @property
    def sum_in_words(self) -> str:
        """The sum, exact: ``$4.00 paid - $1.50 resold + $0.06 fees = $2.00 used + $0.56 idle``;
        then what is estimated, if anything."""
        made_of = [f"{format_dollars(self.paid_micro_usd)} paid"]
        if self.resold_micro_usd or self.fees_micro_usd:
            made_of.append(f"- {format_dollars(self.resold_micro_usd)} resold")
            made_of.append(f"+ {format_dollars(self.fees_micro_usd)} fees")
        idle = self.idle_micro_usd
        became = [
            f"{format_dollars(self.used_micro_usd)} used",
            f"{'-' if idle < 0 else '+'} {format_dollars(abs(idle))} idle",
        ]
        if self.open_micro_usd:
            became.append(
                f"{'-' if self.open_micro_usd < 0 else '+'} "
                f"{format_dollars(abs(self.open_micro_usd))} open"
            )
        about = ""
        if self.estimated_micro_usd:
            about = f"; about {amount(self.estimated_micro_usd)} more {NOT_BILLED}"
        return f"{' '.join(made_of)} = {' '.join(became)}{about}"


def summed(accounts: Iterable[Account]) -> Account:
    """Return the account of all of them."""
    known = list(accounts)
    return Account.model_validate(
        {name: sum(getattr(each, name) for each in known) for name in Account.model_fields}
    )


class PurchaseView(Account):
    """One purchase in a list."""

    id: str
    pool: str
    tenant: str
    tier: str
    state: PurchaseState
    reason: str
    committed_micro_usd: int
    """The most that it can still cost, with what it has cost."""
    split_micro_usd: dict[str, int] = Field(default_factory=dict[str, int])
    """What of that counts to each tenant, by the GPU-hours of its jobs; empty where all of it
    counts to `tenant`."""
    simulated: bool
    orders: int
    """How many were made."""
    nodes: tuple[str, ...]
    """Machines that have neither failed nor ended; some may not be up yet."""
    provider: str = ""
    """The market of the first option."""
    instance_type: str = ""
    """Of the first option."""
    wanted: int = 0
    """Nodes that are wanted."""
    created_at: Instant
    ended_at: Instant | None = None

    @property
    def split_in_words(self) -> str:
        """The parts of the tenants, the largest first: ``$10.25 audio, $3.42 vision, by
        GPU-hours``; empty where one pays for all."""
        parts = sorted(self.split_micro_usd.items(), key=lambda part: (-part[1], part[0]))
        paid = [f"{amount(micro)} {tenant}" for tenant, micro in parts]
        return f"{listed(paid, _PAYERS, 'tenant')}, by GPU-hours" if paid else ""


class BlockView(Account):
    """One block in a list."""

    id: str
    purchase_id: str | None = None
    pool: str | None = None
    provider: str
    instance_type: str
    state: BlockState
    reason: str
    nodes: int
    gpus_per_node: int
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    ended_at: Instant | None = None
    """When it was closed."""
    decided: str = ""
    """What was decided about it last, and why."""
    price_micro_usd: int
    """Of a GPU-hour, on average."""
    simulated: bool


class PurchaseUnderWay(Wire):
    """A purchase of which machines are still to come."""

    id: str
    nodes: int
    """That are still to come."""
    instance_type: str
    provider: str
    committed_micro_usd: int
    """The most that the whole purchase can still cost, with what it has cost."""
    ready_at: Instant
    """When they are there, or were to be; not before that, where they are refused."""
    late: bool = False
    refused: str = ""
    """Why the market did not start one that is paid for, and that it is asked for again."""
    simulated: bool = False


class CostView(Account):
    """What one pool, tenant, job or block has cost. A job, or a tenant, pays its share of blocks
    that have ended: as much as it has used."""

    name: str
    saved_micro_usd: int = 0
    """What the same time would have cost at the limits of its orders, less what it cost."""
    simulated: bool = False
    """Some of it was bought at a simulated market."""


class JobCost(Wire):
    """What a job has cost so far."""

    gpu_time: Duration
    """How long it held GPUs, a part of a GPU as a part of that."""
    booked_micro_usd: int = 0
    """Its share of blocks that have ended."""
    bought: bool = False
    """Some of its GPUs were bought."""
    open_blocks: tuple[str, ...] = ()
    """Blocks that it ran on and that have not ended: its share of them is booked then."""
    simulated: bool = False


class OptionRecord(Wire):
    """One way that was looked at when the purchase was decided, with its costs."""

    title: str
    job_id: str = ""
    """The job that it is for, where nothing is bought for that now, whatever is offered."""
    kind: str = ""
    tier: str = ""
    total: int
    """Money and delay, less what is left over."""
    committed: int = 0
    """In money."""
    delay: int = 0
    max_total: int = 0
    chosen: bool = False
    lost: str = ""
    """Why it was not chosen."""


class PurchaseDecision(Wire):
    """What a purchase keeps of the decision to make it; all of it may be left out."""

    rule: str = ""
    reason: str = ""
    left_out: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    options: tuple[OptionRecord, ...] = ()


class BuyingRecord(Wire):
    """What a pool decided about buying: a purchase keeps it, and the pool its last one."""

    at: Instant
    rule: str = ""
    reason: str
    """The answer in one sentence."""
    left_out: tuple[str, ...] = ()
    """What would have served, and is left out for what it is: counted, in words."""
    serves: tuple[str, ...] = ()
    """Jobs that something is bought for."""
    limits: tuple[Limit, ...] = ()
    """What kept from buying, where somebody can change it: with all of these changed it buys."""
    why: str = ""
    """The answer without what is said of single jobs; empty where nothing is."""
    in_vain: dict[str, str] = Field(default_factory=dict[str, str])
    """Why nothing is bought for a job now, whatever is offered, by its id."""
    held_for: tuple[str, ...] = ()
    """Jobs for which there would be bought first, were it not for `limits`; empty where that is
    not known."""
    lacking: tuple[str, ...] = ()
    """Jobs that nothing holds in time."""
    options: tuple[OptionRecord, ...] = ()
    """All that was looked at; of a pool's last decision the best of each tier."""


class OrderView(Wire):
    """One order of a purchase."""

    key: str
    """What the market knows it by; the id of the block that came of it."""
    provider: str
    instance_type: str
    limit_micro_usd: int
    """For a GPU-hour."""
    wanted: int
    """Nodes that were ordered."""
    nodes: int
    """Nodes that were bought."""
    state: str
    order_id: str | None = None
    """Its id at the market, once it is known."""
    order_state: str | None = None
    """What the market last said of it."""
    refused: str = ""
    committed_micro_usd: int
    paid_micro_usd: int
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    created_at: Instant
    sent_at: Instant | None = None
    closed_at: Instant | None = None


class MachineView(Wire):
    """One machine of a block; its node has its name."""

    name: str
    block_id: str
    provider: str
    machine_id: str | None = None
    """Its id at the market, once it is known."""
    state: str
    reason: str
    created_at: Instant
    asked_at: Instant | None = None
    registered_at: Instant | None = None
    """When its agent registered, last."""
    ended_at: Instant | None = None


class Happened(Wire):
    """One thing that happened to a purchase."""

    at: Instant
    what: str
    """intent, order, money, machine, agent, sale, block or end."""
    text: str


WARM = "(warm"
"""How the names begin under which the warm target is bought for (scheduling/buying/plan)."""


def named(serves: Iterable[str]) -> tuple[str, ...]:
    """Return for whom something is bought, by names for readers: the warm target has no job."""
    return tuple(
        dict.fromkeys("the warm target" if name.startswith(WARM) else name for name in serves)
    )


class PurchaseDetail(PurchaseView):
    """A purchase with why it was made, what was looked at, and all that came of it."""

    planned_micro_usd: int
    """The most that it could cost when it was decided."""
    decided: str = ""
    """The decision in a sentence; empty where somebody bought by hand."""
    left_out: tuple[str, ...] = ()
    """What would have served, and was left out for what it is."""
    rule: str = ""
    serves: tuple[str, ...] = ()
    """Jobs that it was made for."""
    options: tuple[OptionRecord, ...] = ()
    made: tuple[OrderView, ...] = ()
    """Its orders, the first first."""
    machines: tuple[MachineView, ...] = ()
    blocks: tuple[str, ...] = ()
    timeline: tuple[Happened, ...] = ()
    """Oldest first."""
    unreadable: tuple[str, ...] = ()
    """What is stored of it and cannot be read, a line each: somebody has written into its row, or
    another version."""


class BlockUse(Wire):
    """A job held GPUs of a node of a block."""

    block_id: str
    node_id: str
    job_id: str
    job: str
    tenant: str
    attempt: int
    gpus: float
    """Parts of a GPU count as parts."""
    started_at: Instant
    ended_at: Instant | None = None
    end_reason: str | None = None


class BlockDetail(BlockView):
    """A block with its machines, the jobs on it over time, and what became of its money."""

    is_machine: bool
    """Billed as it runs; else a window that is paid whole."""
    machines: tuple[MachineView, ...] = ()
    uses: tuple[BlockUse, ...] = ()
    """By node and time."""
    decision: BlockDecision | None = None
    """What was decided about it last, with every option; none where there was no need yet."""
    utilisation: float | None = None
    """Share of the GPU-time so far that jobs held; none before it began."""
    used_so_far_micro_usd: int | None = None
    """While it lasts: the cost of GPU-time that jobs have held."""
    idle_so_far_micro_usd: int | None = None
    """And of that which nobody has held."""
    measured_at: Instant

    def measured(self) -> Self:
        """Return the block with its utilisation, and while it lasts its used and idle cost."""
        began = self.starts_at
        # A machine that is billed as it runs may run on after its end.
        ends_at = None if self.is_machine else self.ends_at
        until = min(filter(None, (self.ended_at, ends_at, self.measured_at)))
        if began is None or until <= began:
            return self
        elapsed = (until - began) * self.nodes * self.gpus_per_node
        held = sum((_held(use, began, until) for use in self.uses), timedelta(0))
        utilisation = min(held / elapsed, 1.0) if elapsed else None
        if self.state is BlockState.ENDED or utilisation is None:
            return self.model_copy(update={"utilisation": utilisation})
        passed = self._passed(until - began)
        used = round(passed * utilisation)
        return self.model_copy(
            update={
                "utilisation": utilisation,
                "used_so_far_micro_usd": used,
                "idle_so_far_micro_usd": passed - used,
            }
        )

    def _passed(self, elapsed: timedelta) -> int:
        """Return the cost of the time that has passed."""
        if self.is_machine or self.ends_at is None or self.starts_at is None:
            return self.paid_micro_usd + self.estimated_micro_usd
        return round(self.paid_micro_usd * min(elapsed / (self.ends_at - self.starts_at), 1.0))


def _held(use: BlockUse, began: datetime, until: datetime) -> timedelta:
    start, end = max(use.started_at, began), min(use.ended_at or until, until)
    return max(end - start, timedelta(0)) * use.gpus
