"""What people are shown of bought capacity, in detail: one purchase, one block, its use.

Amounts are micro-dollars, prices micro-dollars per GPU-hour, times aware UTC.
"""

from datetime import datetime, timedelta
from typing import Self

from models.base import Instant, Wire
from models.block_end import BlockDecision
from models.purchase import BlockState, PurchaseState


class PurchaseView(Wire):
    """One purchase in a list."""

    id: str
    pool: str
    tenant: str
    tier: str
    state: PurchaseState
    reason: str
    committed: int
    """The most that it can still cost, with what it has cost."""
    spent: int
    simulated: bool
    orders: int
    """How many were made."""
    nodes: tuple[str, ...]
    """Machines that have not ended."""
    provider: str = ""
    """The market of the first option."""
    instance_type: str = ""
    """Of the first option."""
    wanted: int = 0
    """Nodes that are wanted."""
    created_at: Instant
    ended_at: Instant | None = None


class BlockView(Wire):
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
    price: int
    cost: int
    simulated: bool


class CostView(Wire):
    """What one pool, tenant, job or block has cost."""

    name: str
    spent: int
    """Paid for it at the markets; of a job or a tenant, its share of what was paid."""
    used: int = 0
    """By jobs, of blocks whose account is closed."""
    idle: int = 0
    resold: int = 0
    """What others paid for time of it, before the fees."""
    fees: int = 0
    """What the markets kept of that; a part of what was spent."""
    open: int = 0
    """Paid for blocks that have not ended: not yet divided into used and idle."""
    saved: int = 0
    """What the same time would have cost at the limits of its orders, less what it cost."""
    simulated: bool = False
    """Some of it was bought at a simulated market."""


class OptionRecord(Wire):
    """One way that was looked at when the purchase was decided, with its costs."""

    title: str
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


class BuyingRecord(Wire):
    """What a pool decided about buying: a purchase keeps it, and the pool its last one."""

    at: Instant
    rule: str = ""
    reason: str
    """The answer in one sentence."""
    serves: tuple[str, ...] = ()
    """Jobs that something is bought for."""
    options: tuple[OptionRecord, ...] = ()
    """All that was looked at; of a pool's last decision the best of each tier."""


class OrderView(Wire):
    """One order of a purchase."""

    key: str
    """What the market knows it by; the id of the block that came of it."""
    provider: str
    instance_type: str
    limit: int
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
    committed: int
    spent: int
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


class PurchaseDetail(PurchaseView):
    """A purchase with why it was made, what was looked at, and all that came of it."""

    planned: int
    """The most that it could cost when it was decided."""
    decided: str = ""
    """The decision in a sentence; empty where somebody bought by hand."""
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
    idle: int = 0
    """Cost of GPU-time that no job held: so far while it lasts, as booked when it has ended."""
    used: int = 0
    resold: int = 0
    """Proceeds of time that was sold again."""
    measured_at: Instant

    def measured(self) -> Self:
        """Return the block with its utilisation, and while it lasts its used and idle cost."""
        began = self.starts_at
        until = min(filter(None, (self.ended_at, self.ends_at, self.measured_at)))
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
            update={"utilisation": utilisation, "used": used, "idle": passed - used}
        )

    def _passed(self, elapsed: timedelta) -> int:
        """Return the cost of the time that has passed."""
        if self.is_machine or self.ends_at is None or self.starts_at is None:
            return self.cost
        return round(self.cost * min(elapsed / (self.ends_at - self.starts_at), 1.0))


def _held(use: BlockUse, began: datetime, until: datetime) -> timedelta:
    start, end = max(use.started_at, began), min(use.ended_at or until, until)
    return max(end - start, timedelta(0)) * use.gpus
