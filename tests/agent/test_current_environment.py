"""`environment: current`: the packages of the Python that submits are those of the job."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from longshore.activities.artifacts.store import ArtifactStore
from longshore.client.current_python import Brought, bring, current_python
from longshore.models.errors import SpecError
from longshore.models.retry import FailureClass
from tests.agent.conftest import LocalNode
from tests.support.projects import make_project
from tests.support.snapshots import code_of, store_snapshot
from tests.support.wheels import be_the_only_index, make_wheel

Install = Callable[..., None]
PRINTS = "import mine, tool; print(mine.text, tool.version)"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels as the only index; 0 s."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        make_wheel(folder, "tool", version)
    make_wheel(folder, "longshore")
    be_the_only_index(folder, monkeypatch)
    return folder


@pytest.fixture
def install(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A virtual environment that is active; what installs packages there; 0.1 s."""
    folder = tmp_path / "venv"
    run = (find_uv_bin(), "venv", "--quiet", "--no-index", "--python", sys.executable, str(folder))
    subprocess.run(run, check=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))

    def install(*packages: str) -> None:
        words = ["pip", "install", "--quiet", "--no-index", "--find-links", str(index), *packages]
        subprocess.run([find_uv_bin(), *words], check=True)

    return install


def brought(tmp_path: Path, name: str = "brought") -> Brought:
    folder = tmp_path / name
    folder.mkdir()
    return bring(current_python(), folder)


def tree_of(found: Brought) -> dict[str, bytes]:
    return {path: file.read_bytes() for path, file in found.files.items()}


async def report_of(box: LocalNode, found: Brought, tree: dict[str, bytes]) -> tuple[object, str]:
    store = ArtifactStore((box.folder / "artifacts").as_uri())
    asked = found.environment.model_dump(mode="json")
    code = code_of(store_snapshot(store, {"main.py": PRINTS, **tree}))
    run = box.start(["python", "main.py"], environment=asked, code=code)
    report = await run.done
    return report.failure, box.output(run.record.key) or report.message


async def test_versions_of_an_index_and_wheels_of_folders_come_along(
    box: LocalNode, install: Install, tmp_path: Path
):
    project = make_project(tmp_path / "a project", "mine", "text = 'first'\n")
    install("tool==1.0", "longshore", "--editable", str(project))
    first = brought(tmp_path)
    assert first.said.startswith(f"2 packages of {tmp_path / 'venv'} (Python 3.")
    assert first.said.endswith(", 1 built from folders")
    assert await report_of(box, first, tree_of(first)) == (None, "first 1.0\n")
    assert not (project / "built").exists(), "nothing is left in the folder"
    again = brought(tmp_path, "again")
    assert tree_of(again) == tree_of(first), "the same is the same environment"
    (project / "mine.py").write_text("text = 'second'\n")
    second = brought(tmp_path, "second")
    assert await report_of(box, second, tree_of(second)) == (None, "second 1.0\n")
    assert len(list((box.folder / "cache/environments").glob("*.json"))) == 2


async def test_a_wheel_that_is_not_what_its_line_says_is_refused(
    box: LocalNode, install: Install, tmp_path: Path
):
    """Else it would be the environment of all others who name that one."""
    install("tool==1.0", str(make_project(tmp_path / "project", "mine", "text = 'first'\n")))
    found = brought(tmp_path)
    tree = tree_of(found)
    (wheel,) = (path for path in tree if path.endswith(".whl"))
    failure, said = await report_of(box, found, {**tree, wheel: tree[wheel] + b"x"})
    assert failure is FailureClass.START
    assert "is another than its line says" in said
    failure, said = await report_of(box, found, {k: v for k, v in tree.items() if k != wheel})
    assert failure is FailureClass.START
    assert "cannot be read: No such file or directory" in said


def test_where_packages_are_from_is_kept(install: Install, index: Path, tmp_path: Path):
    install(str(index / "tool-2.0-py3-none-any.whl"))
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for name, source in (
        ("hosted", '{"url": "https://example.org/hosted-1.0.tar.gz", "archive_info": {}}'),
        ("cloned", '{"url": "https://example.org/r.git", "subdirectory": "lib",'
                   ' "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}'),
    ):  # fmt: skip
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "direct_url.json").write_text(source)
    found = brought(tmp_path)
    cloned, hosted, tool = found.files[found.environment.paths[0]].read_text().splitlines()
    assert cloned == "cloned @ git+https://example.org/r.git@c0ffee#subdirectory=lib"
    assert hosted == "hosted @ https://example.org/hosted-1.0.tar.gz"
    assert tool.endswith("/tool-2.0-py3-none-any.whl")


def test_what_cannot_come_along_is_said(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = make_project(tmp_path / "project", "mine", "")
    install(str(project))
    (project / "backend.py").write_text("raise SystemExit('no compiler here')\n")
    with pytest.raises(SpecError, match=r"no wheel can be built of mine in .*project: .*compiler"):
        brought(tmp_path, "not-built")
    project.rename(tmp_path / "moved")
    with pytest.raises(SpecError, match=r"mine was installed from .*project, which is not there"):
        brought(tmp_path, "moved-away")
    (tmp_path / "venv" / "conda-meta").mkdir()
    with pytest.raises(SpecError, match="is an environment of conda: `conda env export"):
        brought(tmp_path, "of-conda")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "none"))
    with pytest.raises(SpecError, match="does not say what it has"):
        brought(tmp_path, "none")
