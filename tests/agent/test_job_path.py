"""What a job finds on its PATH, and that it is not the agent's own Python environment."""

import os
import sys
from pathlib import Path

from longshore.activities.node.job_path import with_environment, without_own_environment
from tests.agent.conftest import LocalNode

OWN = str(Path(sys.prefix) / "bin")


def test_the_environment_of_the_agent_is_left_out(tmp_path: Path):
    activated, deliberate = tmp_path / "activated", tmp_path / "for-jobs"
    for folder in (activated, deliberate):
        (folder / "bin").mkdir(parents=True)
        (folder / "pyvenv.cfg").touch()
    (tmp_path / "link").symlink_to(activated)
    path = os.pathsep.join(
        [OWN, f"{tmp_path}/link/bin", f"{deliberate}/bin", "/usr/bin", f"{activated}/bin/", "/bin"]
    )
    kept = without_own_environment(path, {"VIRTUAL_ENV": str(activated)})
    assert kept == os.pathsep.join([f"{deliberate}/bin", "/usr/bin", "/bin"])
    assert without_own_environment(OWN, {}) == os.defpath


def test_a_system_python_is_no_environment():
    assert without_own_environment("/usr/bin:/bin", {"VIRTUAL_ENV": "/usr"}) == "/usr/bin:/bin"


def test_an_environment_comes_first_also_before_what_the_job_names(tmp_path: Path):
    env = with_environment({"PATH": "/opt/mine"}, tmp_path)
    assert env == {"PATH": f"{tmp_path}/bin:/opt/mine", "VIRTUAL_ENV": str(tmp_path)}
    assert with_environment({"A": "b"}, None) == {"A": "b"}


async def test_a_job_does_not_see_the_programs_of_the_agent(box: LocalNode, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([OWN, "/usr/bin", "/bin"]))
    run = box.start("echo $PATH; command -v longshore || echo none")
    await run.done
    assert box.output(run.record.key) == "/usr/bin:/bin\nnone\n"
