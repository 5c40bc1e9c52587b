"""Answers of each GPU layout to each request: the part of a pass that only Python knows."""

from collections.abc import Hashable
from typing import Any

import numpy as np

from longshore.models.placement import GPUChoice, PackingPolicy
from longshore.models.resources import GPURequest
from longshore.scheduling.bulk.arrays import FAMILIES, FAMILY_SETS, UNKNOWN, VARIES, Layouts
from longshore.scheduling.placement.classes import Layout
from longshore.scheduling.placement.columns import Columns
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.keep_room import HeadroomKeeper, layout_with
from longshore.scheduling.placement.layouts import CODE_NUMBER, FITS, found_in
from longshore.scheduling.placement.state import Need, Rooms

_MOST_AHEAD = 64
"""Requests that are answered for a new signature in advance."""
_BY_PAIR: dict[str, tuple[Any, int]] = {
    "code": (np.uint8, UNKNOWN), "mask": (np.int64, 0), "gap": (np.float64, 0),
    "link": (np.float64, 0), "added": (np.float64, 0), "after": (np.int32, -1),
    "gpus_after": (np.int32, -1),
    "signature_code": (np.uint8, UNKNOWN), "signature_gpus": (np.int32, VARIES),
}  # fmt: skip
_BY_LAYOUT: dict[str, tuple[Any, int]] = {
    "taken": (np.float64, 0), "gpus": (np.int32, -1), "family": (np.int32, -1),
    "free": (np.int32, 0), "signature": (np.int32, 0),
}  # fmt: skip


class GPURequests:
    """The loaded requests and all layouts, with the arrays of answers."""

    def __init__(
        self, columns: Columns, policy: PackingPolicy, keeper: HeadroomKeeper | None, most: int
    ) -> None:
        """`most` requests are loaded at one time."""
        self._columns = columns
        self._choice = policy.gpu_choice
        self._links = policy.weights.links
        self._table = keeper.table if keeper else None
        self._numbers: dict[GPURequest, int] = {}
        self._needs: list[Need] = []
        """By request: a need that has it."""
        self._chosen: list[dict[int, Chosen]] = []
        """By request and layout."""
        self._families: dict[tuple[Rooms, int], int] = {}
        self._levels: dict[Rooms, list[int]] = {}
        """The GPUs of a node by the memory to be had on them: a set for each amount."""
        self._signatures: dict[Hashable, int] = {}
        self._first: list[Layout] = []
        """A layout of each signature."""
        self._gpus_of: dict[Hashable, int] = {}
        """By signature, for `keep-room`: the number of what jobs find there."""
        self._ahead: list[int] = []
        """Requests that are answered for every signature."""
        capacity = 2 * len(columns.layouts) + 64
        self.lay = Layouts(
            **{name: np.full((most, capacity), no, kind) for name, (kind, no) in _BY_PAIR.items()},
            **{name: np.full(capacity, no, kind) for name, (kind, no) in _BY_LAYOUT.items()},
            in_parts=np.zeros(most, np.bool_),
            known=np.zeros(1, np.int32),
            by_free=np.full((FAMILIES, FAMILY_SETS), -1, np.int32),
        )
        self.know_layouts()

    def load_needs(self, needs: list[Need]) -> list[int]:
        """Return the number of the request of each need; those before are no longer loaded."""
        self._numbers.clear()
        self._needs.clear()
        self._chosen.clear()
        self._ahead.clear()
        for name, (_, unknown) in _BY_PAIR.items():
            getattr(self.lay, name).fill(unknown)
        return [self._number(need) for need in needs]

    def chosen(self, request: int, layout: int) -> Chosen:
        """Return the GPUs that jobs with a request get of a layout where they fit."""
        found = self._chosen[request].get(layout)
        if found is None:
            self._ask(request, layout)
            found = self._chosen[request][layout]
        return found

    def ask_signature(self, request: int) -> None:
        """Answer for all known signatures."""
        for signature in np.flatnonzero(
            self.lay.signature_code[request, : len(self._first)] == UNKNOWN
        ):
            self._ask_signature(request, int(signature))
        if len(self._ahead) < _MOST_AHEAD:
            self._ahead.append(request)

    def ask_layout(self, request: int, layout: int) -> None:
        """Answer for a layout, and for all others; where that is known, what it is once the job
        is there."""
        if self.lay.code[request, layout] != UNKNOWN:
            self._take(request, layout)
            return
        for number in np.flatnonzero(self.lay.code[request, : int(self.lay.known[0])] == UNKNOWN):
            self._ask(request, int(number))

    def layout_beside(self, request: int, layout: int, found: Chosen) -> int:
        """Return the layout with other GPUs taken than where nothing is reserved."""
        return self._number_of(self._columns.layouts[layout], found, self._needs[request])

    def know_layouts(self) -> None:
        """Take in the layouts that the columns have learnt."""
        columns = self._columns
        if len(columns.layouts) > len(self.lay.taken):
            self._grow(len(columns.layouts))
        lay = self.lay
        for number in range(int(lay.known[0]), len(columns.layouts)):
            layout = columns.layouts[number]
            lay.taken[number] = layout.rooms.count - layout.free.bit_count()
            lay.signature[number] = self._signature_of(layout)
            lay.family[number] = family = self._family_of(layout)
            if family >= 0:
                lay.free[number] = layout.free
                lay.by_free[family, layout.free] = number
            if self._table:
                lay.gpus[number] = self._gpus_number(layout)
        lay.known[0] = len(columns.layouts)

    def _number(self, need: Need) -> int:
        request = self._numbers.setdefault(need.gpu, len(self._numbers))
        if request == len(self._needs):
            self._needs.append(need)
            self._chosen.append({})
            self.lay.in_parts[request] = not need.whole
        return request

    def _signature_of(self, layout: Layout) -> int:
        key = self._key_of(layout)
        signature = self._signatures.setdefault(key, len(self._signatures))
        if signature == len(self._first):
            self._first.append(layout)
            for request in self._ahead:
                self._ask_signature(request, signature)
        return signature

    def _key_of(self, layout: Layout) -> Hashable:
        """Signature of a layout: equal ones answer every GPU request alike."""
        rooms = layout.rooms
        levels = self._levels_of(rooms)
        free = tuple([(layout.free & level).bit_count() for level in levels])
        parts: Hashable = layout.parts
        if not rooms.migs and len(levels) < 2:
            parts = tuple(sorted((part.milli, part.vram) for part in layout.parts))
        return rooms, free, layout.free.bit_count(), parts

    def _levels_of(self, rooms: Rooms) -> list[int]:
        levels = self._levels.get(rooms)
        if levels is None:
            by_memory: dict[float, int] = {}
            for index, memory in rooms.room:
                by_memory[memory] = by_memory.get(memory, 0) | 1 << index
            levels = self._levels[rooms] = list(by_memory.values())
        return levels

    def _ask_signature(self, request: int, signature: int) -> None:
        layout, need = self._first[signature], self._needs[request]
        found = found_in(layout, need.gpu, self._choice)
        if not isinstance(found, Chosen):
            self.lay.signature_code[request, signature] = CODE_NUMBER[found]
            return
        self.lay.signature_code[request, signature] = FITS
        if self._table and self._takes_alike(layout, need):
            self.lay.signature_gpus[request, signature] = self._gpus_with(layout, found, need)

    def _takes_alike(self, layout: Layout, need: Need) -> bool:
        """Say whether a job leaves the same in all layouts of a signature."""
        by_index = self._choice is GPUChoice.FIRST_FREE and layout.parts and not need.whole
        return len(self._levels_of(layout.rooms)) < 2 and not by_index

    def _gpus_with(self, layout: Layout, found: Chosen, need: Need) -> int:
        return self._gpus_number(layout_with(layout, found, need))

    def _gpus_number(self, layout: Layout) -> int:
        """Return what the table says of a layout; of all with one signature that is the same."""
        assert self._table is not None
        key = self._key_of(layout)
        number = self._gpus_of.get(key)
        if number is None:
            number = self._gpus_of[key] = self._table.gpus_number(layout)
        return number

    def _ask(self, request: int, number: int) -> None:
        layout, need, lay = self._columns.layouts[number], self._needs[request], self.lay
        found = found_in(layout, need.gpu, self._choice)
        if not isinstance(found, Chosen):
            lay.code[request, number] = CODE_NUMBER[found]
            return
        self._chosen[request][number] = found
        lay.code[request, number] = FITS
        lay.mask[request, number] = found.mask
        lay.gap[request, number] = found.gap
        lay.link[request, number] = self._links * found.link
        lay.added[request, number] = found.vram
        if self._table and not self._takes_alike(layout, need):
            lay.gpus_after[request, number] = self._gpus_with(layout, found, need)

    def _take(self, request: int, layout: int) -> None:
        """Find what a layout is once the job is there."""
        of, found = self._columns.layouts[layout], self._chosen[request][layout]
        after = self._number_of(of, found, self._needs[request])
        self.lay.after[request, layout] = after

    def _number_of(self, layout: Layout, found: Chosen, need: Need) -> int:
        number = self._columns.number_of(layout_with(layout, found, need))
        self.know_layouts()
        return number

    def _family_of(self, layout: Layout) -> int:
        """Return the family of a layout, which differ in free GPUs alone; -1 without one."""
        if layout.parts or layout.rooms.all_gpus >= FAMILY_SETS:
            return -1
        # Topologies are compared by identity: to hash one takes long, and few nodes differ.
        key = layout.rooms, id(layout.topology)
        if key not in self._families and len(self._families) == FAMILIES:
            return -1
        return self._families.setdefault(key, len(self._families))

    def _grow(self, spare: int) -> None:
        lay = self.lay
        more: dict[str, Any] = {}
        for name, (kind, unknown) in (_BY_PAIR | _BY_LAYOUT).items():
            column = getattr(lay, name)
            empty = np.full((*column.shape[:-1], spare), unknown, kind)
            more[name] = np.concatenate([column, empty], axis=-1)
        self.lay = lay._replace(**more)
