"""Solves an environment.yml and installs its packages into a folder, which is to become it.

Run as `python -I -m longshore.activities.node.conda_install FILE FOLDER CACHE`, in a process of
its own: a build that is stopped is killed. What pip is to install is left to uv.
"""

import asyncio
import os
import sys
from pathlib import Path

from longshore.activities.node.conda_file import CondaFile, read_conda_file

_CONFIG = "allow-hard-links = false\nallow-symbolic-links = false\n"
"""Files are copies. A link would let a job that changes its environment change those to come."""


def main() -> None:
    file, folder, cache = map(Path, sys.argv[1:4])
    try:
        asyncio.run(install(read_conda_file(file.read_text(encoding="utf-8")), folder, cache))
    except ImportError as error:
        _fail(f"conda environments need py-rattler in the Python of the agent: {error}")
    except Exception as error:  # what rattler raises has no common class
        _fail(" ".join(str(error).split()) or type(error).__name__)
    # Threads of rattler 0.28 crash an interpreter that ends: 4 of 120 did, with all installed.
    os._exit(0)


async def install(asked: CondaFile, folder: Path, cache: Path) -> None:
    """Install what a file asks for. Raises what rattler raises."""
    # Imported late: a Python for which there is none says so.
    import rattler

    platform = rattler.Subdir.current()
    # Beside the packages: without it what channels list would be in the home of the agent's user.
    gateway = rattler.Gateway(cache_dir=cache / "repodata")
    records = await rattler.solve(
        sources=asked.channels,
        specs=asked.packages,
        gateway=gateway,
        platforms=[platform, "noarch"],
        virtual_packages=rattler.VirtualPackage.detect(),
    )
    for record in sorted(records, key=lambda each: each.name.normalized):
        # With the marks of uv: what was put in, with which version.
        sys.stdout.write(f" + {record.name.normalized}=={record.version}\n")
    sys.stdout.flush()
    await rattler.install(
        records,
        target_prefix=folder,
        cache_dir=cache / "packages",
        show_progress=False,
        execute_link_scripts=False,
        config=rattler.Config.from_toml(_CONFIG),
    )


def _fail(why: str) -> None:
    sys.stderr.write(f"error: {why}\n")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
