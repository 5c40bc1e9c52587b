"""Runs the compiled pass for a cycle: answers its questions, keeps the columns in step."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from longshore.models.job import Tier
from longshore.models.job_request import JobRequest
from longshore.models.placement import Decision, PackingPolicy, PackingRule, RejectionCode
from longshore.scheduling.bulk import class_buckets as compiled_buckets
from longshore.scheduling.bulk import kernel as compiled
from longshore.scheduling.bulk import residuals as compiled_residuals
from longshore.scheduling.bulk.arrays import (
    CLASSES,
    MOVES,
    NEED,
    POOL,
    RESERVED_NODES,
    SUBJECT,
    answers_for,
)
from longshore.scheduling.bulk.decision_renderer import DecisionRenderer
from longshore.scheduling.bulk.questions import (
    ASK_ALONE,
    ASK_LAYOUT,
    ASK_SIGNATURE,
    BY_CALLER,
    DONE,
    FULL,
    KEEP_ROOM,
    MAY_START,
    NEVER,
    NO_START,
    PLACED,
    REWEIGH,
    SEED_SCORE,
)
from longshore.scheduling.bulk.tables import HOST_CODES, Tables
from longshore.scheduling.funding.where_paid import paid_first
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.holders import Holders
from longshore.scheduling.placement.keep_room import HeadroomKeeper
from longshore.scheduling.placement.layouts import CODE_NUMBER, FITS
from longshore.scheduling.placement.reservations import open_from
from longshore.scheduling.placement.state import Need

buckets: Any = compiled_buckets
kernel: Any = compiled
residuals: Any = compiled_residuals
_RULES = {PackingRule.SEED_SCORE: SEED_SCORE, PackingRule.KEEP_ROOM: KEEP_ROOM}
_RESERVED = CODE_NUMBER[RejectionCode.RESERVED]


class Run:
    """One pass over the jobs of a plan, in order.

    `forward` answers jobs until one is for the caller. For such a job `hand_over` brings the
    columns up to date, and `take_back` takes in what the caller did to them.
    """

    def __init__(
        self,
        jobs: Sequence[JobRequest],
        columns: Columns,
        policy: PackingPolicy,
        keeper: HeadroomKeeper | None,
        now: datetime,
        need_of: Callable[[JobRequest], Need],
        wanted: Collection[str] | None = None,
    ) -> None:
        """Of the jobs that wait only the `wanted` are told why; None: all."""
        self.jobs = jobs
        self._columns = columns
        self._policy = policy
        self._keeper = keeper
        self._now = now
        self._rule = _RULES[policy.rule]
        weights = policy.weights
        self._weights = np.array(
            [weights.utilization, weights.fragmentation, weights.expiry, weights.provider]
        )
        self.needs = [
            None if job.gang or job.malleable or paid_first(job, policy.funding) else need_of(job)
            for job in jobs
        ]
        distinct = {need for need in self.needs if need is not None}
        self.tables = Tables(columns, policy, keeper, distinct, len(jobs))
        self.slots = np.full(len(jobs), -1, np.int32)
        self._loaded = 0
        """Jobs whose needs are, or were, loaded."""
        self._at = 0
        self._seen = 0
        """Moves in the columns that are known here."""
        self._begun = 0
        """The first job whose placement the columns do not know."""
        self._exhausted = np.zeros(len(Tier), np.bool_)
        names = len(keeper.names) + 2 if keeper else 0
        self.answers = answers_for(len(jobs), names)
        self._decisions: list[Decision | None] = [None] * len(jobs)
        self._explained = 0
        self._renderer = DecisionRenderer(
            jobs, self.slots, self.answers, self.tables, policy, keeper, wanted
        )
        self._rows_alike: list[list[int]] = []
        """The rows of needs that differ in their time and data alone."""
        self._weighed = keeper.version if keeper else 0
        """The outlook of the keeper by which residuals are valued."""
        kernel.index_classes(self.tables.c)

    def forward(self) -> int:
        """Answer the next jobs; return the first that is for the caller."""
        at = self._at
        while at < len(self.jobs):
            if at == self._loaded:
                self._load()
            t = self.tables
            at, question = kernel.run(
                self._rule, self._weights, HOST_CODES, t.c, t.x, t.f, t.requests.lay, t.n, t.r,
                self.answers, self.slots, self._exhausted, at, self._loaded,
            )  # fmt: skip
            if question == ASK_SIGNATURE:
                t.ask_signature(int(t.c.numbers[NEED]))
            elif question == ASK_LAYOUT:
                t.ask_layout(int(t.c.numbers[NEED]), int(t.c.numbers[SUBJECT]))
            elif question == ASK_ALONE:
                self._answer_alone(int(t.c.numbers[NEED]), int(t.c.numbers[SUBJECT]))
            elif question == REWEIGH:
                self._reweigh()
            elif question == FULL:
                self._grow()
            elif question != DONE:
                break
        self._at = at
        return at

    def hand_over(self, take: Callable[[JobRequest, Need, int, Chosen], None]) -> None:
        """Call `take` for each placement that the columns do not know yet."""
        at = self._at
        placed = np.flatnonzero(self.answers.kind[self._begun : at] == PLACED) + self._begun
        for j in placed.tolist():
            need, chosen = self._taken(j)
            take(self.jobs[j], need, int(self.answers.node[j, 0]), chosen)
        self._begun = at + 1
        self._seen = len(self._columns.moved)
        assert self._seen == self.tables.c.numbers[MOVES]

    def take_back(
        self,
        decision: Decision,
        holders: Holders | None,
        no_start: bool,
        is_full: Callable[[Tier], bool],
    ) -> None:
        """Take in what the caller decided for its job, and what jobs like it are to be told.

        Where the job waits, `holders` are the nodes that could hold it when empty, and `no_start`
        says that no start is known; `is_full` whether any more are kept for a tier.
        """
        at, self._at = self._at, self._at + 1
        self._decisions[at] = decision
        for tier in Tier:
            self._exhausted[int(tier is Tier.FLEX)] = is_full(tier)
        if holders is not None:
            self._know_outlook(int(self.slots[at]), holders, no_start)
        columns = self._columns
        for move in range(self._seen, len(columns.moved)):
            self._grow_ahead()
            self.tables.put_class(columns.classes[columns.joined_class[move]])
            t = self.tables
            kernel.move_to_known(
                self._rule, t.c, t.x, t.f, t.requests.lay, t.r, columns.moved[move]
            )
        self._seen = len(columns.moved)
        if self._keeper is not None and self._keeper.version != self._weighed:
            self._take_weights(self._keeper, self._keeper.due)  # the caller made the outlook anew

    def ask_for_starts_again(self) -> None:
        """Ask the caller again for jobs that were to start at no known time."""
        outlook = self.tables.n.outlook
        outlook[outlook == NO_START] = MAY_START

    def decisions(self) -> tuple[Decision, ...]:
        """Return the decisions, in order; all jobs are answered."""
        self._explain(len(self.jobs))
        return tuple(decision for decision in self._decisions if decision is not None)

    def _know_outlook(self, row: int, holders: Holders, no_start: bool) -> None:
        """Take in what jobs wait for whose needs differ from that of a row in their time alone: as
        many nodes could hold them, and those that are as long find no start either."""
        needs, outlooks = self.tables.needs, self.tables.n.outlook
        number = self._renderer.alike[row]
        self._renderer.holders[number] = holders
        for other in self._rows_alike[number]:
            if not holders.nodes:
                outlooks[other] = NEVER
            elif no_start and needs[other].is_as_long_as(needs[row]):
                outlooks[other] = NO_START
            elif outlooks[other] == BY_CALLER:
                outlooks[other] = MAY_START

    def _load(self) -> None:
        """Load the needs of the next jobs."""
        self._explain(self._loaded)
        rows: dict[Need, int] = {}
        at = self._loaded
        while at < len(self.jobs):
            need = self.needs[at]
            if need is not None:
                if need not in rows and len(rows) == self.tables.rows:
                    break
                self.slots[at] = rows.setdefault(need, len(rows))
            at += 1
        self.tables.load(list(rows))
        self._index_buckets()
        numbers: dict[Need, int] = {}
        alike = [numbers.setdefault(need.but_for_time(), len(numbers)) for need in rows]
        self._rows_alike = [[] for _ in numbers]
        for row, number in enumerate(alike):
            self._rows_alike[number].append(row)
        self._renderer.begin(alike)
        self._loaded = at

    def _taken(self, j: int) -> tuple[Need, Chosen]:
        need = self.needs[j]
        assert need is not None
        chosen = self._renderer.chosen.get(j)
        return need, chosen or self.tables.chosen(
            int(self.slots[j]), int(self.answers.group[j, 0])
        )

    def _answer_alone(self, row: int, reserved: int) -> None:
        t = self.tables
        view, need = self._columns.views[int(t.c.reserved_nodes[reserved])], t.needs[row]
        found = open_from(view, need, self._now, self._policy.gpu_choice, free=view.free)
        t.beside_reservations(row, reserved, found, _RESERVED if found is None else FITS)

    def _reweigh(self) -> None:
        t, keeper = self.tables, self._keeper
        assert keeper is not None
        usable = np.zeros(len(keeper.mix.kinds))
        idle = residuals.idle_of_pool(
            t.c, t.requests.lay, t.r, self._columns.trait_sets.ready, usable
        )
        if idle < 0:
            self._grow()
            return
        due = keeper.reweigh(usable, int(idle), int(t.c.numbers[MOVES]))
        self._take_weights(keeper, due)

    def _take_weights(self, keeper: HeadroomKeeper, due: int) -> None:
        """Value what is left of nodes by the keeper's outlook, until that is due again."""
        t, self._weighed = self.tables, keeper.version
        t.reweigh(keeper.outlook.pressure, due)
        residuals.value_residuals(t.c, t.r)
        buckets.refresh_all(self._rule, t.c, t.x, t.r)

    def _grow(self) -> None:
        self._extend_arrays()
        self._index_buckets()

    def _index_buckets(self) -> None:
        """Put all classes into buckets, and extend the arrays as needed."""
        t = self.tables
        while not buckets.index_buckets(self._rule, t.c, t.x, t.f, t.requests.lay, t.r):
            self._extend_arrays()

    def _extend_arrays(self) -> None:
        self.tables.grow()
        self.tables.c.hash_table.fill(-1)
        self.tables.r.hash_table.fill(-1)
        kernel.index_classes(self.tables.c)
        residuals.index_residuals(self.tables.c, self.tables.r)

    def _grow_ahead(self) -> None:
        c = self.tables.c
        nearly = int(c.numbers[CLASSES]) + 2 >= len(c.traits)
        nearly |= int(c.numbers[RESERVED_NODES]) + 1 >= len(c.reserved_nodes)
        nearly |= not buckets.has_capacity(c, self.tables.x, self.tables.r)
        if nearly or int(c.numbers[POOL]) + 2 * len(c.class_of) + 8 > len(c.pool):
            self._grow()

    def _explain(self, end: int) -> None:
        """Make the decisions of the jobs before `end`."""
        if self._explained < end:
            self._renderer.render_decisions(self._explained, end, self._decisions)
        self._explained = end
