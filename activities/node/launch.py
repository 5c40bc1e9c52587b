"""From a placement to a command line: environment, folders, and the container around it."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from longshore.activities.node.code_folder import WORK
from longshore.activities.node.data_sets import Sets
from longshore.activities.node.engines import engine_argv, engine_env
from longshore.activities.node.given_env import given_env
from longshore.activities.node.job_folders import (
    LaunchError,
    checkpoint_folder,
    making_checkpoints,
    seen,
    work_folder,
)
from longshore.activities.node.job_path import with_environment, without_own_environment
from longshore.activities.node.mig import device_of
from longshore.activities.node.rendezvous import command, rendezvous
from longshore.activities.node.wait_script import write_wait_script
from longshore.models.elements import Element, Slot
from longshore.models.job import JobSpec
from longshore.models.node import Inventory, NodeIdentity
from longshore.models.node_messages import RunProcessRequest
from longshore.models.output import VARIABLE
from longshore.models.placement import Placement, PlacementKey
from longshore.models.resize import SizeNotice

KEPT_ENV = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "CUDA_HOME",
]
"""What a process inherits from the agent's environment, besides LC_*; nothing else leaks."""

LOADING_FOLDER = "loading"
"""Name in the work folder of the agent: locks of the engines that load."""
LOOPBACK = "127.0.0.1"
IN_CONTAINER = "/longshore"
"""Where a container sees the folder for its progress file."""
OUTPUT = "output"
"""Name in that folder: what the job puts out for others of its DAG."""
SAVED, SAVE_REQUEST = "saved", "save-request"
"""Names in that folder: where the job says that it has saved, and what asks it to."""
RESIZED = "resized"
"""Name in that folder: what tells the job of its size, once that has changed in place."""
CONTAINER_WORKDIR = "/longshore/work"
AGENT_MARK = "LONGSHORE_AGENT_ID"
"""In the environment of every process of a job: a restarted agent finds its orphans by it."""
_MARKS = (AGENT_MARK, "LONGSHORE_JOB_ID", "LONGSHORE_ATTEMPT")
_LONGEST_LINE = 60_000
"""Bytes of a line that docker and podman read from a file of variables."""


@dataclass(frozen=True)
class Launch:
    """What is to be executed."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    container: str | None = None
    """Name of the container, where there is one."""
    runtime: str | None = None


def prepare(
    request: RunProcessRequest,
    identity: NodeIdentity,
    inventory: Inventory,
    run_folder: Path,
    job_folder: Path,
    resume_variables: Mapping[str, str] = MappingProxyType({}),
    image_folders: Sequence[Path] = (),
    environment: Path | None = None,
    data: Sets | None = None,
    engine_address: str = LOOPBACK,
) -> Launch:
    """Make the folders that the job needs and return what to execute.

    `job_folder` is the job's own on this node, the same for every attempt; `resume_variables` the
    variables that say what it goes on from; `image_folders` what a job in an image may see
    besides; `environment` where the Python environment of the job is, `data` its data sets;
    `engine_address` where an engine listens.
    Raises LaunchError when the node cannot run it, OSError when a folder cannot be made for want
    of a disk that can be written.
    """
    spec = request.spec
    cwd = work_folder(spec, job_folder)
    checkpoints = checkpoint_folder(request, job_folder)
    if checkpoints:
        with making_checkpoints(request, checkpoints, job_folder):
            checkpoints.mkdir(parents=True, exist_ok=True)
    own = _own_env(request, identity, inventory, run_folder / "public", checkpoints)
    own |= resume_variables
    if spec.code:
        own["LONGSHORE_CODE_DIR"] = str(job_folder / WORK)
    if data:
        own |= data.variables
        write_wait_script(run_folder / "public" / "bin")
    base, given = clean_env(os.environ), given_env(spec.env)
    if spec.engine:
        public = run_folder / "public"
        loading = job_folder.parent.parent / LOADING_FOLDER
        own |= engine_env(spec.engine, request.placement, inventory, engine_address, loading)
        return Launch(engine_argv(public), base | given | own, cwd)
    if not spec.image:
        env = with_environment(base | given | own, environment)
        if data:
            programs = str(run_folder / "public" / "bin")
            env["PATH"] = os.pathsep.join([programs, env.get("PATH", os.defpath)])
        return Launch(command(spec.argv, spec), env, cwd)
    if spec.gang and spec.gang.per_gpu:
        raise LaunchError(
            126,
            "a process for each GPU cannot be started inside an image: leave out gang.processes "
            "and start them there, with torchrun for example",
        )
    runtime = inventory.container_runtime
    if not runtime:
        raise LaunchError(
            127,
            f"this node cannot run the image {spec.image}: it has neither docker nor podman. "
            "Install one and start the agent again.",
        )
    root = job_folder / WORK if spec.code else cwd
    inside, mounts = _inside(own, root, checkpoints, [job_folder, *image_folders])
    if data:
        variables, of_data = data.inside()
        inside, mounts = inside | variables, [*mounts, *of_data]
    name = container_name(request.placement.key, identity.agent_id)
    argv = [runtime, "run", "--rm", "--init", "--name", name]
    argv += ["--label", f"longshore.agent={identity.agent_id}"]
    argv += ["--workdir", str(Path(CONTAINER_WORKDIR, cwd.relative_to(root)))]
    argv += ["--cap-drop", "MKNOD"]  # a device that it makes in a folder would stay on the node
    # Its output comes here. Kept by the runtime as well, it would be twice on the node's disk.
    argv += ["--log-driver", "none"]
    for mount in [f"{run_folder / 'public'}:{IN_CONTAINER}", *mounts]:
        argv += ["--volume", mount]
    if not inventory.simulated:
        argv += _gpu_flags(runtime, own["CUDA_VISIBLE_DEVICES"])
    argv += _env_flags(run_folder / "environment", given | inside)
    # Nothing of the job comes before the dashes: what is behind them is no option.
    argv += ["--", spec.image, *spec.argv]
    client = base | {name: own[name] for name in _MARKS}
    return Launch(tuple(argv), client, cwd, name, runtime)


def clean_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the agent's environment that is no secret of the agent, and without the
    Python environment that the agent runs in."""
    kept = {k: v for k, v in environ.items() if k in KEPT_ENV or k.startswith("LC_")}
    if "PATH" in kept:
        kept["PATH"] = without_own_environment(kept["PATH"], environ)
    return kept


def removal(runtime: str, *names: str) -> tuple[str, ...]:
    """Return the command that kills containers and removes them."""
    # Podman would first ask each to end, and wait for ten seconds.
    at_once = ("--time", "0") if runtime == "podman" else ()
    return (runtime, "rm", "--force", *at_once, *names)


def container_name(key: PlacementKey, agent_id: str) -> str:
    """Return a name that no other agent of this machine, of whatever installation, gives."""
    return f"longshore-{key.job_id}-{key.attempt}-{agent_id[:8]}"


def _own_env(
    request: RunProcessRequest,
    identity: NodeIdentity,
    inventory: Inventory,
    public: Path,
    checkpoints: Path | None,
) -> dict[str, str]:
    placement, spec = request.placement, request.spec
    indices = ",".join(map(str, placement.gpu_indices))
    env = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": _visible(placement, spec, inventory),
        AGENT_MARK: identity.agent_id,
        "LONGSHORE_JOB_ID": placement.job_id,
        "LONGSHORE_JOB_NAME": request.job_name,
        "LONGSHORE_ATTEMPT": str(placement.attempt),
        "LONGSHORE_NODE_ID": identity.node_id,
        "LONGSHORE_GPU_INDICES": indices,
        "LONGSHORE_GPU_COUNT": str(len(placement.gpu_indices)),
        "LONGSHORE_TENANT": spec.tenant,
        "LONGSHORE_POOL": spec.pool,
        "LONGSHORE_PROGRESS_FILE": str(public / "progress"),
        VARIABLE: str(public / OUTPUT),
        **rendezvous(placement, spec),
        **_part_env(spec, len(placement.gpu_indices)),
        **_size_env(request, public),
    }
    if checkpoints:
        env["LONGSHORE_CHECKPOINT_DIR"] = str(checkpoints)
        env["LONGSHORE_SAVED"] = str(public / SAVED)
        if spec.checkpoint and spec.checkpoint.save_file:
            env["LONGSHORE_SAVE_REQUEST"] = str(public / SAVE_REQUEST)
    if expires_at := placement.node_expires_at or identity.expires_at:
        env["LONGSHORE_NODE_EXPIRES_AT"] = expires_at.isoformat()
    if inventory.simulated:
        env["LONGSHORE_SIMULATED_GPUS"] = "1"
    return env


def element_env(slot: Slot, element: Element) -> dict[str, str]:
    """Return what one element has in its environment beside what all of its array have."""
    first, last, number = str(slot.first), str(slot.last), str(slot.elements)
    return {
        **element.variables,
        "LONGSHORE_ARRAY_ID": slot.array_id,
        "LONGSHORE_ARRAY_INDEX": str(element.index),
        "LONGSHORE_ARRAY_COUNT": number,
        "LONGSHORE_ARRAY_MIN": first,
        "LONGSHORE_ARRAY_MAX": last,
        "LONGSHORE_ELEMENT_ATTEMPT": str(element.attempt),
        "SLURM_ARRAY_JOB_ID": slot.array_id,
        "SLURM_ARRAY_TASK_ID": str(element.index),
        "SLURM_ARRAY_TASK_COUNT": number,
        "SLURM_ARRAY_TASK_MIN": first,
        "SLURM_ARRAY_TASK_MAX": last,
    }


def _size_env(request: RunProcessRequest, public: Path) -> dict[str, str]:
    """Return what tells a process of a malleable job its size, and the one before."""
    sizes, placement = request.spec.malleable, request.placement
    if sizes is None:
        return {}
    ranks = placement.ranks or (placement,)
    env = {
        "LONGSHORE_GPUS": str(sum(len(rank.gpu_indices) for rank in ranks)),
        "LONGSHORE_GPUS_MIN": str(sizes.min),
        "LONGSHORE_GPUS_MAX": str(sizes.max),
    }
    if sizes.in_place:
        env["LONGSHORE_RESIZE_FILE"] = str(public / RESIZED)
    before = request.gpus_before
    return env if before is None else {**env, "LONGSHORE_GPUS_BEFORE": str(before)}


def told_of_size(notice: SizeNotice) -> str:
    """Return what the file says of the new size: one JSON object, on one line."""
    ranks = [
        {
            "rank": rank.rank, "node": rank.node_id, "address": rank.address or rank.node_id,
            "gpus": len(rank.gpu_indices),
        }
        for rank in notice.ranks
    ]  # fmt: skip
    told = {"gpus_before": notice.gpus_before, "gpus": notice.gpus, "ranks": ranks,
            "reason": notice.reason}  # fmt: skip
    return json.dumps(told) + "\n"


def _part_env(spec: JobSpec, gpus: int) -> dict[str, str]:
    """Return what tells a process which part of each of its GPUs is its own; nothing for whole
    GPUs.

    Those of MPS hold it to that where the node runs CUDA's MPS, and do nothing elsewhere.
    """
    if spec.mig is not None:
        return {"LONGSHORE_MIG_PROFILE": spec.mig}
    if spec.milli == 1000:
        return {}
    mebibytes = int(spec.vram_per_gpu * 1e9 / 2**20)
    # MPS counts the devices that the process sees, from 0.
    limits = ",".join(f"{device}={mebibytes}M" for device in range(gpus))
    part = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits,
        "LONGSHORE_GPU_MILLI": str(spec.milli),
        "LONGSHORE_GPU_VRAM": f"{spec.vram_per_gpu:g}",
    }
    if spec.engine is None:  # which asks for memory, and shares the processors with all others
        part["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(spec.milli // 10, 1))
    return part


def _visible(placement: Placement, spec: JobSpec, inventory: Inventory) -> str:
    """GPUs by UUID, which means the same whatever else is hidden; by index where simulated.

    A MIG instance by its own UUID. Raises LaunchError where that is not there any more.
    """
    indices = placement.gpu_indices
    if spec.mig is not None:
        device = device_of(inventory, indices[0], spec.mig, placement.slices)
        if device is None:
            raise LaunchError(
                126,
                f"GPU {indices[0]} has no MIG instance {spec.mig} where the job was placed: were "
                "its instances changed? Start the agent again.",
            )
        return device
    uuids = {gpu.index: gpu.uuid for gpu in inventory.gpus if gpu.uuid}
    if inventory.simulated:
        uuids = {}
    return ",".join(uuids.get(index, str(index)) for index in indices)


def _inside(
    own: Mapping[str, str], cwd: Path, checkpoints: Path | None, allowed: Sequence[Path]
) -> tuple[dict[str, str], list[str]]:
    """Return Longshore's variables with the paths of a container, and what is mounted there.

    Raises LaunchError where a container may not see a folder.
    """
    inside = dict(own) | {
        "LONGSHORE_PROGRESS_FILE": f"{IN_CONTAINER}/progress",
        VARIABLE: f"{IN_CONTAINER}/{OUTPUT}",
    }
    for variable, file in (
        ("LONGSHORE_SAVED", SAVED), ("LONGSHORE_SAVE_REQUEST", SAVE_REQUEST),
        ("LONGSHORE_RESIZE_FILE", RESIZED),
    ):  # fmt: skip
        if variable in own:
            inside[variable] = f"{IN_CONTAINER}/{file}"
    if "LONGSHORE_CODE_DIR" in own:
        inside["LONGSHORE_CODE_DIR"] = CONTAINER_WORKDIR
    mounts = [f"{seen(cwd, allowed)}:{CONTAINER_WORKDIR}"]
    if checkpoints and checkpoints.is_relative_to(cwd):
        below = checkpoints.relative_to(cwd)
        inside["LONGSHORE_CHECKPOINT_DIR"] = f"{CONTAINER_WORKDIR}/{below}"
    elif checkpoints:
        mounts.append(f"{seen(checkpoints, allowed)}:{checkpoints}")
    return inside, mounts


def _env_flags(file: Path, variables: Mapping[str, str]) -> list[str]:
    """Store what a container gets as its environment; return the options that name it.

    The client has none of it: a job could tell it by a variable, or the loader of its libraries,
    to run something on the node. Its arguments, which everybody on the node sees, have only what
    does not fit on a line of the file.
    """
    lines, flags = list[str](), ["--env-file", str(file)]
    for variable, value in variables.items():
        line = f"{variable}={value}"
        if "\n" in value or "\r" in value or len(line.encode()) > _LONGEST_LINE:
            flags += ["--env", line]
        else:
            lines.append(f"{line}\n")
    flags_of_file = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(file, flags_of_file, 0o600), "w", encoding="utf-8") as opened:
        opened.writelines(lines)
    return flags


def _gpu_flags(runtime: str, devices: str) -> list[str]:
    if runtime == "podman":
        flags: list[str] = []
        for device in devices.split(","):
            flags += ["--device", f"nvidia.com/gpu={device}"]
        return flags
    return ["--gpus", f'"device={devices}"']
