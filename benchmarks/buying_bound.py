"""Less than this nobody can pay who serves the jobs in time, whatever is known of the future.

A mixed-integer program over steps of five minutes with everything known in advance. Its linear
relaxation (jobs and nodes may be cut) is solved to the end; with more time the solver narrows it,
and what counts is what it has proven when it stops. Whatever a replay can do that starts its jobs
in time is a solution that costs no more, so it cannot be below:

- It knows how long each job really runs, what rivals will take and which rows will be gone. None
  of its machines is silent, and none idles before it is stopped. A rival leaves of an ask what he
  leaves where nobody else buys: whoever buys leaves him, and what comes after him, no more.
- A job starts once, within `FAST_WITHIN` or by its latest start, and holds its GPUs until its end.
  At any time the jobs of a tier fit in the GPUs that are up; those that want 2, 4 or 8 fit in
  machines that have as many. Tiers share nothing, so each is a program of its own.
- A node of the exchange is bought from one ask while that is on the book, and no ask sells more
  nodes than it has. It is paid at the price of the ask for at least the shortest window, and not
  longer than the ask lasts. In its first step it comes up, in its last one no job runs (the packer
  keeps a margin of as much). Windows end on any step, not only on whole quarters.
- A machine of the offer list is bought while its row is there, and paid at the price of that
  moment until it is stopped, at any step, never idle if need be. In its first step it comes up.
- For FAST, inequalities are added that hold in whole machines (`benchmarks/buying_cuts.py`), as
  long as they raise the bound. For FLEX, whose starts are spread over hours, they are left out:
  they raised it by 3 % where it was tried, and took minutes.
- Left out, which only lowers the optimum: which machine a job runs on (jobs may move between
  machines), what tiers take from each other's asks. Prices are rounded down to a ladder of 1 %.
  Asks behind as many nodes as there are jobs, which are no dearer
  and last as long, are not looked at: no plan needs more nodes than jobs.
- Nobody sells time again: what a plan gets for it is less than what was paid, so that its window
  might as well have ended there.

With `stays` a FAST job ends on the kind of machine that it began on: a node, or a machine of the
offer list of one size. It may still move between machines of that kind. No replay moves a job, so
this is a bound of all of them too; it takes longer.

Who does not know when jobs end (`knows_ends`) has to pay a node of the exchange until each job
that began there has had its time, since it is placed nowhere where it may not end. All else he
knows, so that nobody is below this either who sells no time again. With `sells` he may sell it,
at each moment to the best of the bids that have come before: nobody gets more.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil, floor, log

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, linprog, milp
from scipy.sparse import coo_array, csr_array, vstack

from benchmarks.buying_cuts import Work, broken
from benchmarks.buying_selling import best_bids
from benchmarks.buying_world import SIZES, START, STEP, Ask, World, start_by
from longshore.models.job import Tier
from longshore.models.job_request import JobRequest

FAST_WITHIN = timedelta(minutes=15)
"""FAST jobs start this late at the latest."""
SHORTEST = timedelta(hours=1)
"""No window is shorter."""
_LONGEST = timedelta(hours=24)
_NODE = 8
_LADDER = 0.01
_ROUNDS = 12
"""Of inequalities for whole machines, at most."""
_WORTH_A_ROUND = 0.0005
_STEPS_AN_HOUR = int(timedelta(hours=1) / STEP)


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """Dollars: what is proven, and what a solution in whole numbers costs (infinite: none)."""

    proven: float
    reached: float


def lower_bound(
    world: World,
    *,
    within: timedelta = FAST_WITHIN,
    seconds: float = 0,
    knows_ends: bool = True,
    stays: bool = False,
    sells: bool = False,
) -> Bound:
    """Return the bound for both tiers; `seconds` are what whole numbers may take for each.

    Who does not know when jobs end pays a node of the exchange for as long as each job there may
    run; all else he knows, and his machines of the offer list stop with their jobs. With `stays` a
    FAST job ends on the kind of machine that it began on. With `sells`, which goes with
    `knows_ends=False`, a node that jobs have left early is sold to the best bid of each moment.
    """
    found = [
        of_tier(
            world, tier, within, seconds,
            knows_ends=knows_ends, stays=stays, sells=sells,
        )
        for tier in Tier
    ]  # fmt: skip
    return Bound(sum(b.proven for b in found), sum(b.reached for b in found))


@dataclass
class _Program:
    """Variables and rows of a program as they come."""

    cost: list[float] = field(default_factory=list[float])
    most: list[float] = field(default_factory=list[float])
    whole: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])
    columns: list[int] = field(default_factory=list[int])
    values: list[float] = field(default_factory=list[float])
    least_of: list[float] = field(default_factory=list[float])
    most_of: list[float] = field(default_factory=list[float])

    def variable(self, cost: float = 0.0, most: float = np.inf, *, whole: bool = False) -> int:
        self.cost.append(cost)
        self.most.append(most)
        self.whole.append(int(whole))
        return len(self.cost) - 1

    def row(self, terms: Iterable[tuple[int, float]], least: float, most: float = np.inf) -> None:
        for column, value in terms:
            self.rows.append(len(self.least_of))
            self.columns.append(column)
            self.values.append(value)
        self.least_of.append(least)
        self.most_of.append(most)

    def relaxed(self) -> tuple[float, Floats]:
        """Return the optimum where everything may be cut; interior points are fast here."""
        matrix, least, most = self._matrix()
        equal, above = least == most, np.isinf(most)
        found = linprog(
            self.cost,
            A_ub=vstack([-matrix[above], matrix[~equal & ~above]]).tocsr(),
            b_ub=np.concatenate([-least[above], most[~equal & ~above]]),
            A_eq=matrix[equal],
            b_eq=least[equal],
            bounds=np.column_stack([np.zeros(len(self.most)), self.most]),
            method="highs-ipm",
        )
        if not found.success:
            raise RuntimeError(f"the linear program has no optimum: {found.message}")
        return float(found.fun), found.x

    def in_whole(self, seconds: float, relaxed: float) -> Bound:
        matrix, least, most = self._matrix()
        found = milp(
            np.array(self.cost),
            integrality=np.array(self.whole),
            bounds=Bounds(0, np.array(self.most)),  # pyright: ignore[reportArgumentType]
            constraints=(matrix, least, most),
            options={"time_limit": seconds, "mip_rel_gap": 0.002},
        )
        proven = found.mip_dual_bound
        reached = float(found.fun) if found.x is not None else np.inf
        return Bound(relaxed if proven is None else max(float(proven), relaxed), reached)

    def _matrix(self) -> tuple[csr_array, Floats, Floats]:
        """Return the rows, and what each comes to at least and at most."""
        shape = (len(self.least_of), len(self.cost))
        matrix = coo_array((self.values, (self.rows, self.columns)), shape=shape).tocsr()
        return matrix, np.array(self.least_of), np.array(self.most_of)


Terms = dict[tuple[int, int], list[tuple[int, float]]]
"""What is up at a step in machines of a size: variables and how many GPUs each stands for."""


def of_tier(
    world: World,
    tier: Tier,
    within: timedelta = FAST_WITHIN,
    seconds: float = 0,
    *,
    knows_ends: bool = True,
    stays: bool = False,
    sells: bool = False,
) -> Bound:
    """Return the bound for the jobs of one tier: a program of its own."""
    jobs = [job for job in world.jobs if job.tier is tier]
    if not jobs:
        return Bound(0.0, 0.0)
    program = _Program()
    works = list(_works(program, jobs, within, world.lasts))
    longest = timedelta(0) if knows_ends else max(job.expected_duration for job in jobs)
    steps = 1 + max(step for work in works for step in work.running) + longest // STEP
    nodes: Terms = defaultdict(list)
    sold: Terms = defaultdict(list)
    pods: Terms = defaultdict(list)
    _nodes(program, nodes, world, len(jobs), steps, sold if sells else None)
    _pods(program, pods, world, steps)
    up = {key: nodes.get(key, []) + pods.get(key, []) for key in {*nodes, *pods}}
    kinds = [(_NODE, nodes)]
    kinds += [(size, {key: pods[key] for key in pods if key[0] == size}) for size in SIZES]
    together: list[tuple[Sequence[Work], Terms]] = [(works, up)]
    if (stays and tier is Tier.FAST) or not knows_ends:
        paid = {key: [*terms, *sold.get(key, ())] for key, terms in nodes.items()}
        paid_for = (nodes, paid) if not knows_ends else None
        together += _staying(program, jobs, works, kinds, paid_for)
    for step in range(steps):
        for size in SIZES:
            larger = [s for s in SIZES if s >= size]
            needs = [
                (column, -float(work.gpus))
                for work in works
                if work.gpus >= size
                for column in work.running.get(step, ())
            ]
            if needs:
                has = [pair for s in larger for pair in up.get((s, step), ())]
                program.row([*has, *needs], 0.0)
    relaxed, found = program.relaxed()
    for _ in range(_ROUNDS if tier is Tier.FAST else 0):
        for cut in [cut for part in together for cut in broken(*part, found)]:
            program.row(cut.terms, cut.least)
        before = relaxed
        relaxed, found = program.relaxed()
        if relaxed <= before * (1 + _WORTH_A_ROUND):
            break
    return program.in_whole(seconds, relaxed) if seconds else Bound(relaxed, np.inf)


def _works(
    program: _Program,
    jobs: Iterable[JobRequest],
    within: timedelta,
    real: Mapping[str, timedelta],
) -> Iterator[Work]:
    """Add when each job starts; yield when it then runs."""
    for job in jobs:
        assert job.submitted_at is not None
        latest = job.submitted_at + within if job.tier is Tier.FAST else start_by(job)
        lasts = real[job.id] // STEP
        running: dict[int, list[int]] = defaultdict(list)
        starts: list[tuple[int, float]] = []
        for start in range(_step(job.submitted_at), _step(latest) + 1):
            column = program.variable(most=1, whole=True)
            starts.append((column, 1.0))
            for step in range(start, start + lasts):
                running[step].append(column)
        program.row(starts, 1.0, 1.0)
        yield Work(job.gpus, running)


def _staying(
    program: _Program,
    jobs: Sequence[JobRequest],
    works: Sequence[Work],
    kinds: Iterable[tuple[int, Terms]],
    paid_for: tuple[Terms, Terms] | None,
) -> Iterator[tuple[list[Work], Terms]]:
    """Add on which kind of machine each job runs from its start to its end, and that each kind has
    room for its jobs. Yield for each kind its jobs, and what is up of it.

    Who does not know when jobs end has a node there for as long as each job on it may run. What
    ends early leaves its room to others, as before.
    """
    starts = [_by_start(work) for work in works]
    parts: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for size, up in kinds:
        there: list[Work] = []
        for job, work, by_start in zip(jobs, works, starts, strict=True):
            running: dict[int, list[int]] = defaultdict(list)
            may_last: dict[int, list[tuple[int, float]]] = defaultdict(list)
            for column, steps in by_start.items():
                if work.gpus > size or any((size, step) not in up for step in steps):
                    continue
                part = program.variable(most=1, whole=True)
                parts[column].append((part, -1.0))
                for step in steps:
                    running[step].append(part)
                for step in range(steps[0], steps[0] + job.expected_duration // STEP):
                    may_last[step].append((part, -1.0))
            there.append(Work(work.gpus, running))
            paid = paid_for[1] if paid_for is not None and up is paid_for[0] else None
            if paid is not None:
                for step, run in may_last.items():
                    has = [(column, value / _NODE) for column, value in paid.get((size, step), ())]
                    program.row([*has, *run], 0.0)
        for (_, step), terms in up.items():
            needs = [(p, -float(w.gpus)) for w in there for p in w.running.get(step, ())]
            if needs:
                program.row([*terms, *needs], 0.0)
        yield there, up
    for column in (column for by_start in starts for column in by_start):
        program.row([(column, 1.0), *parts[column]], 0.0, 0.0)


def _by_start(work: Work) -> Mapping[int, Sequence[int]]:
    """Return the steps in which a job runs, by the column of its start."""
    found: dict[int, list[int]] = defaultdict(list)
    for step in sorted(work.running):
        for column in work.running[step]:
            found[column].append(step)
    return found


def _nodes(
    program: _Program, up: Terms, world: World, most: int, steps: int, sold: Terms | None
) -> None:
    """Add the nodes of the exchange: held by price and end, bought ask by ask; and where time is
    sold again, what is paid for and not held any more."""
    bids = best_bids(world, steps) if sold is not None else []
    bought: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    of_ask: dict[int, list[int]] = defaultdict(list)
    asks = {ask.number: ask for ask in world.asks}
    for step in range(steps):
        for ask in _worth_a_look(world.asks_to_order[step], step, most):
            # The last step of a node, in which nothing runs, is paid with its purchase.
            price = _NODE * _price(_rung(ask.price)) / _STEPS_AN_HOUR
            column = program.variable(price, most=ask.nodes, whole=True)
            end = min(_step(ask.end), steps + 1)
            bought[_rung(ask.price), end][step].append(column)
            of_ask[ask.number].append(column)
    for number, columns in of_ask.items():
        if len(columns) > 1:
            program.row([(column, 1.0) for column in columns], -np.inf, asks[number].nodes)
    shortest = SHORTEST // STEP
    for (rung, end), by_step in bought.items():
        price = _NODE * _price(rung) / _STEPS_AN_HOUR
        before: list[tuple[int, float]] = []
        before_sold: list[tuple[int, float]] = []
        last = min(end - 1, steps, max(by_step) + _LONGEST // STEP)
        for step in range(min(by_step), last):
            held = program.variable(price)
            new = [(column, -1.0) for column in by_step.get(step, ())]
            # What is held was held before or is new.
            program.row([*before, *((c, 1.0) for c, _ in new), (held, -1.0)], 0.0)
            recent = [
                (column, -1.0)
                for since in range(step - shortest + 2, step + 1)
                for column in by_step.get(since, ())
            ]
            if recent:
                program.row([(held, 1.0), *recent], 0.0)
            up[_NODE, step] += [(column, _NODE * share) for column, share in ((held, 1.0), *new)]
            if sold is None:
                before = [(held, 1.0)]
                continue
            # What is sold was held, or sold, before; it costs what its bid lacks of what was paid.
            lost = max(_price(rung) - bids[step], 0.0)
            gone = program.variable(_NODE * lost / _STEPS_AN_HOUR)
            program.row(
                [*before, *before_sold, *((c, 1.0) for c, _ in new), (held, -1.0), (gone, -1.0)],
                0.0,
            )
            sold[_NODE, step].append((gone, float(_NODE)))
            before, before_sold = [(held, 1.0)], [(gone, 1.0)]


def _pods(program: _Program, up: Terms, world: World, steps: int) -> None:
    """Add the machines of the offer list: held by size and price."""
    bought: dict[tuple[int, int], set[int]] = defaultdict(set)
    for step in range(steps):
        for offer in world.offers_to_order[step]:
            bought[offer.gpus, _rung(offer.price)].add(step)
    for (gpus, rung), when in bought.items():
        price = gpus * _price(rung) / _STEPS_AN_HOUR
        before: int | None = None
        for step in range(min(when), steps):
            held = program.variable(price, whole=True)
            kept = [(before, 1.0)] if before is not None else []
            if step in when:
                new = program.variable()
                program.row([*kept, (new, 1.0), (held, -1.0)], 0.0)
                up[gpus, step] += [(held, float(gpus)), (new, -float(gpus))]
            else:
                program.row([*kept, (held, -1.0)], 0.0)
                up[gpus, step].append((held, float(gpus)))
            before = held


def _worth_a_look(asks: Iterable[Ask], step: int, most: int) -> Iterator[Ask]:
    """Yield the asks of a step, but for those behind enough that are as cheap and as long."""
    now = START + step * STEP
    seen: list[Ask] = []
    there = [a for a in asks if a.start <= now and a.end - now >= SHORTEST]
    for ask in sorted(there, key=lambda ask: (ask.price, -ask.end.timestamp(), ask.number)):
        if sum(other.nodes for other in seen if other.end >= ask.end) < most:
            seen.append(ask)
            yield ask


def _rung(price: int) -> int:
    return floor(log(price) / _LADDER)


def _price(rung: int) -> float:
    """Return dollars per GPU-hour: at most what any price of the rung is."""
    return float(np.exp(rung * _LADDER)) / 1e6


def _step(moment: datetime) -> int:
    return ceil((moment - START) / STEP)
