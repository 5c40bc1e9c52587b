"""The Python environment of a job: built once on a node, whole or not at all, shared read-only."""

import asyncio
import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.node import environment_store, environments
from longshore.activities.node.environment_recipe import digest_of
from longshore.activities.node.environment_store import EnvironmentStore
from longshore.activities.node.run import Run
from longshore.models.data import name_of_environment
from longshore.models.environment import JobEnvironment
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode, MakeBox
from tests.support.snapshots import code_of, store_snapshot
from tests.support.waiting import eventually
from tests.support.wheels import add_pip, be_the_only_index, make_wheel

SAYS = "import tool; print(tool.version)"


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels as the only index, and no settings of pip; 0 s."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "tool", "1.0")
    make_wheel(folder, "tool", "2.0", requires=("base>=1",))
    make_wheel(folder, "base", "1.5")
    add_pip(folder)  # for those with a script
    be_the_only_index(folder, monkeypatch)
    return folder


def built(box: LocalNode) -> list[Path]:
    return sorted((box.folder / "cache/environments").glob("*.json"))


def start(box: LocalNode, command: str | list[str], environment: object, **spec: object) -> Run:
    return box.start(command, environment=environment, **spec)


def code(box: LocalNode, tree: dict[str, str]) -> dict[str, object]:
    store = ArtifactStore((box.folder / "artifacts").as_uri())
    return code_of(store_snapshot(store, tree))


async def test_a_list_of_packages_is_there_with_its_programs(box: LocalNode):
    run = start(box, 'tool; python -c "import base"; echo $VIRTUAL_ENV; which python', ["tool"])
    assert (await run.done).failure is None
    version, environment, python = box.output(run.record.key).split()
    assert version == "2.0"
    assert python == f"{environment}/bin/python"
    said = box.output(run.record.key, "stderr")
    assert "longshore: building tool, Python 3." in said
    assert "+ tool==2.0" in said
    again = start(box, ["python", "-c", SAYS], ["tool"])
    assert (await again.done).failure is None
    assert box.output(again.record.key, "stderr") == ""
    assert len(built(box)) == 1


async def test_a_requirements_file_counts_with_what_it_includes(box: LocalNode):
    def tree(limit: str) -> dict[str, str]:
        return {"req/all.txt": "-r more.txt\n-c limits.txt\n", "req/more.txt": "tool  # the\n",
                "req/limits.txt": f"tool<{limit}\n", "main.py": f"{SAYS}\n"}  # fmt: skip

    for limit, version in (("2", "1.0"), ("3", "2.0"), ("2", "1.0")):
        run = start(
            box,
            ["python", "main.py"],
            {"requirements": "req/all.txt"},
            code=code(box, tree(limit)),
        )
        report = await run.done
        assert report.failure is None, report.message
        assert box.output(run.record.key) == f"{version}\n"
    assert len(built(box)) == 2


async def test_other_code_with_the_same_requirements_has_the_same_environment(box: LocalNode):
    for text in ("a", "b"):
        tree = {"requirements.txt": "tool", "x": text}
        report = await box.report("tool", environment="requirements.txt", code=code(box, tree))
        assert report.failure is None
    assert len(built(box)) == 1
    (held,) = EnvironmentStore(box.folder / "cache/environments").held()
    asked = JobEnvironment(requirements="requirements.txt")
    digest = digest_of(asked, {"requirements.txt": "tool"}, "")
    assert (held.name, held.bytes > 0) == (name_of_environment(digest), True)


@pytest.mark.parametrize("variable", ["UV_NO_INDEX", "PIP_NO_INDEX"])
async def test_without_an_index_no_index_is_asked(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch, variable: str
):
    """uv has no variable of that name. An index that is asked answers here: nobody listens."""
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert (await box.report("tool", environment=["tool"])).failure is None
    report = await box.report("true", environment=["longshore-no-such-package"])
    assert report.failure is FailureClass.START
    assert "was not found in the provided package locations" in report.message


async def test_a_lock_is_followed(box: LocalNode, index: Path):
    project = '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">={}"\n'
    project += 'dependencies = ["tool"]\n'
    lock = f"""version = 1
requires-python = ">=3.8"
[[package]]
name = "mine"
version = "1"
source = {{ virtual = "." }}
dependencies = [{{ name = "tool" }}]
[package.metadata]
requires-dist = [{{ name = "tool" }}]
[[package]]
name = "tool"
version = "1.0"
source = {{ registry = "{index}" }}
wheels = [{{ path = "tool-1.0-py3-none-any.whl" }}]
"""
    tree = {"uv.lock": lock, "pyproject.toml": project.format("3.8")}
    run = start(box, ["python", "-c", SAYS], "uv.lock", code=code(box, tree))
    report = await run.done
    assert report.failure is None, report.message
    assert box.output(run.record.key) == "1.0\n"
    newer = {"uv.lock": lock.replace("3.8", "3.99"), "pyproject.toml": project.format("3.99")}
    report = await box.report("true", environment="uv.lock", code=code(box, newer))
    assert report.failure is FailureClass.START
    assert "requires-python" in report.message or "requirement" in report.message


async def test_a_script_runs_once_with_the_environment_and_its_files_count(box: LocalNode):
    script = 'cat words > "$VIRTUAL_ENV/words"; python -c "import tool"; echo set up\n'
    asked = {"requirements": ["tool"], "script": "setup.sh", "files": ["words"]}
    for words, other in (("one", "a"), ("one", "a"), ("two", "a"), ("two", "b")):
        brought = code(box, {"setup.sh": script, "words": words, "other": other})
        run = start(box, "cat $VIRTUAL_ENV/words; ls", asked, code=brought)
        report = await run.done
        assert report.failure is None, report.message
        assert box.output(run.record.key) == f"{words}other\nsetup.sh\nwords\n"
    assert len(built(box)) == 3, "a script may install whatever the code has"


async def test_ten_jobs_at_once_build_once(box: LocalNode):
    runs = [start(box, "tool", ["tool"]) for _ in range(10)]
    reports = await asyncio.gather(*(run.done for run in runs))
    assert [report.failure for report in reports] == [None] * 10
    folders = [path for path in (box.folder / "cache/environments").iterdir() if path.is_dir()]
    assert len(folders) == len(built(box)) == 1
    said = [box.output(run.record.key, "stderr") for run in runs]
    assert all("longshore: built in" in text for text in said)


async def test_agents_that_share_a_cache_build_once(
    make_box: MakeBox, tmp_path: Path, box: LocalNode
):
    shared = tmp_path / "cache"
    other = make_box(tmp_path / "b", environments=environments.Environments(
        shared, box.processes.files.artifacts, "other"))  # fmt: skip
    reports = await asyncio.gather(
        *(each.report("tool", environment=["tool"]) for each in (box, other) * 2)
    )
    assert [report.failure for report in reports] == [None] * 4
    assert len(built(box)) == 1


async def test_a_build_that_fails_is_told_and_not_tried_again_at_once(
    box: LocalNode, index: Path, monkeypatch: pytest.MonkeyPatch
):
    report = await box.report("tool", environment=["nothing-such"])
    assert report.failure is FailureClass.START
    assert "its environment cannot be built (nothing-such, Python 3." in report.message
    assert "nothing-such was not found" in report.message
    make_wheel(index, "nothing_such")
    run = start(box, "true", ["nothing-such"])
    again = await run.done
    assert again.failure is FailureClass.START
    assert re.fullmatch(
        re.escape(report.message)
        + r" \(so it was \d+s ago; this node builds it again in \d+m, .*\)",
        again.message,
    )
    assert box.output(run.record.key, "stderr") == ""
    monkeypatch.setattr("longshore.activities.node.environment_store.FAILED_FOR", timedelta(0))
    assert (await box.report("nothing_such", environment=["nothing-such"])).failure is None


async def test_a_script_that_fails_shows_its_last_lines(box: LocalNode):
    brought = code(box, {"setup.sh": "echo getting ready\necho no compiler >&2\nexit 3\n"})
    run = box.start("true", environment={"script": "setup.sh"}, code=brought)
    report = await run.done
    assert report.failure is FailureClass.START
    assert report.message.endswith(": its script ended with exit code 3: no compiler")
    assert box.output(run.record.key, "stderr").endswith("getting ready\nno compiler\n")


async def test_a_build_that_takes_too_long_is_ended(make_box: MakeBox, tmp_path: Path):
    box = make_box(tmp_path)
    short = timedelta(seconds=3)
    own = environments.Environments(tmp_path / "cache", box.processes.files.artifacts, "x", short)
    box = make_box(tmp_path, environments=own)
    brought = code(box, {"setup.sh": "sleep 1000 & echo on\nwait\n"})
    report = await box.report("true", environment={"script": "setup.sh"}, code=brought)
    assert report.failure is FailureClass.START
    assert "took longer than 0:00:03" in report.message


async def test_a_python_that_the_node_lacks_is_named(box: LocalNode):
    report = await box.report("true", environment={"requirements": ["tool"], "python": "3.99"})
    assert report.failure is FailureClass.START
    assert "this node has no Python 3.99" in report.message


async def test_what_is_in_a_folder_is_no_requirement(box: LocalNode):
    tree = {"requirements.txt": "-e .\n", "other.txt": "-r ../up.txt\n", "gone.txt": "-r no.txt\n"}
    brought = code(box, tree)
    for file, why in (
        ("requirements.txt", "-e ."),
        ("other.txt", "leads out"),
        ("gone.txt", "no.txt"),
    ):
        report = await box.report("true", environment=file, code=brought)
        assert report.failure is FailureClass.START
        assert why in report.message


async def test_a_stop_ends_a_build_at_once_unless_another_job_waits(
    box: LocalNode, tmp_path: Path
):
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.05; done\n"
    brought = code(box, {"setup.sh": script})
    first, second = (start(box, "true", {"script": "setup.sh"}, code=brought) for _ in range(2))
    for run in (first, second):
        await eventually(lambda run=run: "building its environment" in run.progress().message)
    await eventually(lambda: box.processes.files.environments._builds)
    began = time.monotonic()
    assert (await box.stop(first, 100)).stopped_for == "test"
    assert time.monotonic() - began < 50
    go.touch()
    assert (await second.done).failure is None
    go.unlink()
    other = code(box, {"setup.sh": script + "true\n"})
    alone = start(box, "true", {"script": "setup.sh"}, code=other)
    await eventually(lambda: "building" in box.output(alone.record.key, "stderr"))
    began = time.monotonic()
    assert (await box.stop(alone, 100)).stopped_for == "test"
    assert time.monotonic() - began < 50
    assert not box.processes.files.environments._builds
    store = EnvironmentStore(box.folder / "cache/environments")
    store.tidy()
    assert len([path for path in store.folder.iterdir() if path.is_dir()]) == 1


async def test_what_a_job_changes_in_it_reaches_no_later_job(box: LocalNode):
    module = "$VIRTUAL_ENV/lib/python3*/site-packages/tool/__init__.py"
    spoil = f"chmod u+w {module}; echo \"version = 'mine'\" > $(echo {module})"
    assert (await box.report(spoil, environment=["tool"])).failure is None
    run = start(box, ["python", "-c", SAYS], ["tool"])
    assert (await run.done).failure is None
    assert box.output(run.record.key) == "2.0\n"


async def test_one_that_was_looked_at_since_its_last_job_is_taken_at_once(
    box: LocalNode, monkeypatch: pytest.MonkeyPatch
):
    folder = box.folder / "cache/environments"

    def looked_at() -> list[Path]:
        return list(folder.glob("*.same"))

    assert (await box.report("tool", environment=["tool"])).failure is None
    await eventually(looked_at)
    looks: list[Path] = []
    real = environment_store.stamp_of

    def counted(folder: Path) -> str:
        looks.append(folder)
        return real(folder)

    monkeypatch.setattr(environment_store, "stamp_of", counted)
    run = start(box, f"until [ -e {box.folder}/go ]; do sleep 0.05; done", ["tool"])
    await eventually(lambda: run.environment)
    assert (looks, looked_at()) == ([], [])
    (box.folder / "go").touch()
    assert (await run.done).failure is None
    await eventually(looked_at)
    assert len(looks) == 1
    module = "$VIRTUAL_ENV/lib/python3*/site-packages/tool/__init__.py"
    await box.report(f"chmod u+w {module}; echo >> $(echo {module})", environment=["tool"])
    await eventually(lambda: len(looks) == 2)
    assert looked_at() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to what is read-only")
async def test_a_job_cannot_write_to_it(box: LocalNode):
    report = await box.report("touch $VIRTUAL_ENV/x", environment=["tool"])
    assert report.failure is FailureClass.USER


async def test_its_modes_are_read_only(box: LocalNode):
    run = start(box, "find $VIRTUAL_ENV ! -type l -perm /222", ["tool"])
    await run.done
    assert box.output(run.record.key) == ""


async def test_one_that_is_in_use_is_not_evicted(box: LocalNode, tmp_path: Path):
    run = start(box, f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; tool", ["tool"])
    store = EnvironmentStore(box.folder / "cache/environments")
    await eventually(lambda: run.environment)
    (entry,) = store.entries()
    assert entry.in_use
    store.evict([entry.key])
    store.tidy()
    (tmp_path / "go").touch()
    assert (await run.done).failure is None
    await eventually(lambda: not store.entries()[0].in_use)  # it is looked at first
    (entry,) = store.entries()
    assert entry.bytes > 10_000
    store.evict([entry.key])
    assert [path.suffix for path in store.folder.iterdir()] == [".build"]


@pytest.mark.usefixtures("nests_deep")
async def test_what_a_killed_build_left_goes(box: LocalNode):
    store = EnvironmentStore(box.folder / "cache/environments")
    store.folder.mkdir(parents=True)
    folder, held = store.begin("abc")
    (folder / "bin").mkdir(parents=True)
    nested = "import os\nfor _ in range(1500):\n os.mkdir('d'); os.chdir('d')"
    run = partial(subprocess.run, [sys.executable, "-c", nested], cwd=folder / "bin", check=True)
    await asyncio.to_thread(run)
    store.tidy()
    assert folder.exists()  # it is being built
    held.release()
    store.tidy()
    assert list(store.folder.iterdir()) == []
