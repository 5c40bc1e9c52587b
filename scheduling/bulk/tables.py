"""The arrays of one plan: filled from the columns of its nodes, and grown as they fill up."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from longshore.models.placement import PackingPolicy
from longshore.scheduling.bulk.arrays import (
    AMOUNTS,
    BUCKETS,
    CLASSES,
    DUE,
    MOST_SHOWN,
    ORDER,
    POOL,
    RESERVED_NODES,
    RESIDUALS,
    ClassBuckets,
    Classes,
    EligibilityClasses,
    Headroom,
    Needs,
)
from longshore.scheduling.bulk.eligibility import (
    INITIAL_RESERVED_NODES,
    eligibility_of,
    needs_of,
    thresholds_of,
)
from longshore.scheduling.bulk.gpu_requests import GPURequests
from longshore.scheduling.placement.classes import NodeClass
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.feasibility import HOST_CODES as CODES_OF_HOST
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.keep_room import HeadroomKeeper
from longshore.scheduling.placement.layouts import CODE_NUMBER
from longshore.scheduling.placement.state import Need

HOST_CODES = np.array([CODE_NUMBER[code] for code in CODES_OF_HOST], np.uint8)
"""The constraint on each amount of a host."""
_MOST_ANSWERS = 1 << 22
"""Answers of trait sets, or of layouts, to needs that are kept at one time: bounds memory, not
results."""
_FEWEST_NEEDS = 16


class Tables:
    """The arrays, and the objects that their numbers stand for."""

    c: Classes
    n: Needs
    f: EligibilityClasses
    x: ClassBuckets
    r: Headroom

    def __init__(
        self,
        columns: Columns,
        policy: PackingPolicy,
        keeper: HeadroomKeeper | None,
        needs: Collection[Need],
        jobs: int,
    ) -> None:
        self.columns = columns
        self._policy = policy
        self._keeper = keeper
        each = max(len(columns.trait_sets), 2 * len(columns.layouts) + 64)
        self.rows = min(max(len(needs), 1), max(_FEWEST_NEEDS, _MOST_ANSWERS // each))
        """Needs that are loaded at one time."""
        self.needs: list[Need] = []
        requests = len({need.gpu for need in needs})
        self.requests = GPURequests(columns, policy, keeper, min(max(requests, 1), self.rows))
        self.beside: dict[tuple[int, int], Chosen] = {}
        """By row and class: the choice on a node with reservations."""
        capacity = 1 << (columns.class_count + min(jobs, 4096)).bit_length()
        self.c = _classes(columns, capacity)
        self.r = _headroom(keeper, 4 * capacity if keeper else 0)
        self._know_kinds()

    def load(self, needs: Sequence[Need]) -> None:
        """Take these current needs, at most `rows`, in place of those before."""
        self.beside.clear()
        self.needs = list(needs)
        columns = self.columns
        nodes = np.bincount(self.c.traits[self.c.class_of], minlength=len(columns.trait_sets))
        n = needs_of(needs, self.requests.load_needs(self.needs), columns)
        self.n, self.f = eligibility_of(
            n, needs, columns, self._policy.weights, self._keeper, nodes
        )
        reserved = int(self.c.numbers[RESERVED_NODES])
        while self.n.beside_class.shape[1] <= reserved:
            self._grow_beside()
        self.x = _class_buckets(
            thresholds_of(self.n.wanted), len(self.f.power), len(self.c.traits)
        )

    def chosen(self, row: int, group: int) -> Chosen:
        """Return the GPUs that a need gets on nodes of a class where it fits."""
        found = self.beside.get((row, group))
        return found or self.requests.chosen(int(self.n.request[row]), int(self.c.layout[group]))

    def ask_signature(self, row: int) -> None:
        """Answer for all signatures."""
        self.requests.ask_signature(int(self.n.request[row]))
        self._know_kinds()

    def ask_layout(self, row: int, layout: int) -> None:
        """Answer for a layout, or say what becomes of it."""
        self.requests.ask_layout(int(self.n.request[row]), layout)
        self._know_kinds()

    def beside_reservations(
        self, row: int, reserved: int, found: Chosen | None, code: int
    ) -> None:
        """Store the answer of a node with reservations to a need: its choice, or the constraint
        that fails."""
        n, request = self.n, int(self.n.request[row])
        group = int(self.c.class_of[self.c.reserved_nodes[reserved]])
        n.beside_class[row, reserved], n.beside_code[row, reserved] = group, code
        if found is None:
            return
        self.beside[row, group] = found
        layout = int(self.c.layout[group])
        # What a MIG instance adds is looked up by layout, as in a scan.
        added = self.requests.chosen(request, layout).vram
        n.beside_gap[row, reserved], n.beside_added[row, reserved] = found.gap, added
        n.beside_link[row, reserved] = self._policy.weights.links * found.link
        if self._keeper is not None:
            after = self.requests.layout_beside(request, layout, found)
            n.beside_gpus[row, reserved] = self.requests.lay.gpus[after]
            self._know_kinds()

    def put_class(self, found: NodeClass) -> None:
        """Write a class into the first spare row of classes."""
        self.requests.know_layouts()
        self._know_kinds()
        c, row = self.c, int(self.c.numbers[CLASSES])
        c.traits[row], c.layout[row] = found.traits, found.layout
        c.jobs[row], c.alone[row] = found.jobs, found.alone
        c.free[row] = found.host_free
        c.vram_used[row] = found.vram_used
        unnamed = bool(c.traits_unnamed[found.traits])
        c.amount[row] = self.requests.lay.taken[found.layout] if unnamed else found.vram_used

    def grow(self) -> None:
        """Extend the arrays that are nearly full."""
        c, r = self.c, self.r
        if 2 * int(c.numbers[CLASSES]) + 4 >= len(c.traits):
            by_class = ("traits", "layout", "jobs", "alone", "size", "free", "vram_used", "amount",
                        "residual", "bucket", "later", "heap_at", "heap_capacity")  # fmt: skip
            c = _with_bits(c._replace(**{name: _doubled(getattr(c, name)) for name in by_class}))
            c = c._replace(hash_table=_hash_table(len(c.traits)))
        while int(c.numbers[POOL]) + 2 * len(c.class_of) + 8 > len(c.pool):
            c = c._replace(pool=_doubled(c.pool))
        if self._keeper is not None and 2 * int(c.numbers[RESIDUALS]) + 8 >= len(r.size):
            by_residual = ("size", "gpus", "jobs", "left", "now", "lasting", "stranded", "worth")
            r = r._replace(**{name: _doubled(getattr(r, name)) for name in by_residual})
            r = r._replace(left_bits=r.left.view(np.int64), hash_table=_hash_table(len(r.size)))
        self.c, self.r = c, r
        if int(c.numbers[RESERVED_NODES]) + 1 >= len(c.reserved_nodes):
            self.c = c._replace(reserved_nodes=_doubled(c.reserved_nodes))
        while self.n.beside_class.shape[1] < len(self.c.reserved_nodes):
            self._grow_beside()
        if 2 * int(c.numbers[BUCKETS]) + 4 >= len(self.x.key):
            self.x = _class_buckets(self.x.thresholds, len(self.f.power), 2 * len(self.x.key))
        elif int(c.numbers[ORDER]) + 4 * int(c.numbers[BUCKETS]) + 8 >= len(self.x.order):
            self.x = self.x._replace(order=_doubled(self.x.order))

    def reweigh(self, pressure: Any, due: int) -> None:
        """Apply a new outlook."""
        self.r.pressure[:] = pressure
        self.c.numbers[DUE] = due

    def _grow_beside(self) -> None:
        by_reserved = ("class", "code", "gap", "link", "added", "gpus")
        columns = {f"beside_{name}": getattr(self.n, f"beside_{name}") for name in by_reserved}
        self.n = self.n._replace(**{name: _doubled(column, 1) for name, column in columns.items()})
        # No class has the number of a column that is new.
        self.n.beside_class[:, self.n.beside_class.shape[1] // 2 :] = -1

    def _know_kinds(self) -> None:
        """Take in what jobs find on GPUs that the table has learnt of."""
        table = self._keeper and self._keeper.table
        if table and len(table.idle) != len(self.r.idle):
            self.r = self.r._replace(
                found=table.found.astype(np.int64), idle=table.idle.astype(np.int64)
            )


def _class_buckets(thresholds: Any, eligibilities: int, capacity: int) -> ClassBuckets:
    amounts = len(thresholds)
    return ClassBuckets(
        key=np.zeros(capacity, np.int64),
        facts=np.zeros((capacity, 7), np.int32),
        bounds=np.zeros((capacity, AMOUNTS + 2 * amounts)),
        hash_table=_hash_table(capacity),
        order=np.zeros(8 * capacity + 8 * eligibilities, np.int32),
        eligibility_at=np.zeros(eligibilities, np.int32),
        eligibility_capacity=np.zeros(eligibilities, np.int32),
        eligibility_buckets=np.zeros(eligibilities, np.int32),
        thresholds=thresholds,
        best=np.zeros(capacity, np.int32),
        value=np.zeros(capacity),
        front=np.zeros(2 * MOST_SHOWN, np.int32),
    )


def _classes(columns: Columns, capacity: int) -> Classes:
    count = columns.class_count
    classes, trait_sets = columns.classes, columns.trait_sets
    size = columns.size[:count].astype(np.int32)
    order = np.argsort(columns.class_of, kind="stable").astype(np.int32)
    pool = np.zeros(4 * len(order) + 16 * capacity, np.int32)
    pool[: len(order)] = order
    numbers = np.zeros(16, np.int64)
    numbers[CLASSES], numbers[POOL] = count, len(order)

    def column(values: Any, kind: Any) -> Any:
        full = np.zeros((capacity, *np.shape(values)[1:]), kind)
        full[:count] = values
        return full

    free = np.zeros((capacity, len(HOST_CODES)))
    if count:
        free[:count] = [found.host_free for found in classes]
    return _with_bits(
        Classes(
            traits=column(columns.traits[:count], np.int32),
            layout=column(columns.layout[:count], np.int32),
            jobs=column([found.jobs for found in classes], np.int32),
            alone=column([found.alone for found in classes], np.int32),
            size=column(size, np.int32),
            free=free,
            free_bits=np.zeros((0, 0), np.int64),
            vram_used=column([found.vram_used for found in classes], np.float64),
            vram_bits=np.zeros(0, np.int64),
            amount=column(columns.amount_used[:count], np.float64),
            residual=np.full(capacity, -1, np.int32),
            bucket=np.full(capacity, -1, np.int32),
            later=np.full(capacity, -1, np.int32),
            heap_at=column(np.cumsum(size) - size, np.int32),
            heap_capacity=column(size, np.int32),
            pool=pool,
            hash_table=_hash_table(capacity),
            class_of=columns.class_of.astype(np.int32),
            reserved_nodes=np.zeros(INITIAL_RESERVED_NODES, np.int32),
            traits_amount=trait_sets.amount,
            traits_unnamed=trait_sets.unnamed,
            numbers=numbers,
        )
    )


def _with_bits(c: Classes) -> Classes:
    return c._replace(free_bits=c.free.view(np.int64), vram_bits=c.vram_used.view(np.int64))


def _headroom(keeper: HeadroomKeeper | None, capacity: int) -> Headroom:
    kinds = keeper.mix.kinds if keeper else ()
    mix, table = (keeper.mix, keeper.table) if keeper else (None, None)
    left = np.zeros((capacity, 2))
    nothing = np.zeros(0)
    return Headroom(
        size=np.zeros(capacity, np.int32),
        gpus=np.zeros(capacity, np.int32),
        jobs=np.zeros(capacity, np.int32),
        left=left,
        left_bits=left.view(np.int64),
        now=np.zeros((capacity, len(kinds))),
        lasting=np.zeros((capacity, len(kinds))),
        stranded=np.zeros(capacity),
        worth=np.zeros(capacity),
        hash_table=_hash_table(capacity),
        found=np.zeros((0, len(kinds), 3), np.int64),
        idle=np.zeros(0, np.int64),
        size_of_traits=table.size_of_traits.astype(np.int32) if table else np.zeros(0, np.int32),
        suits=table.suits if table else np.zeros((0, 0), np.bool_),
        totals=np.stack([table.cpus_total, table.ram_total], axis=1) if table else left,
        kinds=np.array(
            [(k.need.gpus, k.need.cpus, k.need.ram) for k in kinds], np.float64
        ).reshape(-1, 3),
        pressure=np.zeros(len(kinds)),
        demand=keeper.outlook.demand if keeper else nothing,
        name_of=keeper.name_of_kind.astype(np.int32) if keeper else np.zeros(0, np.int32),
        scale=np.array([mix.churn, *table.per_milli] if mix and table else [0.0, 0.0, 0.0]),
    )


def _hash_table(capacity: int) -> Any:
    return np.full(1 << (4 * capacity).bit_length(), -1, np.int32)


def _doubled(column: Any, axis: int = 0) -> Any:
    return _more(column, column.shape[axis], axis)


def _more(column: Any, spare: int, axis: int = -1) -> Any:
    shape = list(column.shape)
    shape[axis] = spare
    return np.concatenate([column, np.zeros(shape, column.dtype)], axis=axis)
