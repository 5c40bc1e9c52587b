"""What a job asks of the nodes that it runs on."""

from pydantic import Field

from longshore.models.base import Frozen, ShortText
from longshore.models.constraints import Constraints
from longshore.models.counts import Count
from longshore.models.elastic import Malleable
from longshore.models.mig import MigProfile
from longshore.models.resources import GPURequest
from longshore.models.topology import Conformance, Gang
from longshore.models.units import GB, MOST_CPUS, Duration, GBPerSecond, Watts


class ResourceRequest(Frozen):
    """What a job asks of the nodes that it runs on: what its file says, and what is packed."""

    gpus: Count = Field(default=1, ge=1, le=100_000)
    """GPUs that the job holds in all; on one node, unless `gang` lets it span several. Of a job
    with `malleable` the size for which `cpus`, `ram` and `expected_duration` are said; its desired
    size when left out."""
    gpu_type: ShortText | None = Field(default=None, min_length=1, max_length=64)
    """Model of GPU, such as H100; any when left out. Compared without regard to case."""
    vram_per_gpu: GB = 0.0
    """Memory needed on each GPU; of a GPU that is shared, the job's part of it."""
    milli: Count = Field(default=1000, ge=1, le=1000)
    """Thousandths of each of its GPUs that the job needs: below 1000 it shares them with others,
    and has to name its `vram_per_gpu`. Several GPUs of a share are on one node. See
    docs/sharing.md."""
    mig: MigProfile | None = None
    """A MIG profile such as 1g.10gb: the job gets one instance of it, on a GPU in MIG mode."""
    cpus: float = Field(default=1.0, ge=0, le=MOST_CPUS)
    """CPU cores, in total; the nodes of a gang share them in proportion to its GPUs there."""
    ram: GB = 1.0
    """Main memory, in total; shared as the cores are."""
    storage_bandwidth: GBPerSecond = 0.0
    """What it reads and writes of storage each second, in total; shared as the cores are. Counts
    on nodes that say how much they have."""
    power_per_gpu: Watts | None = None
    """The most that it draws with each GPU, where that is less than the GPU may draw; of a GPU
    that is shared, with its part. Counts on nodes with a power budget."""
    expected_duration: Duration | None = Field(
        default=None, exclude_if=lambda expected: expected is None
    )
    """How long it will probably run; a node that ends before that is not chosen. Where it is more
    than `max_duration`, that counts in its place. When left out it is learnt from jobs before it
    (docs/queue.md); where there are none it is placed as if it took an hour. Only one that is
    stated spares a job as near its end."""
    max_duration: Duration | None = Field(default=None, exclude_if=lambda limit: limit is None)
    """How long an attempt may run: then it is asked to save and stop, and ends as `time_limit`.
    That of its pool when left out, which is also the most (docs/concepts.md)."""
    gang: Gang | None = None
    """Lets the job span nodes; all of its GPUs are placed together, or none."""
    malleable: Malleable | None = None
    """Lets the job run on fewer or more GPUs: it starts on as many as fit. See docs/elastic.md."""
    conformance: Conformance | None = None
    """Which nodes may serve, by driver, firmware and kernel parameters; any when left out.
    For `known` a pool buys; not for `allowed`, for what a machine has is known when it is there.
    See docs/topology.md."""
    sensitive: bool = Field(default=False, exclude_if=lambda sensitive: not sensitive)
    """True: it holds its nodes alone, all of their GPUs, also those that it does not ask for, and
    only nodes whose fingerprint is known and has not changed may serve. No job of anybody runs
    beside it. See docs/sensitive.md."""
    constraints: Constraints = ()
    """Which nodes may serve, by their labels: `zone=a`, `zone!=b`, `zone in (a, b)`,
    `zone notin (a, b)`, `ib` (the node has the label) and `!ib`. All of them have to hold; as in
    Kubernetes a node without the label satisfies `!=` and `notin`. See docs/concepts.md."""

    @property
    def gpu(self) -> GPURequest:
        """What it asks of GPUs, but for their type."""
        return GPURequest(
            self.gpus, self.vram_per_gpu, self.milli, self.mig, alone=self.sensitive,
            by_memory=self.runs_engine,
        )  # fmt: skip

    @property
    def runs_engine(self) -> bool:
        """Whether it runs the engine of a service."""
        return False
