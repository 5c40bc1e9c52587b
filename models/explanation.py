"""Why a job is where it is, as people are told."""

from datetime import timedelta

from longshore.models.base import Instant, Wire
from longshore.models.block_end import BlockDecision
from longshore.models.checkpointing import CheckpointDecision
from longshore.models.dag_view import HeldMutex
from longshore.models.data import StagedData
from longshore.models.deadline import DeadlineCost
from longshore.models.funding_use import Payers
from longshore.models.growth import GrowthDecision
from longshore.models.placement import Decision
from longshore.models.preemption import PreemptionPlan, Spared, TakenSpare
from longshore.models.resize import SizeChange
from longshore.models.score import TenantPart
from longshore.models.spending import BuyingRecord, JobCost, PurchaseUnderWay
from longshore.models.units import Duration
from longshore.models.views import AttemptShare, AttemptView, JobView


class Explanation(Wire):
    """Why a job is where it is."""

    job: JobView
    headline: str
    position: int | None = None
    """Place in its pool's queue, from 1."""
    ahead: int = 0
    """Jobs before it in the queue."""
    path_behind: float = 0.0
    """For a queued job of a DAG: the longest path of jobs that come after it, as a part of the
    DAG's longest."""
    head_start: Duration = timedelta(0)
    """By how much it counts as submitted earlier for that (weight `critical_path` of its pool)."""
    share: TenantPart | None = None
    """For a queued job of a pool whose score asks for shares: that of its tenant."""
    decision: Decision | None = None
    """For a queued job: what the packer would say of it now, alone, node by node."""
    simulated: bool = False
    """For a queued job: whether a node of its pool has simulated GPUs."""
    last_decision: Decision | None = None
    """For a queued job: what the last cycle said, with the jobs before it. In both, a node that is
    not ready has the reason that would remain if it were, where there is one."""
    decided_at: Instant | None = None
    placed: Decision | None = None
    """For a job that runs or ran: what placed its last attempt, with the score of that node and of
    the best others."""
    making_room: PreemptionPlan | None = None
    """For a queued job: the running jobs that are preempted for it now."""
    weighed: PreemptionPlan | None = None
    """For a queued job for which nobody is preempted, though some might be: the ways to start with
    their prices, as they are weighed now. None of a job that is no engine, where many wait in its
    pool."""
    made_room: PreemptionPlan | None = None
    """For a job that runs: the plan that had others preempted for its attempt."""
    took_spares: tuple[TakenSpare, ...] = ()
    """For a job that runs: what gangs gave up for its attempt of what stood by for them."""
    spares_gone: tuple[AttemptShare, ...] = ()
    """For a gang that runs: what stood by for it, and was given up since."""
    spared: tuple[Spared, ...] = ()
    """For a queued job: running jobs that are left alone for a time, and may then be stopped for
    it."""
    gave_way: PreemptionPlan | None = None
    """The plan that preempted the job itself last, or does now."""
    saving: CheckpointDecision | None = None
    """What was decided last about a save while it ran."""
    data: tuple[StagedData, ...] = ()
    """Of what nodes fetch for it: how much is where it runs, or is expected to start."""
    data_missing: str = ""
    """For a job that runs: what of its data could not be had, and why."""
    checkpoint_error: str = ""
    """For a job that runs: what was damaged of what it should go on from, and why what it saved is
    not in the store."""
    purchases: tuple[PurchaseUnderWay, ...] = ()
    """For a queued job: purchases under way that it is to start on."""
    buying: BuyingRecord | None = None
    """For a queued job: what its pool decided last about buying, with the best options."""
    blocks: tuple[BlockDecision, ...] = ()
    """For a running job: what was decided last about the bought nodes that it runs on, with every
    option in micro-dollars."""
    mutexes: tuple[HeldMutex, ...] = ()
    """Those that a job of a DAG has until its end."""
    hints: tuple[str, ...] = ()
    """What could be done about it."""
    meeting: DeadlineCost | None = None
    """For a queued job that does not meet its deadline by waiting: what it costs to meet it."""
    sizes: tuple[SizeChange, ...] = ()
    """For a malleable job: the changes of its size, oldest first."""
    growth: GrowthDecision | None = None
    """For a running job with fewer GPUs than it is to have: whether it would get more now."""
    attempts: tuple[AttemptView, ...] = ()
    """For a job that has ended: where it ran, and how each attempt ended."""
    cost: JobCost | None = None
    """For a job that has ended."""
    payers: Payers | None = None
    """Who pays for it, and who has; null where no tenant has a budget."""
    stderr_tail: tuple[str, ...] = ()
    """For a job that failed: the last lines that it wrote to stderr, at most 10."""

    @property
    def ways_plan(self) -> PreemptionPlan | None:
        """The plan whose ways to start tell why it starts as it does."""
        return self.making_room or self.weighed or self.made_room
