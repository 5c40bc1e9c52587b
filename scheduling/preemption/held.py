"""What a job has of a node in a hypothetical cluster, and the node with it. Pure."""

from datetime import datetime

from longshore.models.job_request import JobRequest
from longshore.models.node import GPU, GPUParts, Node
from longshore.models.placement import RunningJob
from longshore.models.preemption import GainedGPUs
from longshore.scheduling.placement.parts import Parts
from longshore.scheduling.placement.slots import parts_of
from longshore.scheduling.placement.state import Hold, Need, running_job, used_of, with_job


def hold_of(
    job_id: str,
    need: Need,
    gpu_power: float,
    mask: int,
    start: datetime,
    parts: Parts = (),
) -> Hold:
    return Hold(job_id, mask, need.host(gpu_power), start, need.end_from(start), parts)


def with_share(node: Node, share: RunningJob) -> Node:
    """Return the node as it is once the job has this of it."""
    gpus = len(share.gpu_indices)
    request = JobRequest(
        id=share.job_id, gpus=gpus, vram_per_gpu=share.vram_per_gpu, cpus=share.cpus,
        ram=share.ram, storage_bandwidth=share.storage, power_per_gpu=share.power / gpus,
    )  # fmt: skip
    if not parts_of(share):
        return with_job(node, request, share.gpu_indices)
    gpus = tuple(
        _with_part(gpu, share) if gpu.index in share.gpu_indices else gpu for gpu in node.gpus
    )
    return node.model_copy(update={"gpus": gpus, **used_of(node.host_used.plus(share.host))})


def _with_part(gpu: GPU, share: RunningJob) -> GPU:
    parts = GPUParts(
        milli_used=gpu.milli_used + share.milli, mig=gpu.mig,
        slices_used=gpu.slices_used | share.slices,
    )  # fmt: skip
    vram_used = gpu.vram_used + share.vram_per_gpu
    return gpu.model_copy(update={"parts": parts, "vram_used": vram_used})


def held_by(job: JobRequest, gain: GainedGPUs, end: datetime, node: Node) -> RunningJob:
    return running_job(job, node, gain.gpu_indices, gain.slices, end)
