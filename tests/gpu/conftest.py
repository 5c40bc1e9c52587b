"""A stack on the GPUs of this machine, as `longshore up` starts it, and a Python with PyTorch."""

import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from longshore.activities.logstore import Stream
from longshore.client.api import Longshore
from longshore.models.job import JobSpec
from longshore.models.job_status import JobResult
from longshore.models.settings import Settings
from tests.support.home import Home, new_home
from tests.support.waiting import eventually

PROGRAMS = Path(__file__).parent / "programs"
POOL = "default"


class Card(NamedTuple):
    """A GPU, as `nvidia-smi` tells of it."""

    number: int
    name: str
    uuid: str
    mebibytes: int
    watts: float
    in_mig_mode: bool


def ask_driver(*arguments: str) -> str:
    """Return what `nvidia-smi` prints."""
    return subprocess.run(
        ["nvidia-smi", *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def read_cards() -> list[Card]:
    """Return the GPUs of this machine."""
    fields = "index,name,uuid,memory.total,enforced.power.limit,mig.mode.current"
    rows = ask_driver(f"--query-gpu={fields}", "--format=csv,noheader,nounits").splitlines()
    cards: list[Card] = []
    for row in rows:
        index, name, uuid, memory, watts, mig = (part.strip() for part in row.split(","))
        cards.append(Card(int(index), name, uuid, int(memory), float(watts), mig == "Enabled"))
    return cards


def memory_in_use(index: int = 0) -> int:
    """Return the MiB of a GPU that are in use."""
    ask = ("--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={index}")
    return int(ask_driver(*ask))


@pytest.fixture(scope="session")
def cards() -> list[Card]:
    """The GPUs of this machine."""
    if not shutil.which("nvidia-smi"):
        pytest.fail("this machine has no NVIDIA driver: run this on one with a GPU")
    found = read_cards()
    assert found
    return found


@pytest.fixture(scope="session")
def torch_python(cards: list[Card]) -> str:
    """The Python that runs the jobs: of TESTS_TORCH, or `python3`. It must have PyTorch, and the
    machine no GPU in MIG mode, since the jobs take whole ones."""
    if any(card.in_mig_mode for card in cards):
        pytest.fail("a GPU is in MIG mode: the checks with jobs take whole ones")
    python = os.environ.get("TESTS_TORCH", "python3")
    ask = [python, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"]
    said = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=120)
    if not said.stdout.strip().endswith("True"):
        pytest.fail(f"{python} has no PyTorch that finds a GPU: name one that has in TESTS_TORCH")
    return shutil.which(python) or python


@pytest.fixture(scope="session")
def home(cards: list[Card]) -> Iterator[Home]:
    """A stack with one node, of the GPUs of this machine."""
    with new_home() as home:
        assert home.up()["nodes"] == ["local-1"]
        quick = ("min_run=0s", "cooldown=0s", "near_end=0s")
        flags = [flag for each in quick for flag in ("--preemption", each)]
        changed = home.longshore("pool", "set", POOL, *flags)
        assert changed.returncode == 0, changed.stderr
        yield home


@pytest.fixture(scope="session")
async def longshore(home: Home) -> AsyncIterator[Longshore]:
    """A client of that stack."""
    client = await Longshore.connect(Settings(state_dir=home.folder))
    yield client
    await client.close()


class Jobs:
    """Submits programs of this folder, and reads what they print."""

    def __init__(self, longshore: Longshore, python: str, folder: Path) -> None:
        self.longshore = longshore
        self._python = python
        self._submitted: list[str] = []
        self.env = {"TORCHINDUCTOR_CACHE_DIR": str(folder)}  # else it leaves one that is shared

    async def submit(self, program: str, *arguments: str, **fields: Any) -> str:
        """Submit a program of this folder; return the id of its job."""
        fields = {"gpus": 1, "cpus": 0.5, "ram": "2GB", "expected_duration": "1m"} | fields
        fields["env"] = self.env | fields.get("env", {})
        command = (self._python, str(PROGRAMS / program), *arguments)
        spec = JobSpec.model_validate({"name": program[:-3], "command": command} | fields)
        return await self.begin(spec)

    async def begin(self, spec: JobSpec) -> str:
        """Submit a job; return its id. It ends with the check."""
        job_id = (await self.longshore.submit(spec)).job_id
        self._submitted.append(job_id)
        return job_id

    async def output(
        self, job_id: str, stream: Stream = "stdout", attempt: int | None = None
    ) -> str:
        """Return what a job has written until now."""
        read = self.longshore.logs(job_id, stream=stream, attempt=attempt)
        return b"".join([chunk async for chunk in read]).decode()

    async def said(self, job_id: str, word: str) -> str:
        """Wait until a job has written a word; return all of it."""

        async def ask() -> str:
            text = await self.output(job_id)
            return text if word in text else ""

        return await eventually(ask)

    async def result(self, job_id: str) -> JobResult:
        return await self.longshore.wait(job_id)

    async def answer(self, job_id: str) -> Any:
        """Wait for the end of a job; return the JSON document of its last line."""
        result = await self.result(job_id)
        text = await self.output(job_id)
        assert result.exit_code == 0, text + await self.output(job_id, "stderr")
        return json.loads(text.splitlines()[-1])

    async def cancel(self, job_id: str) -> None:
        """Cancel a job, and wait for its end."""
        await self.longshore.cancel(job_id)
        await self.result(job_id)

    async def end_all(self) -> None:
        """End what a check left: the next one needs the GPUs."""
        for job_id in self._submitted:
            if not (await self.longshore.job(job_id)).state.ended:
                await self.cancel(job_id)


@pytest.fixture
async def jobs(longshore: Longshore, torch_python: str, tmp_path: Path) -> AsyncIterator[Jobs]:
    """What submits the jobs of a check, and ends them with it."""
    jobs = Jobs(longshore, torch_python, tmp_path)
    yield jobs
    await jobs.end_all()


@pytest.fixture
def mps(home: Home, tmp_path: Path) -> Iterator[dict[str, str]]:
    """NVIDIA's MPS daemon, for the jobs that have these variables."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("MPS is not installed here")
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}
    subprocess.run([control, "-d"], env=home.env | env, check=True, timeout=30)
    yield env
    subprocess.run([control], input="quit\n", text=True, env=home.env | env, check=False)
