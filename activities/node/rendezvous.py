"""How the processes of a gang find each other: variables as torchrun and Open MPI name them.

With a process on each node the world is the nodes; with one for each GPU it is the GPUs, and
`activities.node.per_gpu` starts them. The meeting point is the node of rank 0, at a port that
follows from job and attempt: nobody has to be asked for it.
"""

import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from longshore.activities.node import per_gpu
from longshore.activities.node.system import signal_number
from longshore.models.job import JobSpec
from longshore.models.placement import Placement, Rank
from longshore.scheduling.ranks import fewest_nodes, most_nodes

MAX_RESTARTS = 1000
"""Of torchrun's workers: it counts a node that leaves as one."""
FIRST_PORT, PORTS = 20_000, 10_000
"""Below the range from which systems give ports to clients."""


def rendezvous(placement: Placement, spec: JobSpec) -> dict[str, str]:
    """Return the variables of a process of a gang; none for a job that cannot span nodes.

    Those of single GPUs are set by `activities.node.per_gpu`, from `LONGSHORE_FIRST_RANK` on.
    """
    if spec.gang is None:
        return {}
    ranks = placement.ranks or (_alone(placement),)
    here = ranks[placement.place]
    per_node = [len(rank.gpu_indices) for rank in ranks]
    if spec.gang.per_gpu:
        world, local_world = sum(per_node), len(here.gpu_indices)
        first = sum(per_node[: placement.place])
    else:
        world, local_world, first = len(ranks), 1, placement.place
    address, port = ranks[0].address or ranks[0].node_id, str(port_of(placement))
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "NNODES": str(len(ranks)),
        "NODE_RANK": str(here.rank),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "PET_NNODES": str(len(ranks)),
        "PET_NODE_RANK": str(here.rank),
        "PET_NPROC_PER_NODE": str(len(here.gpu_indices)),
        "LONGSHORE_NODES": ",".join(rank.node_id for rank in ranks),
        "LONGSHORE_ADDRESSES": ",".join(rank.address or rank.node_id for rank in ranks),
        "LONGSHORE_GPUS_PER_NODE": ",".join(map(str, per_node)),
        "LONGSHORE_FIRST_RANK": str(first),
        **per_gpu.of_one(first, 0, world, local_world),
        **_elastic(placement, spec, per_node, f"{address}:{port}"),
    }


def _elastic(
    placement: Placement, spec: JobSpec, per_node: Sequence[int], meeting: str
) -> dict[str, str]:
    """Return what makes a bare torchrun one whose nodes may leave and join; nothing for other
    jobs.

    The agent on the node of rank 0 keeps the store of the rendezvous, by a variable: torchrun
    guesses by the name of the host, and of several nodes on one machine takes the first.
    """
    sizes = spec.malleable
    if sizes is None or not sizes.in_place:
        return {}
    return {
        "LONGSHORE_RANKS": ",".join(str(rank.rank) for rank in placement.ranks) or "0",
        "PET_NNODES": f"{fewest_nodes(per_node, sizes)}:{most_nodes(per_node, sizes)}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": meeting,
        "PET_RDZV_ID": f"{placement.job_id}-{placement.attempt}",
        "PET_RDZV_CONF": f"is_host={int(placement.rank == 0)}",
        "PET_MAX_RESTARTS": str(MAX_RESTARTS),
        # Newer PyTorch (seen with 2.13) shares the store of the rendezvous with the workers, and
        # tells its address in the first world alone: who joins later waits for it, and fails.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def command(argv: Sequence[str], spec: JobSpec) -> tuple[str, ...]:
    """Return what to start on a node: the job's command, or what starts it for each GPU."""
    if spec.gang is None or not spec.gang.per_gpu:
        return tuple(argv)
    grace = str(spec.grace.total_seconds())
    signals = [spec.stop_signal]
    if spec.checkpoint and spec.checkpoint.save_signal:
        signals.append(spec.checkpoint.save_signal)
    numbers = ",".join(str(int(signal_number(name))) for name in signals)
    return (sys.executable, "-I", "-S", str(Path(per_gpu.__file__)), grace, numbers, *argv)


def port_of(placement: Placement) -> int:
    name = f"{placement.job_id}/{placement.attempt}"
    return FIRST_PORT + zlib.crc32(name.encode()) % PORTS


def _alone(placement: Placement) -> Rank:
    return Rank(
        rank=0, node_id=placement.node_id, epoch=placement.epoch,
        gpu_indices=placement.gpu_indices, address="127.0.0.1",
    )  # fmt: skip
