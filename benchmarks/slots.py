"""Which models are loaded onto GPUs: how long a plan takes, and what it is worth.

    python -m benchmarks.slots [--gpus 10000] [--models 1000] [--json]
    python -m benchmarks.slots --data FOLDER [--skew 1.5] [--seeds 1-3] [--loads 15,60] [--json]

Without `--data`: the plan of slots (`scheduling.serving.slot_plan`) on a full fleet of nodes of
eight GPUs with a third of the slots stale, after one change at a time, where so many models wait.

With `--data`: 24 models on 4 GPUs of 80 GB, on a virtual clock. FOLDER has the request traces
`azure_llm_2023_conv_dev.csv.gz` and `azure_llm_2023_code_dev.csv.gz` (times, tokens of prompt and
answer; no models): a seed draws the model of each request, the n-th with a part of 1 / n ** skew,
and who has which memory, 8 to 64 GB. That plan stands beside Ollama's rule, least recently
used with one load at a time; the same with one on each GPU; and Helix's, which lets the oldest
stale engine leave. For all of them one engine loads on a GPU at a time.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.slots_plans import Times, measure
from benchmarks.slots_ways import lru, oldest_first, ours
from benchmarks.slots_world import Request, Tally, Way, World, requests_of
from longshore.scheduling.serving.slots import SlotPolicy

TRACES = ("conv", "code")
_FILE = "azure_llm_2023_{}_dev.csv.gz"
_OURS = "ours"
_SERIAL = "ours, one load at a time"
_LRU = "LRU, one load at a time"
_LIKE = "- beside ours with one"
"""Ours with one load at a time, beside that."""
WAYS: dict[str, Callable[[], Way]] = {
    _OURS: lambda: ours(SlotPolicy()),
    _SERIAL: lambda: ours(SlotPolicy(loads_at_once=1)),
    _LRU: lambda: lru(on_each_gpu=False),
    "LRU, one on each GPU": lambda: lru(on_each_gpu=True),
    "oldest stale first": lambda: oldest_first,
}


@dataclass(frozen=True)
class Row:
    """What one way came to on one trace: means over the seeds."""

    trace: str
    load: float
    """Seconds."""
    way: str
    mean: float
    """Seconds to the first token."""
    p99: float
    loads: float
    mean_ratio: float
    """Ours of it: below 1, ours is better."""
    p99_ratio: float
    loads_ratio: float
    seeds_lower: int
    """On how many seeds the mean of ours is at least 15 % lower."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with the request traces")
    parser.add_argument("--skew", type=float, default=1.5, help="how much the first are asked for")
    parser.add_argument("--seeds", default="1-3", help="1-3, or 4,5")
    parser.add_argument("--loads", default="15,60", help="load times in seconds")
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=15, help="plans of which a median is")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.data is None:
        times = [
            measure(options.gpus, options.models, waiting, options.rounds)
            for waiting in (1, 20, 100, options.models)
        ]
        return _print_json(times) if options.json else show_times(times)
    loads = [float(each) for each in options.loads.split(",")]
    rows: list[Row] = []
    if not options.json:
        _head()
    for found in replay(options.data, options.skew, seeds_of(options.seeds), loads):
        rows += found
        if not options.json:
            show(found)
    if options.json:
        _print_json(rows)
    return None


def seeds_of(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    if dash:
        return list(range(int(first), int(last) + 1))
    return [int(each) for each in text.split(",")]


def replay(
    folder: Path, skew: float, seeds: Sequence[int], loads: Sequence[float]
) -> Iterator[list[Row]]:
    """Yield the rows of each trace and load time."""
    for trace in TRACES:
        made = [requests_of(folder / _FILE.format(trace), seed, skew) for seed in seeds]
        for load in loads:
            yield rows_of(trace, load, made)


def rows_of(trace: str, load: float, made: Sequence[tuple[list[Request], list[int]]]) -> list[Row]:
    tallies = {
        name: [World(requests, sizes, load).run(way()) for requests, sizes in made]
        for name, way in WAYS.items()
    }
    rows = [_row(trace, load, name, own, tallies[_OURS]) for name, own in tallies.items()]
    like = _row(trace, load, _LIKE, tallies[_LRU], tallies[_SERIAL])
    at = list(WAYS).index(_LRU) + 1
    return [*rows[:at], like, *rows[at:]]


def _row(trace: str, load: float, name: str, own: Sequence[Tally], mine: Sequence[Tally]) -> Row:
    """Return a row, with ours as a ratio of it."""

    def mean(of: Sequence[Tally], name: str) -> float:
        return statistics.fmean(getattr(tally, name) for tally in of)

    first, p99, loads = mean(own, "mean"), mean(own, "p99"), mean(own, "loads")
    return Row(
        trace, load, name, first, p99, loads,
        mean(mine, "mean") / first, mean(mine, "p99") / p99, mean(mine, "loads") / loads,
        sum(mine[n].mean <= 0.85 * own[n].mean for n in range(len(own))),
    )  # fmt: skip


def _head() -> None:
    print(f"{'':46}{'first token':>17}{'':8}{'ours / it':>26}")
    print(f"{'trace':6}{'load':>6}  {'way':26}{'mean s':>12}{'p99 s':>9}{'loads':>8}"
          f"{'mean':>10}{'p99':>8}{'loads':>8}{'15 % lower':>14}")  # fmt: skip


def show(rows: Sequence[Row]) -> None:
    for row in rows:
        if row.way == _LIKE:
            line = f"{'':14}{row.way:55}"
        else:
            line = (
                f"{row.trace:6}{row.load:>4.0f} s  {row.way:26}{row.mean:>12.1f}{row.p99:>9.0f}"
                f"{row.loads:>8.0f}"
            )
        if not row.way.startswith(_OURS):
            line += (
                f"{row.mean_ratio:>10.2f}{row.p99_ratio:>8.2f}{row.loads_ratio:>8.2f}"
                f"{row.seeds_lower:>9} seeds"
            )
        print(line, flush=True)


def show_times(times: Sequence[Times]) -> None:
    first = times[0]
    print(f"{first.models:,} models, {first.slots:,} slots on {first.gpus:,} GPUs")
    print(f"{'models that wait':>18}{'loads':>8}{'first plan ms':>15}{'after one change ms':>21}")
    for each in times:
        print(f"{each.waiting:>18,}{each.loads:>8,}{each.first:>15.0f}{each.after_change:>21.0f}")


def _print_json(rows: Sequence[Row] | Sequence[Times]) -> None:
    print(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
