"""The PATH of a job: not that of the agent's own Python environment."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def without_own_environment(path: str, environ: Mapping[str, str]) -> str:
    """Return a PATH without the programs of the Python environment that this process runs in, and
    of the one that VIRTUAL_ENV names.

    A job would find there a `python` with packages that it never asked for, and that another node
    does not have. An environment that whoever started the agent put there besides stays.
    """
    own = {
        os.path.realpath(folder)
        for folder in (sys.prefix, environ.get("VIRTUAL_ENV"))
        if folder and (Path(folder) / "pyvenv.cfg").exists()  # not /usr, or a whole conda
    }
    return os.pathsep.join(
        entry for entry in path.split(os.pathsep)
        if os.path.realpath(Path(entry).parent) not in own or Path(entry).name != "bin"
    ) or os.defpath  # fmt: skip


def with_environment(
    env: Mapping[str, str], environment: Path | None, *, conda: bool | None = None
) -> dict[str, str]:
    """Return the variables of a process with a Python environment as the first on its PATH;
    `conda` says whether it is one of conda, where it is not built yet."""
    if environment is None:
        return dict(env)
    path = os.pathsep.join([str(environment / "bin"), env.get("PATH", os.defpath)])
    if conda is None:
        conda = (environment / "conda-meta").is_dir()
    return {**env, "PATH": path, "CONDA_PREFIX" if conda else "VIRTUAL_ENV": str(environment)}
