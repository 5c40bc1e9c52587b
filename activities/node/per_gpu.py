"""Starts a command once for each GPU of a node, and ends all of them when one fails.

    python per_gpu.py GRACE SIGNALS COMMAND [ARGUMENT ...]

Runs as the process of a job, from the standard library alone. GPUs and the first rank come in
CUDA_VISIBLE_DEVICES, WORLD_SIZE and LONGSHORE_FIRST_RANK. SIGNALS are the numbers of those that
the job may get, as `15,10`: the first asks it to stop. They reach every process through their
group. This one waits for all, and asks nobody again: a handler that saves would be entered twice.
But no longer than the GRACE, in which a stop is over: the same signal may ask to save and go on.
An older agent, which goes on while its package is replaced, names no SIGNALS.
Exits with the code of the process that failed first (128 + signal where a signal ended it), else
with 0.
"""

import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.05
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


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


def run(grace: float, numbers: list[int], argv: list[str]) -> int:
    """Run the command for each GPU until all have ended; return the exit code."""
    stopped: list[float] = []
    devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    indices = os.environ["LONGSHORE_GPU_INDICES"].split(",")
    first, world = int(os.environ["LONGSHORE_FIRST_RANK"]), int(os.environ["WORLD_SIZE"])
    ignored = {*_IGNORED, *numbers} - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    if numbers[0] in ignored:
        signal.signal(numbers[0], lambda *_: stopped.append(time.monotonic()))

    def heed_signals() -> None:
        """What this process ignores, the job's must not."""
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)

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
                subprocess.Popen(argv, env=os.environ | own | one_gpu, preexec_fn=heed_signals)
            )
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
            _end(started, grace)
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return _wait(started, grace, stopped)


def _wait(processes: list[subprocess.Popen[bytes]], grace: float, stopped: list[float]) -> int:
    """`stopped` has the times at which the signal came that asks to stop."""
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        stops = bool(stopped) and time.monotonic() < stopped[-1] + grace
        if failed and not (stops and None in codes):
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


def main(grace: str, signals: str, *command: str) -> int:
    if not signals.replace(",", "").isdigit():  # of an older agent: the command
        signals, command = str(int(signal.SIGTERM)), (signals, *command)
    return run(float(grace), [int(number) for number in signals.split(",")], list(command))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
