"""From submit to start: a job with code and a cached environment, beside a plain job.

    python -m benchmarks.own_script [--files 40] [--packages 40] [--modules 50] [--jobs 40]

An installation of its own runs no-op jobs one by one, in turns: a plain one, and one that brings a
folder (which nothing has changed) and uses a requirements file (whose packages are there). Times
are from just before the submit, storing the folder included, to the start of the process as its
supervisor saw it. The environment of the job before is looked at meanwhile, as it is in use.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.environments import write_wheel
from benchmarks.installation import forget_environment, installed
from longshore.activities.node.runs import RunStore
from longshore.client.api import Longshore
from longshore.client.process import leave, run
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.placement import PlacementKey
from longshore.models.settings import Settings
from longshore.workers.stack import Stack

PLAIN = JobSpec(name="plain", command=("true",))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=40, help="files of the folder")
    parser.add_argument("--packages", type=int, default=40)
    parser.add_argument("--modules", type=int, default=50, help="modules of a package")
    parser.add_argument("--jobs", type=int, default=40, help="jobs of each kind")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    forget_environment()
    with tempfile.TemporaryDirectory() as folder:
        found = run(measure(Path(folder), options))
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{options.files} files, {options.packages * options.modules} modules; milliseconds "
              "from submit to start, median")  # fmt: skip
        print(f"  plain                     {found['plain_ms']:.0f}")
        print(f"  with code                 {found['code_ms']:.0f}")
        print(f"  with code and environment {found['both_ms']:.0f}, {found['ratio']:.2f} of plain")
    leave(0)


async def measure(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    wheels, code = folder / "wheels", folder / "code"
    wheels.mkdir()
    code.mkdir()
    names = [write_wheel(wheels, number, options.modules) for number in range(options.packages)]
    for number in range(options.files):
        (code / f"module_{number}.py").write_text(f"x = {number}\n" * 50)
    (code / "requirements.txt").write_text("\n".join(names))
    os.environ.update(UV_NO_INDEX="1", UV_FIND_LINKS=str(wheels), PIP_CONFIG_FILE=os.devnull)
    os.environ.pop("PIP_FIND_LINKS", None)
    changes = {"code": {"folder": str(code)}}
    with_code = JobSpec.model_validate({"name": "code", "command": ["true"], **changes})
    both = JobSpec.model_validate(
        {"name": "both", "command": ["true"], "environment": "requirements.txt", **changes}
    )
    kinds = {"plain": PLAIN, "code": with_code, "both": both}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    with installed({"node-1": "1xH100-80GB"}) as stack:
        api = await Longshore.connect(Settings(state_dir=stack.folder))
        try:
            for turn in range(options.jobs + 2):
                for kind, spec in kinds.items():
                    seconds = await one(stack, api, spec)
                    if turn > 1:  # the first build, and fill caches
                        taken[kind].append(seconds)
        finally:
            await api.close()
    plain, code_alone, whole = (1000 * statistics.median(taken[kind]) for kind in kinds)
    return {"plain_ms": plain, "code_ms": code_alone, "both_ms": whole, "ratio": whole / plain}


async def one(stack: Stack, api: Longshore, spec: JobSpec) -> float:
    """Run a job; return the seconds from its submit to the start of its process."""
    submitted = time.time()
    job_id = (await api.submit(spec)).job_id
    result = await api.wait(job_id)
    if result.state is not JobState.SUCCEEDED:
        sys.exit(f"{job_id} ended as {result.state}: {result.message}")
    key = PlacementKey(job_id=job_id, attempt=1)
    stores = (RunStore(folder) for folder in (stack.folder / "agents").glob("*/runs"))
    started = next(said["at"] for store in stores if (said := store.started(key)))
    return started - submitted


if __name__ == "__main__":
    main()
