"""What an environment costs a job that finds it built, beside one that builds it.

The packages are wheels made on the spot, and uv has them in its cache before: what is measured
is laying them out, compiling them and closing them to writing, not a network.

    python -m benchmarks.environments [--packages 40] [--modules 50] [--jobs 10] [--json]
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.logstore import LogStore
from longshore.activities.node.environment_store import EnvironmentStore
from longshore.activities.node.fence import Fence
from longshore.activities.node.inventory import SimulatedGPUs, take_inventory
from longshore.activities.node.processes import Processes
from longshore.activities.node.system import boot_clock
from longshore.models.job import JobSpec
from longshore.models.node import NodeIdentity
from longshore.models.node_messages import RunProcessRequest
from longshore.models.placement import Placement

REPEATS = 7


class Node:
    """The processes of a node, without a server."""

    def __init__(self, folder: Path) -> None:
        fence = Fence()
        fence.open(1, 3600.0, boot_clock())
        identity = NodeIdentity(node_id="node", agent_id=uuid.uuid4().hex, boot_id="boot")
        inventory = take_inventory(SimulatedGPUs(count=1, gpu_type="H100", vram=80))
        self.folder = folder
        self.processes = Processes(
            folder, identity, inventory, LogStore((folder / "logs").as_uri()), fence,
            checkpoints=CheckpointStore((folder / "checkpoints").as_uri()),
        )  # fmt: skip

    async def seconds(self, environment: list[str] | None) -> float:
        """Run a job that does nothing; return how long it took, from its order to its report."""
        placement = Placement(
            job_id=f"job-{uuid.uuid4().hex[:8]}", attempt=1, node_id="node", epoch=1,
            gpu_indices=(0,), cycle_id="cycle", placed_at=datetime.now(UTC),
        )  # fmt: skip
        spec = JobSpec.model_validate(
            {"name": "job", "command": ["true"], "environment": environment}
        )
        began = time.perf_counter()
        run = self.processes.start(
            RunProcessRequest(placement=placement, spec=spec, job_name="job")
        )
        report = await run.done
        if report.failure is not None:
            sys.exit(f"a job failed: {report.message}")
        return time.perf_counter() - began

    async def seconds_at_rest(self, environment: list[str]) -> float:
        """Do the same once nobody looks any more at the environment of the job before."""
        store = self.folder / "cache" / "environments"
        deadline = time.perf_counter() + 60
        while not any(store.glob("*.same")) and time.perf_counter() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return await self.seconds(environment)

    def built(self) -> int:
        """Return how many environments were built."""
        store = EnvironmentStore(self.folder / "cache" / "environments")
        return len([path for path in store.folder.iterdir() if path.is_dir()])


async def measure(folder: Path, packages: int, modules: int, jobs: int) -> dict[str, object]:
    index = folder / "wheels"
    index.mkdir()
    names = [write_wheel(index, number, modules) for number in range(packages)]
    os.environ.update(UV_NO_INDEX="1", UV_FIND_LINKS=str(index), PIP_CONFIG_FILE=os.devnull)
    os.environ.pop("PIP_FIND_LINKS", None)
    node = Node(folder / "node")
    try:
        await node.seconds(names)  # fills uv's cache
        plain = [await node.seconds(None) for _ in range(REPEATS)]
        built = [await node.seconds([*names[:-1], names[-1] + " " * n]) for n in range(1, 4)]
        reused = [await node.seconds_at_rest(names) for _ in range(REPEATS)]
        before = node.built()
        began = time.perf_counter()
        await asyncio.gather(*(node.seconds([*names, names[0]]) for _ in range(jobs)))
        at_once = time.perf_counter() - began
        builds = node.built() - before
    finally:
        node.processes.close()
    a_plain, a_built, a_reused = map(statistics.median, (plain, built, reused))
    return {
        "packages": packages, "files": packages * modules, "plain_s": a_plain,
        "built_s": a_built, "reused_s": a_reused,
        "built_over_reused": (a_built - a_plain) / max(a_reused - a_plain, 1e-3),
        "reused_over_plain": a_reused / a_plain,
        "jobs_at_once": jobs, "builds_of_them": builds, "at_once_s": at_once,
    }  # fmt: skip


def write_wheel(folder: Path, number: int, modules: int) -> str:
    name = f"package_{number}"
    info = f"{name}-1.0.dist-info"
    code = "".join(f"def f{n}(x):\n    return x + {n}\n" for n in range(40))
    files = {f"{name}/m{each}.py": code for each in range(modules)}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description="What an environment costs a job")
    parser.add_argument("--packages", type=int, default=40)
    parser.add_argument("--modules", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), options.packages, options.modules, options.jobs))
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['packages']} packages, {found['files']} files; median seconds of a job")
    print(f"  without an environment  {found['plain_s']:.3f}")
    print(f"  with one that is built  {found['built_s']:.3f}")
    print(f"  with one that is there  {found['reused_s']:.3f}")
    print(f"reused is {found['built_over_reused']:.0f} times faster than built, and takes "
          f"{found['reused_over_plain']:.2f} of a plain job")  # fmt: skip
    print(f"{found['jobs_at_once']} jobs at once: {found['builds_of_them']} build, "
          f"{found['at_once_s']:.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()
