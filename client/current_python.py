"""The packages of the Python of whoever submits, as files that come along with the code of a job.

What an index has is named with its version; what was installed from a folder of this machine, as
by `pip install -e .`, is built into a wheel.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from uv import find_uv_bin

from longshore.activities.node.environment_recipe import has_no_index, variables_of_uv
from longshore.models.environment import CURRENT_FOLDER, JobEnvironment
from longshore.models.errors import SpecError
from longshore.models.text import count
from longshore.models.visible import brief

REQUIREMENTS = f"{CURRENT_FOLDER}/requirements.txt"
_PROBE = """
import importlib.metadata as metadata, json, sys
found = {}
for each in metadata.distributions():
    name = each.metadata["Name"]
    if name:
        found.setdefault(name, [each.version, each.read_text("direct_url.json")])
print(json.dumps(["%d.%d" % sys.version_info[:2], sys.prefix, found]))
"""
_SECONDS = 60.0
_BUILD_SECONDS = 600.0
_LEFT_OUT = frozenset(("pip", "setuptools", "wheel", "distribute", "longshore"))
"""What makes environments, as `pip freeze` does, and submits jobs. Who needs one of them gets it,
as what they require."""
_EPOCH = "315532800"
"""Seconds: the first that a zip can hold. Times in a wheel would make each build another."""
_LAST_LINES = 5


class CurrentPython(NamedTuple):
    """A Python of this machine, and what is installed for it."""

    program: str
    version: str
    """Such as ``3.11``."""
    prefix: str
    packages: Mapping[str, tuple[str, dict[str, Any]]]
    """The version of each by name, and where it is from where that is no index (PEP 610)."""


class Brought(NamedTuple):
    """What comes along in place of a Python."""

    environment: JobEnvironment
    files: Mapping[str, Path]
    """By path in the code."""
    said: str
    """In a few words."""

    @property
    def texts(self) -> dict[str, str]:
        """The text that the environment is made from, by path in the code."""
        return {REQUIREMENTS: self.files[REQUIREMENTS].read_text("utf-8")}


def current_python() -> CurrentPython:
    """Return the Python of the virtual environment that is active, else the one that runs this.

    Raises SpecError where it does not answer, or is one of conda.
    """
    active = os.environ.get("VIRTUAL_ENV")
    program = str(Path(active) / "bin" / "python") if active else sys.executable
    # Neither the folder that we are in nor variables have a say in what is installed.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        told = subprocess.run(
            [program, "-c", _PROBE], env=env, cwd="/", capture_output=True, text=True, check=True,
            timeout=_SECONDS,
        )  # fmt: skip
        version, prefix, packages = json.loads(told.stdout)
        found = {
            name: (str(each[0]), json.loads(each[1] or "{}")) for name, each in packages.items()
        }
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _refused(f"the Python {program} does not say what it has: {error}") from None
    if (Path(prefix) / "conda-meta").is_dir():
        raise _refused(
            f"{prefix} is an environment of conda: `conda env export --from-history > "
            "environment.yml` writes it down; give that"
        )
    return CurrentPython(program, version, prefix, found)


def bring(python: CurrentPython, folder: Path) -> Brought:
    """Write what comes along in place of a Python into a folder.

    Raises SpecError where a package cannot be built, or is not there any more.
    """
    files: dict[str, Path] = {}
    lines: list[str] = []
    for name in sorted(set(python.packages) - _LEFT_OUT, key=str.casefold):
        version, source = python.packages[name]
        if (local := _local(source)) is None:
            lines.append(_from_elsewhere(name, version, source))
            continue
        wheel = _wheel(python, name, local, folder / "built" / name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        path = f"{CURRENT_FOLDER}/{digest}/{wheel.name}"
        files[path] = wheel
        lines.append(f"./{path}")
    listed = folder / "requirements.txt"
    listed.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    said = f"{count(len(lines), 'package')} of {python.prefix} (Python {python.version})"
    if files:
        said += f", {len(files)} built from folders"
    asked = JobEnvironment(requirements=REQUIREMENTS, python=python.version)
    return Brought(asked, {REQUIREMENTS: listed, **files}, said)


def _local(source: Mapping[str, Any]) -> Path | None:
    """Return the folder or file of this machine that a package was installed from."""
    url = urlsplit(str(source.get("url", "")))
    return Path(unquote(url.path)) if url.scheme == "file" else None


def _from_elsewhere(name: str, version: str, source: Mapping[str, Any]) -> str:
    url = source.get("url")
    if not url:
        return f"{name}=={version}"
    vcs = source.get("vcs_info") or {}
    at = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else str(url)
    below = f"#subdirectory={source['subdirectory']}" if source.get("subdirectory") else ""
    return f"{name} @ {at}{below}"


def _wheel(python: CurrentPython, name: str, source: Path, folder: Path) -> Path:
    """Return a wheel of what a package was installed from.

    By way of an sdist, which is unpacked elsewhere: setuptools would build in the folder itself,
    and leave there what the next wheel would have too, though its source is gone.
    """
    if source.suffix == ".whl" and source.is_file():
        return source
    if not source.exists():
        raise _refused(f"{name} was installed from {source}, which is not there any more")
    indexes = variables_of_uv(os.environ)
    no_index = ["--no-index"] if has_no_index(indexes) else []
    fixed = {"SOURCE_DATE_EPOCH": _EPOCH, "UV_PYTHON_DOWNLOADS": "never"}
    env = {**os.environ, **indexes, **fixed}
    words = ["build", "--no-progress", "--python", python.program]
    try:
        done = subprocess.run(
            [find_uv_bin(), *words, *no_index, "--out-dir", str(folder), str(source)],
            env=env, cwd="/", capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise _refused(f"no wheel can be built of {name} in {source}: {error}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        last = "; ".join(_last_lines(done.stderr))
        raise _refused(f"no wheel can be built of {name} in {source}: {last}")
    return wheels[0]


def _last_lines(text: str) -> Iterator[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return map(brief, lines[-_LAST_LINES:])


def _refused(why: str) -> SpecError:
    return SpecError("environment: current", (why,))
