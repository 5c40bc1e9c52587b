"""A job knows its environment by a digest that a node that builds it finds too."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from longshore import Longshore
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.job_starts import digest_of as content_of
from longshore.activities.node.environment_recipe import code_of, digest_of, texts_of
from longshore.client.code_submit import CodeStorer
from longshore.models.code import Code
from longshore.models.dag import DagSpec
from longshore.models.environment import CURRENT, JobEnvironment
from longshore.models.job import JobSpec
from longshore.models.settings import Settings
from longshore.scheduling.dag_changes import changes
from tests.client.conftest import Command

CONDA = "channels: [conda-forge]\ndependencies: [python=3.11, {pip: [-r more.txt]}]\n"
FILES = {
    "requirements.txt": "-r more.txt\n", "more.txt": "numpy\n", "environment.yml": CONDA,
    "setup.sh": "true\n", "sizes": "1\n", "main.py": "print()\n",
}  # fmt: skip


@pytest.fixture
async def api(settings: Settings, longshore: Command) -> AsyncIterator[Longshore]:
    """A client beside the command line; starts nothing."""
    api = await Longshore.connect(settings)
    yield api
    await api.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of each kind; starts nothing."""
    root = tmp_path / "project"
    root.mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    return root


async def stored(api: Longshore, folder: Path | None, environment: object) -> JobSpec:
    """Return a job as a submit of this moment would send it."""
    code = folder and Code(folder=str(folder))
    given = {"name": "j", "command": "true", "code": code, "environment": environment}
    return await CodeStorer(api.settings, api.database).of_job(JobSpec.model_validate(given))


def unpacked(settings: Settings, spec: JobSpec, folder: Path) -> Path:
    """Return a folder with the job's code, as a node has it."""
    assert spec.code is not None
    store = ArtifactStore(settings.resolve_artifact_store())
    for file in store.snapshot(spec.tenant, spec.code.snapshot or "").files:
        parts = [(store.get(spec.tenant, part.object), part) for part in file.parts]
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(data[it.offset : it.offset + it.size] for data, it in parts))
    return folder


def digest(spec: JobSpec) -> str:
    assert spec.environment is not None
    assert spec.environment.digest is not None
    return spec.environment.digest


@pytest.mark.parametrize(
    "environment",
    ["requirements.txt", "environment.yml", {"script": "setup.sh", "files": ["sizes"]}, CURRENT],
)
async def test_a_node_finds_what_the_submit_said(
    api: Longshore, folder: Path, tmp_path: Path, environment: object
) -> None:
    spec = await stored(api, folder, environment)
    assert spec.code is not None
    assert spec.environment is not None
    code = unpacked(api.settings, spec, tmp_path / "node")
    texts, _ = texts_of(spec.environment, code)
    named = code_of(spec.tenant, spec.code.snapshot)
    assert digest_of(spec.environment, texts, named) == digest(spec)
    assert (await stored(api, folder, environment)) == spec


async def test_it_is_another_with_another_file_and_not_with_other_code(
    api: Longshore, folder: Path
) -> None:
    scripted = {"script": "setup.sh"}
    first, script = [await stored(api, folder, each) for each in ("requirements.txt", scripted)]
    (folder / "main.py").write_text("print(1)\n")
    assert digest(await stored(api, folder, "requirements.txt")) == digest(first)
    assert digest(await stored(api, folder, scripted)) != digest(script)  # it may install that
    (folder / "more.txt").write_text("scipy\n")
    assert digest(await stored(api, folder, "requirements.txt")) != digest(first)
    listed = await stored(api, None, ["numpy"])
    assert digest(listed) != digest(await stored(api, None, ["scipy"]))


def test_what_the_submit_fills_in_makes_no_other_job_of_it() -> None:
    asked = JobEnvironment(requirements=("numpy",))
    known = asked.model_copy(update={"digest": "a" * 32})
    old, new = (JobSpec(name="j", command="true", environment=each) for each in (asked, known))
    assert content_of(old) == content_of(new)
    before, after = (
        DagSpec.model_validate({"name": "d", "jobs": {"a": {"command": "true", "environment": e}}})
        for e in (asked, known)
    )
    assert content_of(before) == content_of(after)
    assert changes(before, after).anew == frozenset()
