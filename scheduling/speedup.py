"""How much more GPUs speed up a malleable job, measured by the steps of its checkpoints.

Amdahl's law (AFIPS 1967): a step takes a + b/n seconds on n GPUs, and a / (a + b) is the part of
the work that more GPUs do not make faster. Two sizes give the line, more the one that is nearest.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from longshore.models.growth import SpeedUp

MEASURED_FOR = timedelta(minutes=2)
"""Time between saves that a size needs to count: the writes of single saves weigh little then."""


class Stretch(NamedTuple):
    """The first and the last save between two changes of what a job had."""

    gpus: int
    steps: int
    """From one to the other."""
    time: timedelta


def measured(stretches: Iterable[Stretch]) -> SpeedUp | None:
    """Return the speed-up that saves show; None where they are not of two sizes at least."""
    seconds: defaultdict[int, float] = defaultdict(float)
    steps: defaultdict[int, int] = defaultdict(int)
    for each in stretches:
        if each.steps > 0:
            seconds[each.gpus] += each.time.total_seconds()
            steps[each.gpus] += each.steps
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
