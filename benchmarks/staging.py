"""How long a GPU waits for data that was fetched while its job waited, beside fetching inside it.

    python -m benchmarks.staging [--megabytes 240] [--rate 20] [--json]

An installation of its own with one simulated GPU. A source on this machine serves a data set over
HTTP, at no more than so many megabytes a second in all. A first job holds the GPU, and writes to
the node's disk all the time. A second one waits for it, in turns: one whose data set the node
fetches meanwhile (`data`), and one that fetches the same files itself once it runs.

A GPU waits from the placement of the second job until the whole data set is there. What the first
job wrote a second while the node fetched stands beside what it wrote with nobody beside it.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

from benchmarks.installation import forget_environment, installed
from longshore.client.api import Longshore
from longshore.client.process import leave, run
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.settings import Settings

FILES = 24
PIECE = 262_144
WRITES = """
import os, sys, time
data, written, began = os.urandom(4_000_000), 0, time.monotonic()
file = os.open("written", os.O_RDWR | os.O_CREAT)
second = began
while time.monotonic() - began < float(sys.argv[1]):
    os.pwrite(file, data, written % 100_000_000)
    os.fdatasync(file)
    written += len(data)
    if time.monotonic() - second > 0.5:
        print(time.time(), written / (time.monotonic() - second) / 1e6)
        second, written = time.monotonic(), 0
"""
READS = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["LONGSHORE_DATA_DATA"])
assert len(list(folder.iterdir())) == int(sys.argv[1]), list(folder.iterdir())
print(time.time())
"""
FETCHES = """
import sys, time, urllib.request
for number in range(int(sys.argv[1])):
    urllib.request.urlretrieve(f"{sys.argv[2]}part-{number}", f"part-{number}")
print(time.time())
"""


class Throttle:
    """So many bytes a second for all that share it."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()
        self.last = 0.0
        """When the last piece was sent."""

    def wait(self, size: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / self._rate
            rest = self._free_at - time.monotonic()
        time.sleep(max(rest, 0.0))
        self.last = time.time()


class Source(SimpleHTTPRequestHandler):
    """Serves the files of a folder at the pace of a throttle."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args: object, throttle: Throttle, directory: str) -> None:
        self._throttle = throttle
        super().__init__(*args, directory=directory)  # pyright: ignore[reportArgumentType]

    def copyfile(self, source: BinaryIO, outputfile: BinaryIO) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        while piece := source.read(PIECE):
            self._throttle.wait(len(piece))
            outputfile.write(piece)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path, throttle: Throttle) -> Iterator[str]:
    """Serve a folder at the pace of a throttle, and yield its URL."""
    handler = partial(Source, throttle=throttle, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=240, help="size of the data set")
    parser.add_argument("--rate", type=int, default=20, help="MB/s that its source gives")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    forget_environment()
    with tempfile.TemporaryDirectory() as folder:
        found = run(measure(Path(folder), options.megabytes, options.rate))
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{options.megabytes} MB in {FILES} files, from a source of {options.rate} MB/s")
        print(f"  the GPU waits for a fetch inside the job  {found['inside_s']:.2f} s")
        print(f"  the GPU waits where it was fetched before {found['staged_s']:.2f} s, "
              f"{found['ratio']:.1%}")  # fmt: skip
        print(f"  meanwhile its neighbour writes {found['beside_mb_s']:.0f} of "
              f"{found['alone_mb_s']:.0f} MB/s, {found['kept']:.2f}")  # fmt: skip
    leave(0)


async def measure(folder: Path, megabytes: int, rate: int) -> dict[str, float]:
    data = folder / "data"
    data.mkdir()
    for number in range(FILES):
        (data / f"part-{number}").write_bytes(os.urandom(megabytes * 1_000_000 // FILES))
    holds = 1.5 * megabytes / rate + 3
    throttle = Throttle(rate * 1e6)
    with (
        served(data, throttle) as url,
        installed({"node-1": "1xH100-80GB"}) as stack,
    ):
        api = await Longshore.connect(Settings(state_dir=stack.folder))
        try:
            bench = Bench(api, holds, throttle)
            alone, _ = await bench.turn(None)
            beside, staged = await bench.turn(
                [sys.executable, "-c", READS, str(FILES)], {"data": {"from": url}}
            )
            _, inside = await bench.turn([sys.executable, "-c", FETCHES, str(FILES), url])
        finally:
            await api.close()
    return {
        "inside_s": inside, "staged_s": staged, "ratio": staged / inside,
        "alone_mb_s": alone, "beside_mb_s": beside, "kept": beside / alone,
    }  # fmt: skip


class Bench:
    """Jobs of one GPU, one after the other."""

    def __init__(self, api: Longshore, holds: float, throttle: Throttle) -> None:
        self._api = api
        self._holds = holds
        self._throttle = throttle

    async def turn(
        self, second: list[str] | None, data: dict[str, dict[str, str]] | None = None
    ) -> tuple[float, float]:
        """Run a job that holds the GPU, with a second one behind it. Return the megabytes a second
        that the first one wrote while the source sent, in the median of half seconds, and the
        seconds that the GPU waited for the second one's data."""
        first = await self._submit(
            [sys.executable, "-c", WRITES, str(self._holds)], f"{self._holds:.0f}s", {}
        )
        began = time.time()
        after = await self._submit(second, "10s", data or {}) if second else None
        rates = [tuple(map(float, line.split())) for line in await self._printed(first)]
        end = self._throttle.last if data else time.time()
        wrote = statistics.median(rate for at, rate in rates if began + 1 < at < end)
        if after is None:
            return wrote, 0.0
        there = float((await self._printed(after))[-1])
        (attempt,) = (await self._api.status(after)).attempts
        assert attempt.placed_at
        return wrote, there - attempt.placed_at.timestamp()

    async def _submit(
        self, command: list[str], expected: str, data: dict[str, dict[str, str]]
    ) -> str:
        spec = JobSpec.model_validate(
            {"name": "staging", "gpus": 1, "command": command, "data": data,
             "expected_duration": expected}
        )  # fmt: skip
        return (await self._api.submit(spec)).job_id

    async def _printed(self, job_id: str) -> list[str]:
        """Wait for a job, and return the lines that it has printed."""
        result = await self._api.wait(job_id)
        said = b"".join([piece async for piece in self._api.logs(job_id)]).decode()
        if result.state is not JobState.SUCCEEDED:
            sys.exit(f"{job_id} ended as {result.state}: {result.message}: {said}")
        return said.splitlines()


if __name__ == "__main__":
    main()
