"""The jobs of the demo: shapes from a public trace, one training that really computes, one gang.

See `examples/trace/README.md` for where the shapes come from and what each column becomes.
"""

import csv
import math
import random
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from longshore.models.document import read_document
from longshore.models.errors import StackError
from longshore.models.job import CheckpointContract, JobSpec, Tier
from longshore.models.topology import Gang

POOL = "demo"
GPUS_PER_NODE, VRAM_PER_GPU = 8, 80.0
NODE_CPUS, NODE_RAM = 128, 824
"""Cores and GB of a node of the trace's model G3 (128,000 milli-cores, 786,432 MiB)."""
NODE_FLAGS = (
    "--simulate", f"{GPUS_PER_NODE}xH100-{VRAM_PER_GPU:g}GB", "--pool", POOL,
    "--cpus", str(NODE_CPUS), "--ram", f"{NODE_RAM}GB",
    "--label", "region=demo", "--label", "cluster=demo", "--label", "fabric.domain=switch-1",
)  # fmt: skip

SHORTEST, LONGEST = 1.0, 12.0
"""Seconds that jobs of the demo run, at least and at most."""
TRACE_SECONDS = 12_902_960
"""Length of the trace: no pod was there for longer."""
PRIORITIES = {"Guaranteed": 8, "LS": 7, "Burstable": 5, "BE": 3}

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

Row = Mapping[str, str]


def demo_jobs(count: int, nodes: int, seed: int, checkpoints: Path) -> tuple[JobSpec, ...]:
    """Return `count` jobs, at least 2: training, gang, and the others with shapes of the trace.

    The same arguments give the same jobs. `checkpoints` is the folder where the training saves.
    Raises StackError when the examples are not there.
    """
    rows = list(sample())
    random.Random(seed).shuffle(rows)
    shaped = tuple(job_of(rows[i % len(rows)], i // len(rows)) for i in range(count - 2))
    return (training(checkpoints), gang(nodes), *shaped)


def sample() -> tuple[Row, ...]:
    """Return the rows of the trace's sample. Raises StackError when it is not there."""
    path = EXAMPLES / "trace" / "sample.csv"
    try:
        with path.open(newline="") as file:
            return tuple(csv.DictReader(file))
    except FileNotFoundError:
        raise StackError(
            f"{path} is not there: the demo runs in a checkout of Longshore, with its examples."
        ) from None


def job_of(row: Row, repeat: int = 0) -> JobSpec:
    """Return the job with the shape of one pod; `repeat` tells jobs of the same pod apart."""
    seconds = run_seconds(float(row["deletion_time"]) - float(row["scheduled_time"]))
    return JobSpec(
        name=row["name"] + (f"-{repeat + 1}" if repeat else ""),
        tenant="demo",
        pool=POOL,
        tier=Tier.FAST,
        priority=PRIORITIES[row["qos"]],
        gpus=int(row["num_gpu"]),
        vram_per_gpu=round(int(row["gpu_milli"]) * VRAM_PER_GPU / 1000, 3),
        cpus=int(row["cpu_milli"]) / 1000,
        ram=round(int(row["memory_mib"]) * 2**20 / 1e9, 3),
        expected_duration=timedelta(seconds=seconds),
        # -I and -S: without looking for installed packages Python starts in 10 ms.
        command=(sys.executable, "-I", "-S", str(EXAMPLES / "load.py"), "--seconds", f"{seconds}"),
        stop_grace=timedelta(seconds=3),
    )


def run_seconds(lived: float) -> float:
    """Return how long the job runs for a pod that was there for `lived` seconds.

    Longer pods become longer jobs: the logarithm maps 0 to `SHORTEST`, the whole trace to
    `LONGEST`.
    """
    share = math.log1p(min(max(lived, 0.0), TRACE_SECONDS)) / math.log1p(TRACE_SECONDS)
    return round(SHORTEST + (LONGEST - SHORTEST) * share, 1)


def gang(nodes: int) -> JobSpec:
    """Return the job of `examples/meet.yaml`, in the demo's pool and one fabric domain.

    It takes two whole nodes where the training leaves so many.
    """
    spec = read_document(EXAMPLES / "meet.yaml", JobSpec)
    free = GPUS_PER_NODE * nodes - 1
    return spec.model_copy(
        update={
            "tenant": "demo",
            "pool": POOL,
            "gpus": min(2 * GPUS_PER_NODE, free),
            "gang": Gang(allow_cross_group_spread=False),
            "command": (sys.executable, "-I", "-S", str(EXAMPLES / "meet.py"), *spec.argv[2:]),
            "workdir": None,
        }
    )


def training(checkpoints: Path) -> JobSpec:
    """Return the job of `examples/train.yaml`, in the demo's pool.

    Its checkpoints go where every node of the demo finds them: it goes on after a loss.
    """
    spec = read_document(EXAMPLES / "train.yaml", JobSpec)
    contract = spec.checkpoint or CheckpointContract(folder=".")
    return spec.model_copy(
        update={
            "tenant": "demo",
            "pool": POOL,
            "command": (sys.executable, str(EXAMPLES / "train.py"), *spec.argv[2:]),
            "workdir": None,
            "checkpoint": contract.model_copy(update={"folder": str(checkpoints), "store": False}),
        }
    )
