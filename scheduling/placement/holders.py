"""The nodes that could hold a job when empty and with time left, and what keeps it off them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.scheduling.placement.columns import Columns, microseconds
from longshore.scheduling.placement.state import Need


class Holders(NamedTuple):
    """What a plan does not change of the nodes that could hold jobs that ask alike."""

    nodes: int
    ready: int
    most_left: float
    """Microseconds until the time of the last of those that are ready ends."""

    @classmethod
    def of(cls, columns: Columns, positions: NDArray[np.intp]) -> "Holders":
        """Return them of the nodes at these positions."""
        traits = columns.traits[columns.class_of[positions]]
        ready = columns.trait_sets.ready[traits]
        left = columns.trait_sets.left[traits][ready]
        return cls(len(positions), len(left), float(left.max()) if len(left) else 0.0)

    def why_no_start(self, need: Need) -> str:
        """Return what a job is told for which nothing known makes room."""
        must_last = microseconds(need.must_last)
        if self.ready and self.most_left >= must_last:
            return "what runs there is not known to end in time for it"
        whys = ["not ready"] if self.ready < self.nodes else []
        whys += ["too near its end"] if self.ready else []
        why = " or ".join(whys)
        if self.nodes == 1:
            return f"the node that could hold it is {why}"
        return f"each of the {self.nodes} nodes that could hold it is {why}"
