"""How long it takes to say who pays.

    python -m benchmarks.funding [--placements 50000] [--envelopes 5000] [--tenants 1000]
                                 [--waiting 10000] [--changes 200] [--json]
    python -m benchmarks.funding --commits [--placements 1000] [--turns 8] [--at-once 25] [--json]

Tenants in a tree of three levels with ten below each, envelopes of three types of GPU spread
over them, and running jobs of one to eight GPUs, of which most have a payer. Beside it in the
same run a plain loop: it keeps its sums in dictionaries, and looks through all envelopes for each
job without a payer. Both give the same answer, which is checked. Then one change after
the other to what `KeptFunding` has, of which each is the end of a job or the start of one. Last
the queue of one pool, in the room that is left. Seconds are of the processor. Scenes are made
from seeds. Nothing runs. `--commits` measures the other half, in a database
(`benchmarks.funding_commits`).
"""

import argparse
import asyncio
import gc
import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import funding_commits
from benchmarks.kept_nodes import own_postgres
from longshore.models.funding import Envelope, FundingTerms, Lending
from longshore.scheduling.bulk.warm import warm
from longshore.scheduling.funding.cover import Cover
from longshore.scheduling.funding.evaluate import evaluate
from longshore.scheduling.funding.facts import Branch, Charge, Facts, Owned, Share, Use, Where
from longshore.scheduling.funding.holding import age
from longshore.scheduling.funding.kept import KeptFunding
from longshore.scheduling.funding.ladder import (
    Tree,
    is_for,
    is_open,
    most_specific_first,
    shares_with,
)
from longshore.scheduling.funding.turns import fund

NOW = datetime(2026, 11, 20, tzinfo=UTC)
_BELOW = 10
_TYPES = ("H100", "H200", "A100")
_POOLS = ("pool-1", "pool-2")
_Payers = dict[tuple[str, int, int, int], tuple[int, bool, datetime]]


@dataclass(frozen=True)
class Report:
    placements: int
    envelopes: int
    tenants: int
    waiting: int
    plain: float
    """Seconds for all that runs, by a plain loop."""
    whole: float
    """The same by `evaluate`."""
    change: float
    """The median for one change."""
    slowest_change: float
    queue: float
    """For the queue that waits, in a system that is full: a third of its jobs are covered more
    than once, since their owners take back what they would have had."""
    funded: int
    """Of the queue."""
    empty: float
    """For the same queue where nothing runs."""
    covered_anew: int
    """GPUs that ran without a payer and found one."""

    @property
    def times_whole(self) -> float:
        return self.plain / self.whole

    @property
    def times_change(self) -> float:
        return self.plain / self.change

    @property
    def us_a_job(self) -> float:
        return 1e6 * self.queue / self.waiting

    @property
    def us_a_job_empty(self) -> float:
        return 1e6 * self.empty / self.waiting


class _Jobs:
    """Jobs that ask for GPUs of which their tenant has an envelope."""

    def __init__(self, envelopes: dict[int, Owned], chance: random.Random) -> None:
        self._chance = chance
        self._of: dict[str, list[Envelope]] = {}
        for owned in envelopes.values():
            self._of.setdefault(owned.tenant, []).append(owned.spec)
        self._tenants = sorted(self._of)

    def one(self, job: str, since: datetime, pool: str | None = None) -> Use:
        """Return a job, of some pool or of this one."""
        chance = self._chance
        tenant = chance.choice(self._tenants)
        specs = [spec for spec in self._of[tenant] if pool is None or spec.pool in (None, pool)]
        spec = chance.choice(specs or self._of[tenant])
        pool = pool or spec.pool or chance.choice(_POOLS)
        where = Where(pool, spec.gpu_type, frozenset({("region", "eu")}))
        share = Share(0, where, tuple(range(chance.choice([1, 1, 2, 4, 8]))), 1000)
        return Use(job, 1, tenant, since, (share,), FundingTerms())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commits", action="store_true", help="what charges add to a commit")
    parser.add_argument("--placements", type=int, help="50,000, or 1,000 with --commits")
    parser.add_argument("--envelopes", type=int, default=5_000)
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, default=8, help="with --commits")
    parser.add_argument("--at-once", type=int, default=25, help="with --commits: of each pool")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if arguments.commits:
        _commits(arguments.placements or 1_000, arguments.turns, arguments.at_once, arguments.json)
        return
    made = measure(
        arguments.placements or 50_000, arguments.envelopes, arguments.tenants, arguments.waiting,
        arguments.changes, arguments.seed,
    )  # fmt: skip
    if arguments.json:
        names = "times_whole", "times_change", "us_a_job", "us_a_job_empty"
        rates = {name: getattr(made, name) for name in names}
        print(json.dumps(asdict(made) | rates, indent=2))
        return
    print(f"{made.placements:,} placements, {made.envelopes:,} envelopes, {made.tenants:,} "
          f"tenants; {made.covered_anew:,} GPUs are covered anew")  # fmt: skip
    print(f"a plain loop: {made.plain:.2f} s; at once: {made.whole:.3f} s, "
          f"{made.times_whole:.0f} times as fast")  # fmt: skip
    print(f"after one change: {1e3 * made.change:.3f} ms (the slowest "
          f"{1e3 * made.slowest_change:.2f} ms), {made.times_change:,.0f} times")  # fmt: skip
    print(f"{made.waiting:,} jobs that wait, {made.funded:,} with a payer: {made.us_a_job:.1f} us "
          f"a job; the same where nothing runs: {made.us_a_job_empty:.1f} us")  # fmt: skip


def _commits(placements: int, turns: int, at_once: int, as_json: bool) -> None:
    warm()
    with TemporaryDirectory(prefix="longshore-") as folder, own_postgres(Path(folder)) as url:
        made = asyncio.run(funding_commits.measure(url, placements, turns, at_once))
    if as_json:
        print(json.dumps(asdict(made) | {"of_the_rate": made.of_the_rate}, indent=2))
    else:
        print(funding_commits.told(made))


def measure(
    placements: int, envelopes: int, tenants: int, waiting: int, changes: int, seed: int = 1
) -> Report:
    """Return what each took, for one scene. The answers are the same, or this fails."""
    chance = random.Random(seed)
    facts = _scene(placements, envelopes, tenants, chance)
    gc.freeze()  # what lives on is not looked at again, whoever is measured
    began = time.process_time()
    found = evaluate(facts, NOW)
    whole = time.process_time() - began
    began = time.process_time()
    plain = Plain(facts, NOW).payers()
    plainly = time.process_time() - began
    kept = KeptFunding(facts, NOW)
    if _payers(one.charge for held in kept.room.held.values() for one in held.values()) != plain:
        raise AssertionError("a plain loop has another answer")
    covered = sum(len(one.gpus) for one in found.opened) - sum(
        len(one.charge.gpus) - len(one.lost) for one in found.ended
    )
    jobs = _Jobs(dict(facts.envelopes), chance)
    took = sorted(_changes(kept, facts, changes, jobs, chance))
    queue = [jobs.one(f"waits-{number}", NOW, _POOLS[0]) for number in range(waiting)]
    queue = [one._replace(shares=(_anywhere(one.shares[0]),)) for one in queue]
    covers, queued = _fund(facts, queue)
    _, empty = _fund(facts._replace(uses=(), charges=()), queue)
    return Report(
        placements, envelopes, tenants, waiting, plainly, whole, median(took), took[-1], queued,
        sum(cover.funded for cover in covers.values()), empty, covered,
    )  # fmt: skip


def _fund(facts: Facts, queue: list[Use]) -> tuple[dict[str, Cover], float]:
    room = KeptFunding(facts, NOW).room
    gc.freeze()
    began = time.process_time()
    covers = fund(room, queue)
    return covers, time.process_time() - began


def _changes(
    kept: KeptFunding, facts: Facts, count: int, jobs: _Jobs, chance: random.Random
) -> Iterator[float]:
    gone = chance.sample(list(facts.uses), count)
    for number, use in enumerate(gone):
        new = jobs.one(f"new-{number}", NOW)
        began = time.process_time()
        kept.end(use.job_id, use.attempt)
        kept.changes()
        yield time.process_time() - began
        began = time.process_time()
        kept.start(new)
        kept.changes()
        yield time.process_time() - began


def _scene(placements: int, envelopes: int, tenants: int, chance: random.Random) -> Facts:
    tree = {
        _name(number): Branch(_name((number - 1) // _BELOW) if number else None, NOW)
        for number in range(tenants)
    }
    all_of = {id: _envelope(id, tenants, chance) for id in range(1, envelopes + 1)}
    jobs = _Jobs(all_of, chance)
    uses = [
        jobs.one(f"job-{number}", NOW - timedelta(seconds=chance.randint(0, 86_400)))
        for number in range(placements)
    ]
    return Facts(tree, all_of, (), uses, list(_charges(tree, all_of, uses, chance)))


def _charges(
    tree: dict[str, Branch], envelopes: dict[int, Owned], uses: list[Use], chance: random.Random
) -> Iterator[Charge]:
    """Have own envelopes pay as they have room, and a few that are a little too small."""
    left = {id: round(owned.spec.gpus * 1000) for id, owned in envelopes.items()}
    of: dict[str, list[Owned]] = {}
    for owned in envelopes.values():
        of.setdefault(owned.tenant, []).append(owned)
    for id, use in enumerate(uses, 1):
        share = use.shares[0]
        for owned in of.get(use.tenant, ()):
            over = 2000 if owned.id % 500 == 0 else 0
            if is_for(owned.spec, share.where) and left[owned.id] + over >= share.amount:
                left[owned.id] -= share.amount
                if chance.random() < 0.97:
                    yield Charge(
                        use.job_id, 1, 0, owned.id, share.gpus, 1000, False, use.since, id
                    )
                break


def _envelope(id: int, tenants: int, chance: random.Random) -> Owned:
    tenant = _name(id % tenants)
    lending = Lending(to=(_name(chance.randrange(tenants)),), max=4) if id % 10 == 0 else None
    spec = Envelope(
        name=f"e{id}", gpus=chance.choice([16, 32, 64]), gpu_type=_TYPES[id // tenants % 3],
        pool=chance.choice([None, *_POOLS]), end=None if id % 3 else NOW + timedelta(days=id),
        lending=lending,
    )  # fmt: skip
    return Owned(id, tenant, spec)


def _anywhere(share: Share) -> Share:
    return share._replace(where=share.where._replace(labels=None))


def _name(number: int) -> str:
    return f"tenant-{number}"


def _payers(charges: Iterable[Charge]) -> _Payers:
    return {
        (one.job_id, one.attempt, one.rank, gpu): (one.envelope, one.lent, one.since)
        for one in charges
        for gpu in one.gpus
    }


class Plain:
    """Who pays, as one writes it down: for scenes with one share a job, and without caps."""

    def __init__(self, facts: Facts, now: datetime) -> None:
        self.facts = facts
        self.now = now
        self.tree = Tree(facts.tenants)
        self.uses = {use.job_id: use for use in facts.uses}
        self.envelopes = sorted(facts.envelopes.values(), key=most_specific_first)
        self.left = {one.id: round(one.spec.gpus * 1000) for one in self.envelopes}
        self.held: dict[int, list[tuple[int, Charge]]] = {one.id: [] for one in self.envelopes}
        self.paid: dict[str, set[int]] = {use.job_id: set() for use in facts.uses}
        valid = [(steps, one) for one in facts.charges if (steps := self.steps(one)) is not None]
        for steps, one in sorted(valid, key=lambda each: (each[0], age(each[1]))):
            count = min(max(self.left[one.envelope], 0) // one.milli, len(one.gpus))
            if count:
                self.pay(steps, one._replace(gpus=one.gpus[:count]))
        order = sorted(facts.uses, key=lambda use: (use.since, use.job_id))
        while sum(self.cover(use) for use in order):
            pass  # again: who has lost to another may find room elsewhere

    def steps(self, charge: Charge) -> int | None:
        owned, use = self.facts.envelopes[charge.envelope], self.uses[charge.job_id]
        fits = is_open(owned.spec, self.now) and is_for(owned.spec, use.shares[0].where)
        return self.tree.steps(use.tenant, owned.tenant) if fits else None

    def pay(self, steps: int, charge: Charge) -> None:
        self.left[charge.envelope] -= charge.amount
        self.held[charge.envelope].append((steps, charge))
        self.paid[charge.job_id].update(charge.gpus)

    def cover(self, use: Use) -> bool:
        """Have somebody pay for what nobody does; whether all of it is paid for now."""
        share = use.shares[0]
        gpus = [gpu for gpu in share.gpus if gpu not in self.paid[use.job_id]]
        if not gpus:
            return False
        asked = [
            (steps, owned.id)
            for owned in self.envelopes
            if (steps := self.tree.steps(use.tenant, owned.tenant)) is not None
            and shares_with(owned.spec, steps)
            and is_open(owned.spec, self.now)
            and is_for(owned.spec, share.where)
        ]
        found: list[tuple[int, int, int]] = []
        want = len(gpus)
        for rung in sorted({steps for steps, _ in asked}):
            here = [id for steps, id in asked if steps == rung]
            for back in (False, True):
                for id in here:
                    used = sum(n for _, one, n in found if one == id) * share.milli
                    room = self.left[id] - used
                    if back:
                        room += sum(one.amount for steps, one in self.held[id] if steps > rung)
                    count = min(max(room, 0) // share.milli, want)
                    if count:
                        found.append((rung, id, count))
                        want -= count
        if want:
            return False
        for steps, id, count in found:
            while self.left[id] < count * share.milli:
                self.take_back(id)
            taken, gpus = tuple(gpus[:count]), gpus[count:]
            self.pay(steps, Charge(use.job_id, 1, 0, id, taken, share.milli, False, self.now))
        return True

    def take_back(self, id: int) -> None:
        """Take a GPU from the farthest, of those from the youngest."""
        last = max(self.held[id], key=lambda each: (each[0], age(each[1])))
        self.held[id].remove(last)
        steps, charge = last
        *others, lost = charge.gpus
        if others:
            self.held[id].append((steps, charge._replace(gpus=tuple(others))))
        self.left[id] += charge.milli
        self.paid[charge.job_id].discard(lost)

    def payers(self) -> _Payers:
        return _payers(one for held in self.held.values() for _, one in held)


if __name__ == "__main__":
    main()
