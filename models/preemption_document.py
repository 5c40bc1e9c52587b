"""A pool in a file, for `longshore preempt --dry-run --state`: nodes, and what runs on them."""

from datetime import datetime, timedelta
from typing import Annotated, Self

from pydantic import Field, model_validator

from longshore.models.base import Frozen, Instant, Name
from longshore.models.bounds import Most, Word
from longshore.models.counts import Count
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.money import Money
from longshore.models.node import Node
from longshore.models.placement import RunningJob
from longshore.models.preemption import BuyQuote, PreemptionPolicy, RunningWork, WorkCheckpoint
from longshore.models.resources import GPURequest
from longshore.models.statefile import (
    MOST_ENTRIES,
    ClusterState,
    Cores,
    NamedWord,
    refuse_repeated,
)
from longshore.models.topology import Gang
from longshore.models.units import GB, GBPerSecond, Watts


class RunningEntry(Frozen):
    """A job that runs on whole GPUs: those that the nodes name it for under `used`."""

    id: NamedWord
    tenant: Name = "default"
    priority: Count = Field(default=5, ge=0, le=10)
    started_at: Instant
    expected_end: Instant
    cpus: Cores = 0.0
    """In all, shared by its nodes as its GPUs are."""
    ram: GB = 0.0
    storage_bandwidth: GBPerSecond = 0.0
    power_per_gpu: Watts | None = None
    """What a GPU of its nodes may draw when left out."""
    checkpoint: WorkCheckpoint | None = None
    """Left out where it cannot save."""
    no_store: Word = ""
    preemptible: bool = True
    preempted_at: Annotated[tuple[Instant, ...], Most(1000)] = ()
    price: Money | None = None
    """A GPU-hour of its nodes; that of the policy for nodes that were not bought without."""

    def work(self, nodes: tuple[Node, ...], policy: PreemptionPolicy) -> RunningWork:
        """Return the job with what it holds of these nodes."""
        there = [node for node in nodes if any(gpu.job_id == self.id for gpu in node.gpus)]
        gpus = sum(gpu.job_id == self.id for node in there for gpu in node.gpus)
        shares = tuple(self._share(node, gpus) for node in there)
        request = JobRequest(
            id=self.id, tier=there[0].tier if there else Tier.FAST, priority=self.priority,
            gpus=gpus, vram_per_gpu=max(share.vram_per_gpu for share in shares), cpus=self.cpus,
            ram=self.ram, storage_bandwidth=self.storage_bandwidth,
            power_per_gpu=self.power_per_gpu, submitted_at=self.started_at,
            gang=Gang() if len(there) > 1 else None,
            expected_duration=max(self.expected_end - self.started_at, timedelta(0)),
            saves=self.checkpoint is not None,
            can_stop=self.checkpoint is not None and self.preemptible,
        )  # fmt: skip
        return RunningWork(
            request=request, tenant=self.tenant, shares=shares, started_at=self.started_at,
            expected_end=self.expected_end, checkpoint=self.checkpoint, no_store=self.no_store,
            preemptible=self.preemptible, preempted_at=self.preempted_at,
            price=policy.owned_gpu_price if self.price is None else self.price,
        )  # fmt: skip

    def _share(self, node: Node, gpus: int) -> RunningJob:
        held = [gpu for gpu in node.gpus if gpu.job_id == self.id]
        part = len(held) / gpus
        return RunningJob(
            job_id=self.id, node_id=node.id, gpu_indices=tuple(gpu.index for gpu in held),
            vram_per_gpu=max(gpu.vram_used for gpu in held), cpus=self.cpus * part,
            ram=self.ram * part, storage=self.storage_bandwidth * part,
            power=GPURequest(len(held)).power(self.power_per_gpu, node.gpu_power),
            expected_end=self.expected_end,
        )  # fmt: skip


class PreemptionState(ClusterState):
    """A whole state file: that of `longshore place`, with what runs and what is allowed."""

    running: Annotated[tuple[RunningEntry, ...], Most(MOST_ENTRIES)] = ()
    preemption: PreemptionPolicy = PreemptionPolicy()
    buy: BuyQuote | None = None
    """What the job would cost to buy instead."""

    @model_validator(mode="after")
    def _jobs_hold_gpus(self) -> Self:
        there = {gpu.job_id for node in self.packer_nodes() for gpu in node.gpus}
        for entry in self.running:
            if entry.id not in there:
                raise ValueError(f"running: {entry.id} holds no GPU: name it under used of a node")
        refuse_repeated((entry.id for entry in self.running), "running: ")
        return self

    def works(self) -> tuple[RunningWork, ...]:
        nodes = self.packer_nodes()
        return tuple(entry.work(nodes, self.preemption) for entry in self.running)

    def decided_at(self, now: datetime) -> datetime:
        return self.now or now
