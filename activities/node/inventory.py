"""What a machine has: GPUs from NVML (or as simulated by flags), processors and memory."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import psutil
import pynvml
from pydantic import Field, ValidationError

from longshore.activities.node.gpu_links import Conformance, read_conformance, read_topology
from longshore.activities.node.mig import read_mig
from longshore.models.base import Frozen
from longshore.models.errors import SpecError, UnavailableError
from longshore.models.mig import listed_models, positions_of
from longshore.models.node import GPUInventory, Inventory
from longshore.models.problems import describe_all
from longshore.models.topology import MOST_GPUS, NodeTopology
from longshore.models.units import GB, format_gb
from longshore.models.visible import shown

RUNTIMES = ("docker", "podman")
_SIMULATED = re.compile(
    r"(\d{1,4})x([A-Za-z0-9]+)-(\d+(?:\.\d+)?\s*[KMGT]i?B)", re.ASCII | re.IGNORECASE
)
_MODEL = re.compile(r"(?=.*\d)(?=.*[A-Z])[A-Z0-9]+")
_CGROUP_MEMORY = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class SimulatedGPUs(Frozen):
    """GPUs that are only said to be there, such as ``8xH100-80GB``.

    A node of them has the cores and the memory that such machines have: 8 and 64 GB a GPU.
    """

    count: int = Field(ge=1, le=MOST_GPUS)
    gpu_type: str = Field(max_length=100)
    vram: GB
    """Each."""
    mig: tuple[int, ...] = ()
    """Indices of those in MIG mode."""
    power: float = 0.0
    """Watts that each may draw; 0 where nobody said."""

    @property
    def cpus(self) -> float:
        return 8.0 * self.count

    @property
    def ram(self) -> float:
        return 64.0 * self.count


class _Found(NamedTuple):
    """GPUs, and what the driver tells of their links and of the machine."""

    gpus: tuple[GPUInventory, ...]
    topology: NodeTopology | None = None
    conformance: Conformance = Conformance()


def parse_simulated(text: str, mig: str | None = None, power: float = 0.0) -> SimulatedGPUs:
    """Return the GPUs of ``8xH100-80GB`` or ``4xA100-40GB``. Raises SpecError for another form.

    `mig` names those in MIG mode, ``0,1``; `power` is what each may draw in watts.
    """
    match = _SIMULATED.fullmatch(text.strip())
    if not match or int(match.group(1)) == 0:
        raise SpecError("--simulate", (f"--simulate: expected 8xH100-80GB, not {shown(text)}",))
    count, gpu_type, vram = match.groups()
    try:
        gpus = SimulatedGPUs.model_validate(
            {"count": int(count), "gpu_type": gpu_type, "vram": vram, "power": power}
        )
    except ValidationError as error:
        problems = tuple(f"--simulate: {problem}" for problem in describe_all(error))
        raise SpecError("--simulate", problems) from None
    return gpus.model_copy(update={"mig": _indices(mig, gpus)}) if mig else gpus


def take_inventory(
    simulated: SimulatedGPUs | None,
    cpus: float | None = None,
    ram: float | None = None,
    storage_bandwidth: float | None = None,
    power: float | None = None,
) -> Inventory:
    """Return what this machine has; `cpus` (cores) and `ram` (GB) replace what was found.

    With simulated GPUs cores and memory are simulated too, in the proportion of such machines.
    Storage bandwidth (GB/s) and the power budget (watts) no machine tells: they are what they are
    given as, not limited when left out.

    Raises UnavailableError when there is no GPU and none is simulated.
    """
    found = _Found(_simulated(simulated)) if simulated else _nvml_gpus()
    gpus = found.gpus
    return Inventory(
        gpu_type=simulated.gpu_type if simulated else short_type(gpus[0].model),
        gpus=gpus,
        cpus=cpus or (simulated.cpus if simulated else _cpus()),
        ram=ram or (simulated.ram if simulated else round(_ram_bytes() / 1e9, 3)),
        storage_bandwidth=storage_bandwidth,
        power=power,
        simulated=simulated is not None,
        container_runtime=find_runtime(),
        hostname=socket.gethostname(),
        agent_version=_version(),
        topology=found.topology,
        conformance=found.conformance.fingerprint,
        firmware=found.conformance.firmware,
    )


def short_type(model: str) -> str:
    """Return how people call a model: ``NVIDIA H100 80GB HBM3`` is ``H100``."""
    words = [
        w for w in re.split(r"[\s-]+", model.upper()) if w not in ("NVIDIA", "TESLA", "GEFORCE")
    ]
    if words[:1] == ["RTX"] and len(words) > 1 and words[1].isdigit():
        return f"RTX{words[1]}"
    return next((word for word in words if _MODEL.fullmatch(word)), model)


def find_runtime() -> str | None:
    """Return the first container runtime that works here, not only is installed."""
    for runtime in RUNTIMES:
        if shutil.which(runtime) and _answers(runtime):
            return runtime
    return None


def _indices(text: str, gpus: SimulatedGPUs) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if any(not (word.isascii() and word.isdecimal()) or int(word) >= gpus.count for word in words):
        problem = (
            f"--mig: expected indices of the {gpus.count} GPUs, such as 0,1, not {shown(text)}"
        )
        raise SpecError("--mig", (problem,))
    if positions_of(gpus.gpu_type, gpus.vram) is None:
        known = ", ".join(listed_models())
        problem = f"--mig: {gpus.gpu_type}-{format_gb(gpus.vram)} is none of {known}"
        raise SpecError("--mig", (problem,))
    return tuple(sorted({int(word) for word in words}))


def _simulated(simulated: SimulatedGPUs) -> tuple[GPUInventory, ...]:
    positions = positions_of(simulated.gpu_type, simulated.vram)
    return tuple(
        GPUInventory(
            index=i,
            model=f"simulated {simulated.gpu_type}",
            vram=simulated.vram,
            mig=positions if i in simulated.mig else None,
            power=simulated.power,
        )
        for i in range(simulated.count)
    )


def _nvml_gpus() -> _Found:
    try:
        pynvml.nvmlInit()
        gpus = tuple(_nvml_gpu(i) for i in range(pynvml.nvmlDeviceGetCount()))
        found = _Found(gpus, read_topology(len(gpus)), read_conformance(len(gpus)))
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise UnavailableError(_no_gpu(str(error))) from None
    if not gpus:
        raise UnavailableError(_no_gpu("the NVIDIA driver sees none"))
    return found


def _nvml_gpu(index: int) -> GPUInventory:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    positions, instances = read_mig(handle)
    return GPUInventory(
        index=index,
        model=str(pynvml.nvmlDeviceGetName(handle)),
        vram=round(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) / 1e9, 3),
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        mig=positions,
        mig_instances=instances,
        power=_power_limit(handle),
    )


def _power_limit(handle: object) -> float:
    """Return the watts that the driver lets the GPU draw; 0 where it does not say."""
    try:
        return int(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000
    except pynvml.NVMLError:  # some GPUs have no limit that can be read
        return 0.0


def _no_gpu(why: str) -> str:
    return (
        f"this machine has no GPU that can be used ({why}). Install the NVIDIA driver, or try "
        "Longshore without a GPU: --simulate 8xH100-80GB."
    )


def _cpus() -> float:
    with contextlib.suppress(AttributeError):  # only Linux tells which ones we may use
        return float(len(os.sched_getaffinity(0)))
    return float(os.cpu_count() or 1)


def _ram_bytes() -> int:
    total = psutil.virtual_memory().total
    for path in _CGROUP_MEMORY:  # in a container the limit counts, not the machine
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(path.read_text()))
    return total


def _answers(runtime: str) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = [runtime, "ps", "--quiet"]  # `info` asks more, and takes thirty times as long
        return (
            subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
        )
    return False


def _version() -> str:
    with contextlib.suppress(PackageNotFoundError):
        return version("longshore")
    return ""
