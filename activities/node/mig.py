"""MIG on the GPUs of this machine, as NVML tells it, and the device that a job gets.

Longshore cuts no GPU: it uses the instances that are there. A GPU in MIG mode without any takes
no job.
"""

from typing import Any

import pynvml

from longshore.models.mig import MigPositions, first_slice, profile_of, slice_mask
from longshore.models.node import GPUInventory, Inventory, MigInstance

_NOT_IN_MIG_MODE = (None, ())
_HAS_NO_MIG = (
    pynvml.nvmlExceptionClass(pynvml.NVML_ERROR_NOT_SUPPORTED),
    pynvml.nvmlExceptionClass(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
)
_NO_SUCH_DEVICE = pynvml.nvmlExceptionClass(pynvml.NVML_ERROR_NOT_FOUND)


def read_mig(handle: Any) -> tuple[MigPositions | None, tuple[MigInstance, ...]]:
    """Return the positions and the instances of a GPU; None where it is not in MIG mode.

    `handle` is NVML's, of the whole GPU. An instance that is cut further, into compute instances,
    is left out. Raises NVMLError where the driver does not answer.
    """
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except _HAS_NO_MIG:
        return _NOT_IN_MIG_MODE
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return _NOT_IN_MIG_MODE
    found: list[MigInstance] = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except _NO_SUCH_DEVICE:
            continue
        if (instance := _instance(handle, device)) is not None:
            found.append(instance)
    return positions_of_instances(found), tuple(found)


def positions_of_instances(instances: list[MigInstance]) -> MigPositions:
    """Return the positions that a GPU has with just these instances."""
    positions: dict[str, list[int]] = {}
    for instance in instances:
        positions.setdefault(instance.profile, []).append(instance.slices)
    return {profile: tuple(sorted(masks)) for profile, masks in positions.items()}


def device_of(inventory: Inventory, gpu_index: int, profile: str, slices: int) -> str | None:
    """Return how CUDA_VISIBLE_DEVICES names an instance; None where the GPU does not have it."""
    gpu = _gpu(inventory, gpu_index)
    if gpu is None or gpu.mig is None or slices not in gpu.mig.get(profile, ()):
        return None
    if inventory.simulated:
        return f"MIG-simulated-{gpu_index}-{profile}-{first_slice(slices)}"
    return next(
        (
            instance.uuid
            for instance in gpu.mig_instances
            if (instance.profile, instance.slices) == (profile, slices)
        ),
        None,
    )


def _instance(handle: Any, device: Any) -> MigInstance | None:
    profile = profile_of(str(pynvml.nvmlDeviceGetName(device)))
    if profile is None:
        return None
    number = pynvml.nvmlDeviceGetGpuInstanceId(device)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, number)
    where = pynvml.nvmlGpuInstanceGetInfo(instance).placement
    return MigInstance(
        profile=profile,
        slices=slice_mask(int(where.start), int(where.size)),
        uuid=str(pynvml.nvmlDeviceGetUUID(device)),
    )


def _gpu(inventory: Inventory, index: int) -> GPUInventory | None:
    return next((gpu for gpu in inventory.gpus if gpu.index == index), None)
