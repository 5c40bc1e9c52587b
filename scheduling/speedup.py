"""How much more GPUs speed up a malleable job, measured by the steps of its checkpoints.

Amdahl's law (AFIPS 1967): a step takes a + b/n seconds on n GPUs, and a / (a + b) is the part of
the work that more GPUs do not make faster. Two sizes give the line, more the one that is nearest.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from longshore.models.growth import SpeedUp

MEASURED_FOR = timedelta(minutes=2)
"""Time between saves that a size needs to count: the writes of single saves weigh little then."""


class Save(NamedTuple):
    """A checkpoint that names its step."""

    at: datetime
    step: int
    gpus: int
    """Of the job as it was saved."""
    stretch: Hashable
    """The same for saves between which the job kept its GPUs."""


def measured(saves: Iterable[Save]) -> SpeedUp | None:
    """Return the speed-up that saves show; None where they are not of two sizes at least."""
    seconds: defaultdict[int, float] = defaultdict(float)
    steps: defaultdict[int, int] = defaultdict(int)
    stretches: defaultdict[Hashable, list[Save]] = defaultdict(list)
    for save in saves:
        stretches[save.stretch].append(save)
    for each in stretches.values():
        first, last = min(each), max(each)
        if last.step > first.step:
            seconds[first.gpus] += (last.at - first.at).total_seconds()
            steps[first.gpus] += last.step - first.step
    sizes = tuple(sorted(n for n in seconds if seconds[n] >= MEASURED_FOR.total_seconds()))
    if len(sizes) < 2:
        return None
    fixed, shared = _line([(1 / n, seconds[n] / steps[n], seconds[n]) for n in sizes])
    # Steps that take longer on more GPUs gain nothing by them; gains above n to 1 are not counted.
    whole = fixed + shared
    fraction = min(max(fixed / whole, 0.0), 1.0) if shared > 0 and whole > 0 else 1.0
    return SpeedUp(serial_fraction=fraction, sizes=sizes)


def _line(points: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Return a and b of the line y = a + b x with the least squares; points are x, y, weight."""
    total = sum(weight for _, _, weight in points)
    x_mean = sum(x * weight for x, _, weight in points) / total
    y_mean = sum(y * weight for _, y, weight in points) / total
    spread = sum(weight * (x - x_mean) ** 2 for x, _, weight in points)
    b = sum(weight * (x - x_mean) * (y - y_mean) for x, y, weight in points) / spread
    return y_mean - b * x_mean, b
