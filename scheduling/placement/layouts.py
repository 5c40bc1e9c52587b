"""What each layout of GPUs has for a job: asked once for each layout, looked up for each node."""

import numpy as np
from numpy.typing import NDArray

from longshore.models.placement import GPUChoice, RejectionCode
from longshore.models.resources import GPURequest
from longshore.scheduling.placement.classes import Layout
from longshore.scheduling.placement.columns import Bools, Columns, Floats
from longshore.scheduling.placement.gpus import Chosen
from longshore.scheduling.placement.links import choose_linked
from longshore.scheduling.placement.parts import WHOLE, choose_instance, choose_share, lefts_now
from longshore.scheduling.placement.state import EPSILON

Codes = NDArray[np.uint8]

CODES = tuple(RejectionCode)
"""The constraints, in the order of the checks."""
CODE_NUMBER = {code: number for number, code in enumerate(CODES)}
FITS = len(CODES)
"""In place of the number of a constraint: none stands in the way."""


class LayoutAnswers:
    """The answers of all layouts to a job with a request.

    `codes`, `gaps`, `links`, `added` and `fits_empty` have an entry for each layout: the first
    constraint that fails there, the average gap of the GPUs chosen and the speed of their slowest
    link, the GB of a MIG instance there, and whether it would do without any job.
    """

    def __init__(self, columns: Columns, request: GPURequest, choice: GPUChoice) -> None:
        self.codes: Codes = np.zeros(64, dtype=np.uint8)
        self.gaps: Floats = np.zeros(64)
        self.links: Floats = np.zeros(64)
        self.added: Floats = np.zeros(64)
        self.fits_empty: Bools = np.zeros(64, dtype=np.bool_)
        self._columns = columns
        self._request = request
        self._choice = choice
        self._chosen: list[Chosen | None] = []

    def learn(self) -> None:
        """Answer for the layouts that are new since the last call."""
        layouts = self._columns.layouts
        while len(self.codes) < len(layouts):  # twice the room, so that growing stays cheap
            self.codes = np.resize(self.codes, 2 * len(self.codes))
            self.gaps = np.resize(self.gaps, 2 * len(self.gaps))
            self.links = np.resize(self.links, 2 * len(self.links))
            self.added = np.resize(self.added, 2 * len(self.added))
            self.fits_empty = np.resize(self.fits_empty, 2 * len(self.fits_empty))
        for number in range(len(self._chosen), len(layouts)):
            self._ask(number, layouts[number])

    def chosen(self, number: int) -> Chosen:
        """Return the job's GPUs of the layout with this number, which fits."""
        chosen = self._chosen[number]
        assert chosen is not None
        return chosen

    def _ask(self, number: int, layout: Layout) -> None:
        request = self._request
        found = found_in(layout, request, self._choice)
        if request.mig is not None:
            fits_empty = any(gpu.of(request.mig) for gpu in layout.rooms.migs)
        else:
            fits_empty = layout.rooms.large(request.vram).bit_count() >= request.gpus
            fits_empty &= not request.alone or layout.rooms.for_one(layout.rooms.all_gpus)
        chosen = found if isinstance(found, Chosen) else None
        self.codes[number] = FITS if isinstance(found, Chosen) else CODE_NUMBER[found]
        self.gaps[number] = chosen.gap if chosen else 0.0
        self.links[number] = chosen.link if chosen else 0.0
        self.added[number] = chosen.vram if chosen else 0.0
        self.fits_empty[number] = fits_empty
        self._chosen.append(chosen)


def found_in(layout: Layout, request: GPURequest, choice: GPUChoice) -> Chosen | RejectionCode:
    """Return the GPUs that a job with a request gets, or the first constraint that fails."""
    if request.mig is not None:
        return _instance(layout, request.mig, choice)
    return (_share if request.milli < WHOLE else _whole)(layout, request, choice)


def _whole(layout: Layout, request: GPURequest, choice: GPUChoice) -> Chosen | RejectionCode:
    """Return GPUs that nobody uses, or the first constraint that fails."""
    rooms = layout.rooms
    roomy = rooms.roomy(request.vram)
    usable = roomy & layout.free
    if rooms.count < request.gpus:
        return RejectionCode.GPU_COUNT
    if roomy.bit_count() < request.gpus:
        return RejectionCode.VRAM
    if request.alone and not rooms.for_one(layout.free):
        return RejectionCode.NOT_ALONE
    if usable.bit_count() < request.gpus:
        return RejectionCode.GPUS_BUSY
    chosen = choose_linked(layout.topology, usable, layout.free, request.gpus, choice)
    return chosen._replace(mask=rooms.all_gpus) if request.alone else chosen


def _share(layout: Layout, request: GPURequest, choice: GPUChoice) -> Chosen | RejectionCode:
    """Return GPUs that each have so many thousandths and so much memory left."""
    rooms = layout.rooms
    if rooms.count < request.gpus:
        return RejectionCode.GPU_COUNT
    if rooms.roomy(request.vram).bit_count() < request.gpus:
        return RejectionCode.VRAM
    found = [
        left
        for left in lefts_now(layout.rooms.room, layout.free, layout.parts)
        if left.milli >= request.milli and left.vram + EPSILON >= request.vram
    ]
    if len(found) < request.gpus:
        return RejectionCode.SHARES_BUSY
    return choose_share(found, layout.free, choice, request.gpus, layout.topology)


def _instance(layout: Layout, profile: str, choice: GPUChoice) -> Chosen | RejectionCode:
    """Return a free position of a MIG profile."""
    migs = layout.rooms.migs
    if not any(gpu.of(profile) for gpu in migs):
        return RejectionCode.MIG_PROFILE
    taken = {part.gpu: part.slices for part in layout.parts}
    return choose_instance(migs, taken, profile, choice) or RejectionCode.MIG_BUSY
