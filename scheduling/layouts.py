"""What each layout of GPUs has for a job: asked once for each layout, looked up for each node."""

import numpy as np
from numpy.typing import NDArray

from models.placement import GPUChoice, RejectionCode
from scheduling.columns import Bools, Columns, Floats, Layout
from scheduling.gpus import Chosen, choose

Codes = NDArray[np.uint8]

CODES = tuple(RejectionCode)
"""The constraints, in the order of the checks."""
CODE_NUMBER = {code: number for number, code in enumerate(CODES)}
FITS = len(CODES)
"""In place of the number of a constraint: none stands in the way."""


class LayoutAnswers:
    """The answers of all layouts to a job of so many GPUs with so much memory.

    `codes`, `gaps` and `fits_empty` have an entry for each layout: the first constraint that
    fails there, the average gap of the GPUs chosen, and whether it would do without any job.
    """

    def __init__(self, columns: Columns, gpus: int, vram: float, choice: GPUChoice) -> None:
        self.codes: Codes = np.zeros(64, dtype=np.uint8)
        self.gaps: Floats = np.zeros(64)
        self.fits_empty: Bools = np.zeros(64, dtype=np.bool_)
        self._columns = columns
        self._gpus = gpus
        self._vram = vram
        self._choice = choice
        self._chosen: list[Chosen | None] = []

    def learn(self) -> None:
        """Answer for the layouts that are new since the last call."""
        layouts = self._columns.layouts
        while len(self.codes) < len(layouts):  # twice the room, so that growing stays cheap
            self.codes = np.resize(self.codes, 2 * len(self.codes))
            self.gaps = np.resize(self.gaps, 2 * len(self.gaps))
            self.fits_empty = np.resize(self.fits_empty, 2 * len(self.fits_empty))
        for number in range(len(self._chosen), len(layouts)):
            self._ask(number, layouts[number])

    def chosen(self, position: int) -> Chosen:
        """Return the job's GPUs on the node at `position`, whose layout fits."""
        chosen = self._chosen[int(self._columns.layout[position])]
        assert chosen is not None
        return chosen

    def _ask(self, number: int, layout: Layout) -> None:
        rooms, wanted = layout.rooms, self._gpus
        roomy = rooms.roomy(self._vram)
        usable = roomy & layout.free
        code, chosen = FITS, None
        if rooms.count < wanted:
            code = CODE_NUMBER[RejectionCode.GPU_COUNT]
        elif roomy.bit_count() < wanted:
            code = CODE_NUMBER[RejectionCode.VRAM]
        elif usable.bit_count() < wanted:
            code = CODE_NUMBER[RejectionCode.GPUS_BUSY]
        else:
            chosen = choose(usable, layout.free, wanted, self._choice)
        self.codes[number] = code
        self.gaps[number] = chosen.gap if chosen else 0.0
        self.fits_empty[number] = rooms.large(self._vram).bit_count() >= wanted
        self._chosen.append(chosen)
