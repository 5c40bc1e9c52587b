"""How long a folder takes into the artifact store, beside `rsync -a` of the same one.

    python -m benchmarks.upload [--files 50000] [--size 20kB] [--changed 0.01] [--json]

Makes a folder of random files, and stores it three times in a local store: as new, unchanged, and
with a part of its files changed. Each time counts all that a submit does: the walk, reading,
sending, and the rows in PostgreSQL. Where rsync is installed it copies the same folder at the same
steps, to the same disk. The files lie in the cache of the system for both. Ours are on the disk
when it returns, and those of rsync are not.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.installation import forget_environment, installed
from longshore.activities.artifacts.store import ArtifactStore
from longshore.activities.database import Database
from longshore.client.code_cache import CodeCache
from longshore.client.code_files import find_files
from longshore.client.code_upload import Uploaded, UploadTo, upload
from longshore.models.units import format_bytes, parse_gb

_IN_A_FOLDER = 50


@dataclass(frozen=True)
class Step:
    """One pass over the folder."""

    name: str
    seconds: float
    bytes: int
    """Sent."""
    objects: int
    """That the snapshot lies in."""
    rsync_seconds: float | None

    @property
    def ratio(self) -> float | None:
        """Our time / that of rsync."""
        return None if self.rsync_seconds is None else self.seconds / self.rsync_seconds


def main() -> None:
    arguments = _parse()
    forget_environment()
    size = round(parse_gb(arguments.size) * 1e9)
    with installed({}) as stack, tempfile.TemporaryDirectory(prefix="longshore-upload-") as folder:
        url = stack.settings.resolve_database_url()
        steps = asyncio.run(measure(Path(folder), url, arguments.files, size, arguments.changed))
    if arguments.json:
        print(json.dumps([{**asdict(step), "ratio": step.ratio} for step in steps], indent=2))
    else:
        _print(steps, arguments.files * size)


async def measure(
    root: Path, database_url: str, files: int, size: int, changed: float
) -> list[Step]:
    """Return the steps on a folder of so many files of so many bytes, a part of which changes."""
    folder = root / "code"
    _write(folder, range(files), size)
    database = Database(database_url)
    rsync = shutil.which("rsync")
    steps: list[Step] = []
    try:
        with CodeCache(root / "code.sqlite") as cache:
            to = UploadTo(database, ArtifactStore((root / "store").as_uri()), "default", cache)
            for name, part in (("new", 0.0), ("unchanged", 0.0), ("changed", changed)):
                _write(folder, random.Random(7).sample(range(files), round(files * part)), size)
                # The next look must not be within the tick of a change: no submit is so quick.
                await asyncio.sleep(2.1)
                os.sync()
                begun = time.perf_counter()
                uploaded = await upload(folder, find_files(folder, limit=None), to)
                seconds = time.perf_counter() - begun
                os.sync()
                theirs = _seconds(lambda: _rsync(rsync, folder, root / "copy")) if rsync else None
                steps.append(Step(name, seconds, uploaded.sent_bytes,
                                  _objects(to, uploaded), theirs))  # fmt: skip
    finally:
        await database.close()
    return steps


def _write(folder: Path, numbers: "range | list[int]", size: int) -> None:
    for number in numbers:
        path = folder / str(number // _IN_A_FOLDER) / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))


def _objects(to: UploadTo, uploaded: Uploaded) -> int:
    return len(to.store.snapshot(to.tenant, uploaded.code.snapshot or "").objects)


def _rsync(program: str, folder: Path, copy: Path) -> None:
    subprocess.run([program, "-a", "--delete", f"{folder}/", copy], check=True)


def _seconds(do: Callable[[], None]) -> float:
    begun = time.perf_counter()
    do()
    return time.perf_counter() - begun


def _print(steps: list[Step], total: int) -> None:
    print(f"{'':<10} {'seconds':>8} {'rsync -a':>9} {'ratio':>6} {'sent':>9} {'of all':>7} "
          f"{'objects':>8}")  # fmt: skip
    for step in steps:
        theirs = "-" if step.rsync_seconds is None else f"{step.rsync_seconds:.2f}"
        ratio = "-" if step.ratio is None else f"{step.ratio:.2f}"
        print(
            f"{step.name:<10} {step.seconds:>8.2f} {theirs:>9} {ratio:>6} "
            f"{format_bytes(step.bytes):>9} {step.bytes / total:>7.1%} {step.objects:>8,}"
        )
    if steps[0].rsync_seconds is None:
        print("rsync is not installed here: its times are missing")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--size", default="20kB", help="of each file")
    parser.add_argument("--changed", type=float, default=0.01, help="part of the files")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
