"""What the processes of an engine really take: memory, and time of the processor."""

import contextlib
from collections.abc import Mapping

import psutil
import pynvml


def memory_of(pid: int, environ: Mapping[str, str]) -> int:
    """Return the bytes of GPU memory that a process and what it has started take; 0 where nobody
    can say. Where GPUs are simulated it is main memory: the model lies there."""
    pids = _tree(pid)
    if environ.get("LONGSHORE_SIMULATED_GPUS"):
        return _resident(pids)
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            return sum(_on_gpu(index, pids) for index in range(pynvml.nvmlDeviceGetCount()))
        finally:
            pynvml.nvmlShutdown()
    return 0


def work_of(pid: int) -> float:
    """Return the seconds of the processor that a process and what it has started have taken."""
    total = 0.0
    for each in _tree(pid):
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(each).cpu_times()
            total += times.user + times.system
    return total


def _tree(pid: int) -> set[int]:
    found = {pid}
    with contextlib.suppress(psutil.Error):
        found |= {each.pid for each in psutil.Process(pid).children(recursive=True)}
    return found


def _resident(pids: set[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total


def _on_gpu(index: int, pids: set[int]) -> int:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return sum(each.usedGpuMemory or 0 for each in running if each.pid in pids)
