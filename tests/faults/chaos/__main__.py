"""Random faults while many jobs run; then everything must add up.

    make chaos MINUTES=10 [SEED=4711]

A fleet of simulated nodes gets jobs of every kind for some minutes, DAGs, arrays and elastic jobs
among them. Meanwhile processes are killed or frozen and jobs are held, released and cancelled, at
moments that the seed chooses. Then all is left in peace, and the invariants are looked at: no GPU
leased twice beyond a loan of a gang's spare, no job run twice at once, no element of an array
twice in an attempt, no job lost, no engine left of a service, every DAG ended as its conditions
say, no work lost beyond the last stored checkpoint, results as without faults, database and
workflows of one mind, the ledger equal to the accounts of the simulated market. Ends with 1 where
any does not hold.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.installation import forget_environment
from longshore.client.process import leave, run
from tests.faults.buyers import found_in
from tests.faults.chaos import budgets, lending
from tests.faults.chaos.counting import counting_of
from tests.faults.chaos.faults import FAULTS
from tests.faults.chaos.load import submit_for
from tests.faults.chaos.machines import small_disks
from tests.faults.chaos.many import ManyAsOne
from tests.faults.chaos.scene import Scene
from tests.faults.chaos.schedule import Moment, moments
from tests.faults.chaos.serving import Serving
from tests.faults.chaos.trading import Trading
from tests.faults.fleet import PATIENCE, node_names, running_fleet
from tests.faults.invariants import check
from tests.support.local_stack import temporary_folder
from tests.support.market import market_with_machines
from tests.support.waiting import eventually

NODES = 3
EVERY = 6.0
"""Seconds between two faults, on average."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat its faults")
    parser.add_argument("--every", type=float, default=EVERY, help="seconds between two faults")
    parser.add_argument("--only", action="append", choices=sorted(FAULTS), help="this fault alone")
    arguments = parser.parse_args()
    forget_environment()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    names = arguments.only or sorted(FAULTS)
    leave(run(chaos(seed, 60 * arguments.minutes, names, arguments.every)))


async def chaos(seed: int, seconds: float, names: list[str], every: float) -> int:
    """Return the exit code: 0 where every invariant holds."""
    _say(f"seed {seed}: {seconds / 60:g} minutes of faults on {NODES} simulated nodes")
    planned = moments(seed, seconds, names, every)
    with (
        temporary_folder() as folder,
        market_with_machines(folder / "room") as market,
        found_in(folder, market),
        small_disks(folder, node_names(NODES)) as can_fill,
    ):
        if not can_fill:
            _say("this account may not mount anything: no disk will be full")
        async with running_fleet(folder, nodes=NODES, relayed=True) as fleet:
            scene = Scene(
                fleet, counting_of(fleet), Trading(fleet, market), ManyAsOne(fleet), Serving(fleet)
            )
            await scene.trading.begin()
            await scene.many.begin()
            await scene.serving.begin()
            budgets.begin(scene)
            lending.begin(scene)
            looking = asyncio.create_task(scene.counting.keep_looking())
            asking = asyncio.create_task(scene.serving.keep_asking())
            done, failed = await _run(scene, planned, seed, seconds)
            began = time.monotonic()
            violations = await _violations(scene) + failed + scene.counting.violations()
            violations += await scene.trading.violations() + lending.violations(scene)
            looking.cancel()
            asking.cancel()
            _report(scene, planned, done, violations, time.monotonic() - began)
        if violations:
            _say(f"what its processes said is kept in {_keep(folder)}")
    if violations:
        _say(f"again: make chaos MINUTES={seconds / 60:g} SEED={seed}")
    return 1 if violations else 0


async def _run(
    scene: Scene, planned: list[Moment], seed: int, seconds: float
) -> tuple[Counter[str], list[str]]:
    """Run load and faults side by side; return how often each was done, and what broke."""
    done: Counter[str] = Counter()
    failed: list[str] = []
    began = asyncio.get_running_loop().time()

    async def strike(moment: Moment) -> None:
        try:
            what = await FAULTS[moment.fault](scene, random.Random(moment.seed))
        except Exception as error:  # the others go on; the run has failed
            failed.append(f"{moment.fault} at {moment.at:g} s: {error!r}")
            return
        if what:
            done[moment.fault] += 1
        _say(f"{moment.at:7.1f} s  {moment.fault}: {what or 'there was none'}")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(submit_for(scene, seed + 1, seconds))
        for moment in planned:
            # To the moment that the seed chose.
            await asyncio.sleep(began + moment.at - asyncio.get_running_loop().time())
            tasks.create_task(strike(moment))
    return done, failed


async def _violations(scene: Scene) -> list[str]:
    _say("no more faults: waiting for the last jobs")
    await scene.mend()
    await budgets.give_enough(scene)
    found: list[str] = []
    try:
        await _all_ended(scene)
        of_dags, found = await scene.many.to_check()
        found += await scene.serving.violations()
        await check(scene.fleet, [*scene.submitted, *of_dags], scene.cancelled)
    except TimeoutError:
        return ["the workflows of jobs did not answer"]
    except AssertionError as error:
        return [*found, *str(error).splitlines()]
    return found


async def _all_ended(scene: Scene) -> None:
    """Wait until every job has ended, however slow this machine is, while any ends at all."""

    def unfinished() -> list[str]:
        return [*scene.unfinished(), *scene.many.unfinished()]

    left = set(await asyncio.to_thread(unfinished))
    while left:

        async def some_ended(before: frozenset[str] = frozenset(left)) -> bool:
            left.intersection_update(await asyncio.to_thread(unfinished))
            assert left < before, "did not end: " + ", ".join(sorted(left))
            return True

        await eventually(some_ended, timeout=2 * PATIENCE, interval=1)


def _report(
    scene: Scene,
    planned: list[Moment],
    done: Counter[str],
    violations: list[str],
    settled: float,
) -> None:
    asked = Counter(moment.fault for moment in planned)
    width = max(map(len, FAULTS))
    print(f"{'fault':{width}}  planned  done")
    for name in sorted(asked):
        print(f"{name:{width}}  {asked[name]:7}  {done[name]:4}")
    rows = scene.fleet.rows(
        "SELECT count(*) AS jobs, sum(attempts) AS attempts,"
        " count(*) FILTER (WHERE end_state = 'SUCCEEDED') AS succeeded,"
        " count(*) FILTER (WHERE end_state = 'CANCELLED') AS cancelled FROM jobs"
        " WHERE id NOT IN (SELECT job_id FROM replicas)"
    )
    found = rows[0]
    print(
        f"\n{found['jobs']} jobs: {found['succeeded']} succeeded, {found['cancelled']} cancelled,"
        f" in {found['attempts']} attempts; at rest {settled:.0f} s after the load ended"
    )
    print(
        f"{len(scene.counting.jobs())} of them saved and counted;"
        f" {scene.counting.resumed()} of their attempts went on from a checkpoint"
    )
    print(scene.many.summary())
    (stops,) = scene.fleet.rows(
        "SELECT count(*) AS all, count(*) FILTER (WHERE priority = for_priority) AS alike"
        " FROM preemptions"
    )
    print(f"{stops['all']} preemptions, {stops['alike']} of them for a job of the same class")
    print(
        f"{scene.trading.purchases()} purchases at the simulated market, whose money and"
        " machines were compared with the ledger"
    )
    print(budgets.summary(scene))
    print(lending.summary(scene))
    print(scene.serving.summary())
    print(f"violations: {len(violations)}")
    for violation in violations:
        print(f"  {violation}")


def _keep(folder: Path) -> Path:
    """Copy the logs of all processes, and the journal of the jobs, to where they stay."""
    kept = Path(tempfile.mkdtemp(prefix="longshore-chaos-"))
    for name in ("run", "journal"):
        shutil.copytree(folder / name, kept / name)
    return kept


def _say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
