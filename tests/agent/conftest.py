"""A node whose processes are real, first without an agent around them, then with one."""

import functools
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.activities.checkpoints.store import CheckpointStore
from longshore.activities.database import Database
from longshore.activities.logstore import LogStore
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.environments import Environments
from longshore.activities.node.fence import Fence
from longshore.activities.node.inventory import SimulatedGPUs, take_inventory
from longshore.activities.node.outcome import AGENT_STOPPED
from longshore.activities.node.processes import Processes
from longshore.activities.node.removal import remove_what_can_be
from longshore.activities.node.run import Run
from longshore.activities.node.system import boot_clock
from longshore.client.api import Longshore
from longshore.models.elements import Batch, Element, Slot
from longshore.models.job import JobSpec
from longshore.models.node import Inventory, NodeIdentity
from longshore.models.node_messages import ProcessReport, RunProcessRequest, StopProcessRequest
from longshore.models.placement import Placement, PlacementKey
from longshore.models.settings import Settings
from tests.support.agent import AgentProcess
from tests.support.podman import IMAGE, own_podman
from tests.support.waiting import eventually


@functools.cache
def an_inventory() -> Inventory:
    """Return this machine with four simulated GPUs."""
    return take_inventory(SimulatedGPUs(count=4, gpu_type="H100", vram=80))


SECRET = "0.5 hunter2"
"""The token of a node; a line of progress too, so that whoever reads it as one has it."""
MakeBox = Callable[..., "LocalNode"]
"""Takes the folder of a node, and the other arguments of LocalNode."""


class LocalNode:
    """The processes of one node, and short ways to run something there."""

    def __init__(
        self,
        folder: Path,
        logs: str | None = None,
        fence_after: float = 60.0,
        checkpoints: str = "",
        runtime: str | None = None,
        image: str | None = None,
        image_folders: Sequence[Path] = (),
        artifacts: ArtifactCache | None = None,
        environments: Environments | None = None,
        engine_fence: float = 60.0,
    ) -> None:
        """`runtime` runs images, without one what this machine has; `image` is that of jobs that
        name none."""
        self.folder = folder
        self.identity = NodeIdentity(
            node_id="box", agent_id=uuid.uuid4().hex, boot_id=uuid.uuid4().hex
        )
        self.inventory = an_inventory()
        if runtime:
            update = {"container_runtime": runtime}
            self.inventory = self.inventory.model_copy(update=update)
        self.image, self.image_folders = image, image_folders
        self.artifacts, self.environments = artifacts, environments
        self.logs = LogStore(logs or (folder / "logs").as_uri())
        self.checkpoints = CheckpointStore(checkpoints or (folder / "checkpoints").as_uri())
        self.fence_after, self.engine_fence = fence_after, engine_fence
        self._lives: list[Processes] = []
        self.life()

    def life(self) -> Processes:
        """Begin a life of the agent: nothing is remembered but what is in the folder."""
        self.fence = Fence()
        self.fence.open(1, self.fence_after, boot_clock())
        self.processes = Processes(
            self.folder, self.identity, self.inventory, self.logs, self.fence,
            checkpoints=self.checkpoints, image_folders=self.image_folders,
            artifacts=self.artifacts, environments=self.environments,
            engine_fence=timedelta(seconds=self.engine_fence),
        )  # fmt: skip
        self._lives.append(self.processes)
        return self.processes

    async def end(self) -> None:
        """Kill what runs, and leave nothing of any life of the agent."""
        await self.processes.stop_all(AGENT_STOPPED, grace=0)
        for life in self._lives:
            life.close()

    def request(
        self, command: str | list[str] | None, *, job: str = "", attempt: int = 1, **spec: object
    ) -> RunProcessRequest:
        placement = Placement(
            job_id=job or f"job-{uuid.uuid4().hex[:8]}",
            attempt=attempt,
            node_id=self.identity.node_id,
            epoch=1,
            gpu_indices=(1, 3),
            cycle_id="cycle",
            placed_at=datetime.now(UTC),
        )
        document = {"name": "test", "command": command, "gpus": 2, "image": self.image, **spec}
        job_spec = JobSpec.model_validate(document)
        return RunProcessRequest(placement=placement, spec=job_spec, job_name="test")

    def start(self, command: str | list[str] | None, **details: object) -> Run:
        return self.processes.start(self.request(command, **details))  # pyright: ignore[reportArgumentType]

    def start_batch(self, command: str | list[str], count: int, *, job: str = "") -> Run:
        """Start elements 0, 1 and so on of an array, which run one after another."""
        slot = Slot(array_id="array", number=0, elements=count, first=0, last=count - 1)
        elements = tuple(Element(index=index, attempt=1) for index in range(count))
        batch = Batch(slot=slot, number=1, elements=elements)
        request = self.request(command, job=job).model_copy(update={"batch": batch})
        return self.processes.start(request)

    async def report(self, command: str | list[str] | None, **details: object) -> ProcessReport:
        return await self.start(command, **details).done

    async def says(self, run: Run, words: str) -> str:
        """Wait until a job has said something; return all that it has said."""
        key = run.record.key

        def said() -> bool:
            assert not run.done.done() or words in self.output(key), self.output(key, "stderr")
            return words in self.output(key)

        await eventually(said)
        return self.output(key)

    async def stop(self, run: Run, grace: float = 10) -> ProcessReport:
        """Stop a job, and wait for its end."""
        request = StopProcessRequest(
            key=run.record.key, grace=timedelta(seconds=grace), reason="test"
        )
        await self.processes.stop(request)
        return run.done.result()

    def output(self, key: PlacementKey, stream: str = "stdout") -> str:
        """Return what a process has written so far, from the spool on the node."""
        try:
            return (self.folder / "runs" / f"{key.job_id}-{key.attempt}" / stream).read_text()
        except FileNotFoundError:
            return ""


@pytest.fixture
def nests_deep(tmp_path: Path) -> Iterator[None]:
    """Removes what the test leaves; no time. A folder that is nested deeper than Python walks
    would end a later session of pytest, which removes what is old, without a summary."""
    yield
    remove_what_can_be(tmp_path)


@pytest.fixture
async def make_box() -> AsyncIterator[MakeBox]:
    """Makes nodes with four simulated GPUs, as many as wanted, in this process; 0.05 s each."""
    boxes: list[LocalNode] = []

    def make(folder: Path, **how: Any) -> LocalNode:
        boxes.append(LocalNode(folder, **how))
        return boxes[-1]

    yield make
    for box in boxes:
        await box.end()


@pytest.fixture
def box(make_box: MakeBox, tmp_path: Path) -> LocalNode:
    """A node of four simulated GPUs in this process, its jobs killed at the end; 0.02 s."""
    return make_box(tmp_path)


@pytest.fixture(scope="module")
def images() -> Iterator[None]:
    """Podman with storage of its own, and an image in it; skips where it cannot run; 2 s.

    On the disk: in memory it does not see a container's end, and waits 20 s for each.
    """
    disk = os.environ["PYTEST_DEBUG_TEMPROOT"]
    folder = tempfile.TemporaryDirectory(prefix="podman-", dir=disk)
    with folder as path, own_podman(Path(path)):
        yield


@pytest.fixture
def image_box(images: None, make_box: MakeBox, tmp_path: Path) -> LocalNode:
    """A node that runs images and lets them see the folder `shared`, beside a token; 0.02 s."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "agent-token").write_text(SECRET)
    return make_box(
        tmp_path / "node", runtime="podman", image=IMAGE, image_folders=[tmp_path / "shared"]
    )


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    """Nodes are lost as soon as in the product: real agents answer, and some tests wait for it."""
    return settings.model_copy(update={"node_lost_after": Settings().node_lost_after})


@pytest.fixture
def longshore(longshore: Longshore, control: Database) -> Longshore:
    """A client whose jobs a control worker takes."""
    return longshore


@pytest.fixture
def agent(settings: Settings, tmp_path: Path, pool: str) -> Iterator[AgentProcess]:
    """An agent of the test's pool, which the test starts (1.5 s); gone at the end."""
    agent = AgentProcess(settings, tmp_path, pool)
    yield agent
    agent.end()
