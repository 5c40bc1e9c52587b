"""The wheel as a stranger has it: one name to import, beside packages of any name of his own."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.home import Home, new_home
from tests.support.local_stack import ROOT, temporary_folder

_TAKEN = ("activities", "client", "console", "models", "scheduling", "simulation", "tests",
          "workers", "workflows")  # fmt: skip
"""Names of packages that people have themselves."""
_SCRIPT = """\
import asyncio

import models
from longshore import JobSpec, Longshore, leave


async def main() -> None:
    longshore = await Longshore.connect()
    job = await longshore.submit(JobSpec(name="hello", command="true"))
    print(models.OWNER, (await longshore.wait(job.job_id)).state)
    await longshore.close()


asyncio.run(main())
leave()
"""
_IMPORTS = """\
import sys

import models
import longshore.client.cli
import longshore.console.app
import longshore.workers.agent
import longshore.workers.control

print(models.OWNER)
for name, module in list(sys.modules.items()):
    if name.startswith("longshore."):
        print(module.__file__)
"""
"""What the command line and each process of an installation begin with."""


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    """Builds the wheel from a copy of the files that git tracks; 6 s."""
    with temporary_folder() as folder:
        source = folder / "source"
        tracked = _output("git", "ls-files", "-z").split("\0")
        for name in filter(None, tracked):
            place = source / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                place.symlink_to((ROOT / name).readlink())
            elif (ROOT / name).exists():
                place.write_bytes((ROOT / name).read_bytes())
        _output(
            sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
            "--no-index", "--quiet", "--wheel-dir", str(folder), str(source),
        )  # fmt: skip
        (built,) = folder.glob("*.whl")
        yield built


def test_a_wheel_has_one_name_at_its_top(wheel: Path):
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"longshore"}
    for name in ("longshore/py.typed", "longshore/console/theme.css"):
        assert name in names
    tracked = _output("git", "ls-files", *(f"{folder}/*.py" for folder in _TAKEN[:6])).split()
    assert {f"longshore/{name}" for name in tracked if not name.startswith("tests/")} <= {*names}


@pytest.mark.timeout(600)
def test_what_a_program_imports_comes_from_the_wheel(wheel: Path):
    """In a folder whose packages have all these names, and without a server."""
    with new_home() as home:
        folder = home.folder.parent
        python = _environment(folder / "environment", wheel)
        theirs = _folder_of_a_stranger(folder / "theirs", home)
        done = subprocess.run(
            [python, "-c", _IMPORTS], cwd=theirs, env=home.env, capture_output=True, text=True,
            timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        own, *found = done.stdout.splitlines()
        assert own == "a stranger"
        assert len(found) > 100
        assert [
            path for path in found if not Path(path).is_relative_to(folder / "environment")
        ] == []


@pytest.mark.exhaustive  # 13 s of the processor
def test_script_command_line_and_worker_run_beside_packages_of_the_same_names(wheel: Path):
    """A stack is started from the wheel (8 s), in a folder whose packages have all these names."""
    with new_home() as home:
        folder = home.folder.parent
        python = _environment(folder / "environment", wheel)
        home.program = str(python.parent / "longshore")
        home.working_folder = _folder_of_a_stranger(folder / "theirs", home)
        home.up("--nodes", "1")
        done = subprocess.run(
            [python, "script.py"], cwd=home.working_folder, env=home.env, capture_output=True,
            text=True, timeout=280, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "a stranger SUCCEEDED\n"), done.stderr
        jobs = home.longshore("jobs", "--all")
        assert (jobs.returncode, "hello" in jobs.stdout) == (0, True), jobs.stderr
        where = _output(
            python, "-I", "-c", "import longshore.models as m; print(m.__file__)"
        ).strip()
        assert Path(where).is_relative_to(folder / "environment")
        assert home.longshore("down").returncode == 0


def _environment(folder: Path, wheel: Path) -> Path:
    """Return the Python of a fresh environment that has the wheel, and of this one what other
    people wrote: a folder that a .pth file names has its own .pth files, such as that of a
    checkout, ignored."""
    venv.create(folder)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    _output(
        sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index",
        "--quiet", "--ignore-installed", str(wheel),
    )  # fmt: skip
    return python


def _folder_of_a_stranger(folder: Path, home: Home) -> Path:
    for name in _TAKEN:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("OWNER = 'a stranger'\n")
    (folder / "script.py").write_text(_SCRIPT)
    # The servers are programs of other people's wheels, which lie beside this Python.
    programs = Path(sys.executable).parent
    home.env |= {"PYTHONPATH": ".", "PATH": f"{programs}:{home.env['PATH']}"}
    return folder


def _output(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
