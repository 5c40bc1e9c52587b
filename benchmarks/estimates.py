"""How far off the starts are that waiting jobs are told, on a trace by the planner of the product.

    python -m benchmarks.estimates --jobs FILE [--nodes 64] [--days N] [--rule age]
        [--durations exact|overstated|noisy|unknown|learnt] [--restart 90] [--speed-up 1] [--kept]
        [--json]

The first start that a cycle tells of an attempt is held against when it started. Jobs that are
stopped and wait again count once for each wait. As `longshore queue --estimates` for a live pool;
with `--kept` only of the starts for which a place was kept when they were told first.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.queueing import DURATIONS, SHIPPED, STATED, policies
from benchmarks.queueing_planner import Policies, Shipped
from benchmarks.queueing_world import Job, read_jobs
from longshore.models.placement import CyclePlan
from longshore.models.queue_view import StartErrors
from longshore.models.start_range import StartRange
from longshore.models.text import span
from longshore.scheduling.estimates import Told, start_errors
from longshore.scheduling.kept_starts import LATER_STARTS

_LATER_EVERY = 10.0
"""Seconds after which jobs without a start kept are told anew when they may start, as live."""


class Telling(Shipped):
    """The planner of the product; it remembers what it first said of each start."""

    def __init__(
        self,
        jobs: Sequence[Job],
        nodes: int,
        restart: float,
        policies: Policies,
        *,
        exact: bool = True,
        learns: bool = False,
        kept_alone: bool = False,
    ) -> None:
        super().__init__(jobs, nodes, restart, policies, exact=exact, learns=learns)
        self._later = 0 if kept_alone else LATER_STARTS
        self._told_later = -_LATER_EVERY
        self.waits = 0
        """Attempts that did not start in the moment when they came."""
        self._said: dict[tuple[str, int], tuple[datetime, datetime, StartRange | None]] = {}
        self._came: dict[tuple[str, int], datetime] = {}

    @property
    def told(self) -> list[Told]:
        """What was said of starts, beside how they came."""
        return [
            Told(made, start, self._came[key], between)
            for key, (made, start, between) in self._said.items()
        ]

    def tell_later(self) -> int:
        if self.now - self._told_later < _LATER_EVERY:
            return 0
        self._told_later = self.now
        return self._later

    def planned(self, made: CyclePlan, now: datetime) -> None:
        starts = {kept.job_id: kept.start for kept in made.reservations}
        ranges: dict[str, StartRange | None] = {}
        for each in made.decisions:
            if each.estimated_start is not None:
                starts[each.job_id], ranges[each.job_id] = each.estimated_start, each.start_range
        for job_id, start in starts.items():
            key = job_id, self.waiting[job_id].attempt
            self._said.setdefault(key, (now, start, ranges.get(job_id)))

    def begin(self, job: Job) -> None:
        self._came[job.id, job.attempt] = self.time
        self.waits += self.now > job.queued
        super().begin(job)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=Path, required=True, help="the trace, .csv or .csv.gz")
    parser.add_argument("--nodes", type=int, default=64, help="of 8 GPUs each")
    parser.add_argument("--days", type=float, help="only jobs submitted in the first days")
    parser.add_argument("--restart", type=float, default=90.0, help="seconds, after each stop")
    parser.add_argument("--speed-up", type=float, default=1.0, help="factor on submit times")
    parser.add_argument("--durations", choices=DURATIONS, default="exact")
    parser.add_argument("--rule", choices=SHIPPED, action="append", help="several times; else all")
    parser.add_argument("--kept", action="store_true", help="only starts with a place kept")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main() -> None:
    asked = _parser().parse_args()
    found: dict[str, object] = {}
    for rule in asked.rule or SHIPPED:
        jobs = read_jobs(
            asked.jobs, days=asked.days, speed_up=asked.speed_up, stated=asked.durations
        )
        world = Telling(
            jobs, asked.nodes, asked.restart, policies(rule, asked.restart),
            exact=asked.durations in STATED, learns=asked.durations == "learnt",
            kept_alone=asked.kept,
        )  # fmt: skip
        world.play("" if asked.json else rule)
        told = world.told
        rows = start_errors(told, world.time)
        if asked.json:
            found[rule] = [row.model_dump(mode="json") for row in rows]
            continue
        print(
            f"{rule}, durations {asked.durations}: {len(told):,} of {world.waits:,} waits had an "
            "estimate"
        )
        for row in rows:
            print(_line(row))
    if asked.json:
        json.dump(found, sys.stdout)


def _line(row: StartErrors) -> str:
    ahead = "longer before" if row.within is None else f"up to {span(row.within, units=1)} before"
    return (
        f"  told {ahead:<18} {row.jobs:>6,} jobs   half within {span(row.median):>8}   "
        f"9 in 10 within {span(row.p90):>8}   {100 * row.earlier / row.jobs:5.1f} % earlier   "
        f"{100 * row.later / row.jobs:5.1f} % later{_in_range(row)}"
    )


def _in_range(row: StartErrors) -> str:
    if not row.with_range:
        return ""
    held, sooner = (100 * n / row.with_range for n in (row.in_range, row.before_range))
    return f"   {held:5.1f} % of {row.with_range:,} ranges held, {sooner:.1f} % came sooner"


if __name__ == "__main__":
    main()
