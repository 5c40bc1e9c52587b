"""Podman for tests: with storage of its own in a folder, and an image that is made here."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.local_stack import ROOT

IMAGE = "localhost/longshore-test:1"
"""A static busybox and nothing else."""
IDLE = "echo ready; while :; do sleep 0.05; done"
_HOW = "(Debian and Ubuntu: apt install podman runc catatonit netavark busybox-static)"

_ENGINE = """
[containers]
netns = "none"
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
{runtime}
tmp_dir = "{folder}/tmp"
[network]
network_config_dir = "{folder}/networks"
"""
_STORAGE = """
[storage]
driver = "vfs"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


@contextmanager
def own_podman(folder: Path) -> Iterator[None]:
    """Have podman keep all that it has in `folder`, with the image.

    Skips where it cannot run; with TESTS_PODMAN=required in the environment it fails there.
    """
    if os.geteuid() != 0:  # without root it leaves a process of its own behind
        _do_without("podman is tried as root alone")
    busybox = shutil.which("busybox")
    if not shutil.which("podman") or not busybox or _needs_libraries(Path(busybox)):
        _do_without(f"podman or a static busybox is not installed {_HOW}")
    # What containers get as their runtime by default does not know every machine's cgroups.
    runtime = 'runtime = "runc"' if shutil.which("runc") else ""
    with pytest.MonkeyPatch.context() as patch:
        for variable, text in (
            ("CONTAINERS_CONF", _ENGINE),
            ("CONTAINERS_STORAGE_CONF", _STORAGE),
        ):
            file = folder / f"{variable.lower()}.toml"
            file.write_text(text.format(folder=folder, runtime=runtime))
            patch.setenv(variable, str(file))
        _import(Path(busybox), folder)
        tried = podman("run", "--rm", "--", IMAGE, "true", check=False)
        if tried.returncode != 0:
            last = tried.stderr.strip().splitlines()[-1:]
            _do_without(f"podman cannot run a container here: {''.join(last)}")
        try:
            yield
        finally:
            podman("rm", "--all", "--force", "--time", "0")


def _do_without(why: str) -> NoReturn:
    if os.environ.get("TESTS_PODMAN") == "required":
        pytest.fail(why)
    pytest.skip(why)


_REAPING = """
import os, sys
from longshore.activities.node.system import become_subreaper
become_subreaper()
started = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
while (ended := os.wait())[0] != started:
    pass
sys.exit(os.waitstatus_to_exitcode(ended[1]))
"""
"""Runs a command and reaps what it leaves: podman waits 20 s for that where nobody else does."""


def podman(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _REAPING, "podman", *words],
        capture_output=True, text=True, timeout=180, check=check, cwd=ROOT,
    )  # fmt: skip


def containers() -> list[str]:
    """Return the names of all containers, whether they run or not."""
    return podman("ps", "--all", "--format", "{{.Names}}").stdout.split()


def _needs_libraries(program: Path) -> bool:
    with program.open("rb") as file:
        return b"/ld-" in file.read(4096)  # who loads them is named after the headers


def _import(busybox: Path, folder: Path) -> None:
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    tar = folder / "image.tar"
    with tarfile.open(tar, "w") as image:
        image.add(busybox, "bin/busybox")
        for name in applets.stdout.split():
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                image.addfile(link)
        token = tarfile.TarInfo("etc/whose")
        token.size = len(b"the image's\n")
        image.addfile(token, io.BytesIO(b"the image's\n"))
    podman("import", str(tar), IMAGE, check=False)  # where that fails, so does what follows
