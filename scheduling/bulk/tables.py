"""The arrays of one plan: filled from the columns of its nodes, and grown as they fill up."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from models.placement import PackingPolicy
from scheduling.bulk.arrays import (
    CLASSES,
    DUE,
    FAMILIES,
    FAMILY_SETS,
    MOVES,
    POOL,
    RESTS,
    UNKNOWN,
    Classes,
    Layouts,
    Needs,
    Room,
)
from scheduling.bulk.questions import BY_CALLER
from scheduling.placement.columns import Columns, Layout, NodeClass
from scheduling.placement.feasibility import HOST_CODES as CODES_OF_HOST
from scheduling.placement.gpus import Chosen
from scheduling.placement.keep_room import RoomKeeper, layout_with
from scheduling.placement.layouts import CODE_NUMBER, FITS, Wish, found_in
from scheduling.placement.scan import lasting_codes
from scheduling.placement.scoring import expiry_penalty, provider_bonus
from scheduling.state import Need, Rooms

HOST_CODES = np.array([CODE_NUMBER[code] for code in CODES_OF_HOST], np.uint8)
"""The constraint on each amount of a host."""
_MOST_CELLS = 1 << 20
"""Answers (needs x classes) that are kept at one time: bounds memory, not results."""
_FEWEST_NEEDS = 16


class Tables:
    """The arrays, and the objects that their numbers stand for."""

    def __init__(
        self,
        columns: Columns,
        policy: PackingPolicy,
        keeper: RoomKeeper | None,
        needs: int,
        jobs: int,
    ) -> None:
        self.columns = columns
        self._policy = policy
        self._keeper = keeper
        room = 1 << (columns.class_count + min(jobs, 256)).bit_length()
        self.rows = min(needs, max(_FEWEST_NEEDS, _MOST_CELLS // room))
        """Needs that are in hand at one time."""
        self.needs: list[Need | None] = [None] * self.rows
        powers = np.unique(columns.makes.gpu_power, return_inverse=True)
        self._powers, self._power_of_make = powers[0].tolist(), powers[1]
        self._wishes: dict[Wish, int] = {}
        self._chosen: list[dict[int, Chosen]] = []
        """By wish and layout."""
        self._families: dict[tuple[Rooms, int], int] = {}
        self.beside: dict[tuple[int, int], Chosen] = {}
        """By row and class: the choice on a node with reservations."""
        self.c = _classes(columns, room, jobs)
        self.lay = _layouts(self.rows, 2 * len(columns.layouts) + 64)
        self.n = _needs(self.rows, room, len(columns.makes))
        self.r = _room(keeper, 4 * room if keeper else 0)
        self._know_layouts()

    def load(self, needs: Sequence[Need]) -> None:
        """Take these needs in hand, at most `rows`, in place of those before."""
        self._wishes.clear()
        self._chosen.clear()
        self.beside.clear()
        self.lay.code.fill(UNKNOWN)
        self.lay.after.fill(-1)
        for row, need in enumerate(needs):
            self._load(row, need)

    def chosen(self, row: int, group: int) -> Chosen:
        """Return the GPUs that a need gets on nodes of a class where it fits."""
        found = self.beside.get((row, group))
        return found or self._chosen[int(self.n.wish[row])][int(self.c.layout[group])]

    def ask_layout(self, row: int, layout: int) -> None:
        """Answer for a layout, and for all others of nodes that the need has yet to see."""
        wish = int(self.n.wish[row])
        if self.lay.code[wish, layout] != UNKNOWN:
            self._take(row, wish, [layout])
            return
        asked = self.c.layout[int(self.n.asked[row]) : int(self.c.numbers[CLASSES])]
        new = np.unique(asked)
        numbers: list[int] = new[self.lay.code[wish, new] == UNKNOWN].tolist()
        need = self._need(row)
        for number in numbers:
            found = found_in(self.columns.layouts[number], wish_of(need), self._policy.gpu_choice)
            if not isinstance(found, Chosen):
                self.lay.code[wish, number] = CODE_NUMBER[found]
                continue
            self._chosen[wish][number] = found
            self.lay.code[wish, number] = FITS
            self.lay.mask[wish, number] = found.mask
            self.lay.gap[wish, number] = found.gap
            self.lay.added[wish, number] = found.vram
        if self._keeper is not None:  # its values follow from what is left
            self._take(row, wish, [number for number in numbers if number in self._chosen[wish]])

    def beside_reservations(self, row: int, group: int, found: Chosen) -> int:
        """Keep the choice on a node with reservations; return the layout after it."""
        self.beside[row, group] = found
        layout = self.columns.layouts[int(self.c.layout[group])]
        after = self.columns.number_of(layout_with(layout, found, self._need(row)))
        self._know_layouts()
        return after

    def put_class(self, found: NodeClass) -> None:
        """Write a class into the first spare row of classes."""
        self._know_layouts()
        c, row = self.c, int(self.c.numbers[CLASSES])
        c.make[row], c.layout[row] = found.make, found.layout
        c.jobs[row], c.alone[row] = found.jobs, found.alone
        c.free[row] = found.host_free
        c.vram_used[row] = found.vram_used
        unnamed = bool(c.make_unnamed[found.make])
        c.amount[row] = self.lay.taken[found.layout] if unnamed else found.vram_used

    def grow(self) -> None:
        """Make more room in whatever is nearly full."""
        c, n, r = self.c, self.n, self.r
        if 2 * int(c.numbers[CLASSES]) + 4 >= len(c.make):
            by_class = ("make", "layout", "jobs", "alone", "size", "free", "vram_used", "amount",
                        "rest", "heap_at", "heap_room")  # fmt: skip
            c = _with_bits(c._replace(**{name: _doubled(getattr(c, name)) for name in by_class}))
            c = c._replace(buckets=_buckets(len(c.make)))
            by_need = ("code", "total", "used", "gap", "next", "rest_after", "heap", "place",
                       "first")  # fmt: skip
            n = n._replace(**{name: _doubled(getattr(n, name), 1) for name in by_need})
        while int(c.numbers[POOL]) + 2 * len(c.class_of) + 8 > len(c.pool):
            c = c._replace(pool=_doubled(c.pool))
        if 2 * int(c.numbers[MOVES]) + 4 >= len(c.moved_to):
            by_move = ("moved_from", "moved_to", "moved")
            c = c._replace(**{name: _doubled(getattr(c, name)) for name in by_move})
        if self._keeper is not None and 2 * int(c.numbers[RESTS]) + 4 >= len(r.size):
            by_rest = ("size", "gpus", "jobs", "left", "now", "lasting", "stranded", "worth")
            r = r._replace(**{name: _doubled(getattr(r, name)) for name in by_rest})
            r = r._replace(left_bits=r.left.view(np.int64), buckets=_buckets(len(r.size)))
        self.c, self.n, self.r = c, n, r

    def look(self, pressure: Any, due: int) -> None:
        """Take in a new outlook."""
        self.r.pressure[:] = pressure
        self.c.numbers[DUE] = due

    def _need(self, row: int) -> Need:
        need = self.needs[row]
        assert need is not None
        return need

    def _load(self, row: int, need: Need) -> None:
        columns, n = self.columns, self.n
        wish = self._wishes.setdefault(wish_of(need), len(self._wishes))
        if wish == len(self._chosen):
            self._chosen.append({})
            self.lay.in_parts[wish] = not need.whole
        self.needs[row] = need
        n.wish[row], n.tier[row] = wish, need.tier.value == "FLEX"
        n.vram[row], n.gpus[row], n.mig[row] = need.vram, need.gpus, need.mig is not None
        n.amount[row] = need.vram * need.gpus
        n.outlook[row], n.built[row], n.asked[row] = BY_CALLER, False, 0
        n.lasting[row] = lasting_codes(columns, need)
        n.expiry[row] = expiry_penalty(columns, need.duration)
        n.provider[row] = provider_bonus(columns, need.gpus)
        wanted = np.array([need.host(power) for power in self._powers], np.float64)
        n.wanted[row] = wanted.reshape(-1, len(HOST_CODES))[self._power_of_make]

    def _take(self, row: int, wish: int, layouts: Iterable[int]) -> None:
        """Find what these layouts are once the job is there."""
        need = self._need(row)
        after = {number: self._layout_after(number, wish, need) for number in layouts}
        self._know_layouts()
        for number, new in after.items():
            self.lay.after[wish, number] = new

    def _layout_after(self, number: int, wish: int, need: Need) -> int:
        chosen, family = self._chosen[wish][number], int(self.lay.family[number])
        if need.whole and family >= 0:
            found = int(self.lay.by_free[family, int(self.lay.free[number]) & ~chosen.mask])
            if found >= 0:
                return found
        return self.columns.number_of(layout_with(self.columns.layouts[number], chosen, need))

    def _know_layouts(self) -> None:
        """Take in the layouts that the columns have learnt."""
        columns, lay = self.columns, self.lay
        if len(columns.layouts) > len(lay.taken):
            spare = len(columns.layouts)
            wide = (lay.code.shape[0], spare)
            lay = self.lay = lay._replace(
                code=np.concatenate([lay.code, np.full(wide, UNKNOWN, np.uint8)], axis=1),
                after=np.concatenate([lay.after, np.full(wide, -1, np.int32)], axis=1),
                **{
                    name: _more(getattr(lay, name), spare)
                    for name in ("mask", "gap", "added", "taken", "gpus", "family", "free")
                },
            )
        table = self._keeper and self._keeper.table
        for number in range(int(lay.known[0]), len(columns.layouts)):
            layout = columns.layouts[number]
            lay.taken[number] = layout.rooms.count - layout.free.bit_count()
            lay.family[number] = family = self._family_of(layout)
            if family >= 0:
                lay.free[number] = layout.free
                lay.by_free[family, layout.free] = number
            if table:
                lay.gpus[number] = table.gpus_number(layout)
        lay.known[0] = len(columns.layouts)
        if table and len(table.idle) != len(self.r.idle):
            self.r = self.r._replace(
                found=table.found.astype(np.int64), idle=table.idle.astype(np.int64)
            )

    def _family_of(self, layout: Layout) -> int:
        """Return what layouts are of that differ in their free GPUs alone; -1 of any other."""
        if layout.parts or layout.rooms.all_gpus >= FAMILY_SETS:
            return -1
        # Topologies are compared by identity: to hash one takes long, and few nodes differ.
        key = layout.rooms, id(layout.topology)
        if key not in self._families and len(self._families) == FAMILIES:
            return -1
        return self._families.setdefault(key, len(self._families))


def wish_of(need: Need) -> Wish:
    return Wish(need.gpus, need.vram, need.milli, need.mig)


def _classes(columns: Columns, room: int, jobs: int) -> Classes:
    count = columns.class_count
    classes, makes = columns.classes, columns.makes
    size = columns.size[:count].astype(np.int32)
    order = np.argsort(columns.class_of, kind="stable").astype(np.int32)
    pool = np.zeros(4 * len(order) + 16 * room, np.int32)
    pool[: len(order)] = order
    numbers = np.zeros(8, np.int64)
    numbers[CLASSES], numbers[POOL] = count, len(order)

    def column(values: Any, kind: Any) -> Any:
        full = np.zeros((room, *np.shape(values)[1:]), kind)
        full[:count] = values
        return full

    free = np.zeros((room, len(HOST_CODES)))
    if count:
        free[:count] = [found.host_free for found in classes]
    return _with_bits(
        Classes(
            make=column(columns.make[:count], np.int32),
            layout=column(columns.layout[:count], np.int32),
            jobs=column([found.jobs for found in classes], np.int32),
            alone=column([found.alone for found in classes], np.int32),
            size=column(size, np.int32),
            free=free,
            free_bits=np.zeros((0, 0), np.int64),
            vram_used=column([found.vram_used for found in classes], np.float64),
            vram_bits=np.zeros(0, np.int64),
            amount=column(columns.amount_used[:count], np.float64),
            rest=np.full(room, -1, np.int32),
            heap_at=column(np.cumsum(size) - size, np.int32),
            heap_room=column(size, np.int32),
            pool=pool,
            buckets=_buckets(room),
            class_of=columns.class_of.astype(np.int32),
            moved_from=np.zeros(2 * jobs + 64, np.int32),
            moved_to=np.zeros(2 * jobs + 64, np.int32),
            moved=np.zeros(2 * jobs + 64, np.int32),
            make_amount=makes.amount,
            make_unnamed=makes.unnamed,
            numbers=numbers,
        )
    )


def _with_bits(c: Classes) -> Classes:
    return c._replace(free_bits=c.free.view(np.int64), vram_bits=c.vram_used.view(np.int64))


def _layouts(wishes: int, room: int) -> Layouts:
    shape = wishes, room
    return Layouts(
        code=np.full(shape, UNKNOWN, np.uint8),
        mask=np.zeros(shape, np.int64),
        gap=np.zeros(shape),
        added=np.zeros(shape),
        after=np.full(shape, -1, np.int32),
        in_parts=np.zeros(wishes, np.bool_),
        taken=np.zeros(room),
        gpus=np.full(room, -1, np.int32),
        known=np.zeros(1, np.int32),
        family=np.full(room, -1, np.int32),
        free=np.zeros(room, np.int32),
        by_free=np.full((FAMILIES, FAMILY_SETS), -1, np.int32),
    )


def _needs(rows: int, room: int, makes: int) -> Needs:
    def column(kind: Any, *shape: int) -> Any:
        return np.zeros((rows, *shape), kind)

    whole, small, real, flag = np.int32, np.uint8, np.float64, np.bool_
    return Needs(
        wish=column(whole), tier=column(small), vram=column(real), amount=column(real),
        gpus=column(real), mig=column(flag), outlook=column(small), built=column(flag),
        asked=column(whole), followed=column(whole), heap_size=column(whole),
        counts=column(whole, FITS + 1), lasting=column(small, makes), expiry=column(real, makes),
        provider=column(real, makes), wanted=column(real, makes, len(HOST_CODES)),
        code=column(small, room), total=column(real, room), used=column(real, room),
        gap=column(real, room), next=column(whole, room), rest_after=column(whole, room),
        heap=column(whole, room), place=column(whole, room), first=column(whole, room),
    )  # fmt: skip


def _room(keeper: RoomKeeper | None, room: int) -> Room:
    kinds = keeper.mix.kinds if keeper else ()
    mix, table = (keeper.mix, keeper.table) if keeper else (None, None)
    left = np.zeros((room, 2))
    nothing = np.zeros(0)
    return Room(
        size=np.zeros(room, np.int32),
        gpus=np.zeros(room, np.int32),
        jobs=np.zeros(room, np.int32),
        left=left,
        left_bits=left.view(np.int64),
        now=np.zeros((room, len(kinds))),
        lasting=np.zeros((room, len(kinds))),
        stranded=np.zeros(room),
        worth=np.zeros(room),
        buckets=_buckets(room),
        found=np.zeros((0, len(kinds), 3), np.int64),
        idle=np.zeros(0, np.int64),
        make_size=table.size_of_make.astype(np.int32) if table else np.zeros(0, np.int32),
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


def _buckets(room: int) -> Any:
    return np.full(1 << (4 * room).bit_length(), -1, np.int32)


def _doubled(column: Any, axis: int = 0) -> Any:
    return _more(column, column.shape[axis], axis)


def _more(column: Any, spare: int, axis: int = -1) -> Any:
    shape = list(column.shape)
    shape[axis] = spare
    return np.concatenate([column, np.zeros(shape, column.dtype)], axis=axis)
