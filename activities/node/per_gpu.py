"""Starts a command once for each GPU of a node, and ends all of them when one fails.

    python per_gpu.py GRACE COMMAND [ARGUMENT ...]

Runs as the process of a job, from the standard library alone. GPUs and the first rank come in
CUDA_VISIBLE_DEVICES, WORLD_SIZE and LONGSHORE_FIRST_RANK. A signal to stop reaches every process
through their group; this one waits for them. Exits with the code of the process that failed first
(128 + signal where a signal ended it), else with 0.
"""

import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.05
NOT_FOUND, NOT_EXECUTABLE = 127, 126


def of_one(rank: int, local_rank: int, world: int, local_world: int) -> dict[str, str]:
    """Return the variables that tell one process from the others."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_SIZE": str(world),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_world),
    }


def run(grace: float, argv: list[str]) -> int:
    """Run the command for each GPU until all have ended; return the exit code."""
    devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    indices = os.environ["LONGSHORE_GPU_INDICES"].split(",")
    first, world = int(os.environ["LONGSHORE_FIRST_RANK"]), int(os.environ["WORLD_SIZE"])
    for stop in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)
    started: list[subprocess.Popen[bytes]] = []
    for local, (device, index) in enumerate(zip(devices, indices, strict=True)):
        own = of_one(first + local, local, world, len(devices))
        one_gpu = {
            "CUDA_VISIBLE_DEVICES": device,
            "LONGSHORE_GPU_INDICES": index,
            "LONGSHORE_GPU_COUNT": "1",
        }
        try:
            started.append(
                subprocess.Popen(argv, env=os.environ | own | one_gpu, preexec_fn=_heed_signals)
            )
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
            _end(started, grace)
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return _wait(started, grace)


def _wait(processes: list[subprocess.Popen[bytes]], grace: float) -> int:
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed:
            _end(processes, grace)
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if all(code == 0 for code in codes):
            return 0
        time.sleep(POLL_SECONDS)


def _end(processes: list[subprocess.Popen[bytes]], grace: float) -> None:
    """Ask what still runs to end, and kill what has not ended within the grace."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + grace
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _heed_signals() -> None:
    """What this process ignores, the job's must not."""
    for stop in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(stop, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1]), sys.argv[2:]))
