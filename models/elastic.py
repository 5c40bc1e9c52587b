"""The sizes of a malleable job: the numbers of GPUs that it can run on."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from longshore.models.base import Frozen
from longshore.models.counts import DIGITS, Count
from longshore.models.mistakes import Mistake, Place
from longshore.models.topology import Gang

_MOST = 100_000


class Malleable(Frozen):
    """Lets the job run on fewer or more GPUs: it starts on as many as fit when it is placed."""

    min: Count = Field(ge=1, le=_MOST)
    """The fewest GPUs that it runs on."""
    max: Count = Field(ge=1, le=_MOST)
    """The most GPUs that it runs on."""
    step: Count = Field(default=1, ge=1, le=_MOST)
    """GPUs between one size and the next: the sizes are min, min + step and so on up to max."""
    desired: Annotated[int, Field(ge=1, le=_MOST), DIGITS] | None = None
    """The size that it is to have where so many GPUs are free; max when left out. It never starts
    on more. `longshore resize` changes it."""
    serial_fraction: float = Field(default=0.0, ge=0, le=1)
    """The part of its work that more GPUs do not make faster, by Amdahl's law: with 0 twice the
    GPUs take half the time."""
    in_place: bool = False
    """True: the job goes on while nodes leave or join it, and is told of that by a file and a
    signal.
    It needs a gang without spares, and a checkpoint that it can be asked for while it runs."""

    @property
    def target(self) -> int:
        """The size that it is to have."""
        return self.max if self.desired is None else self.desired

    @property
    def text(self) -> str:
        """The sizes in words: ``8 to 24 GPUs in steps of 8, desired 16``."""
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        return f"{self.min} to {self.max} GPUs{steps}, desired {self.target}"

    @property
    def sizes(self) -> range:
        """All sizes, the smallest first."""
        return range(self.min, self.max + 1, self.step)

    @property
    def up_to_target(self) -> range:
        """The sizes that it may start with, the largest first."""
        return self.sizes[: self.sizes.index(self.target) + 1][::-1]

    def speed(self, gpus: int) -> float:
        """Return how much faster it is on so many GPUs than on one."""
        return 1 / (self.serial_fraction + (1 - self.serial_fraction) / gpus)

    def without(self, held: int, gpus: int) -> int | None:
        """Return the size to which a job goes from `held` to give up at least so many GPUs, in as
        few steps as that takes; None where it would be below its smallest."""
        left = held - max(-(-gpus // self.step), 0) * self.step
        return left if left >= self.min else None

    def why_not(self, gpus: int, name: str) -> str:
        """Return why so many GPUs are none of its sizes; empty where they are one."""
        why = self._no_size(gpus)
        return why and f"{name} {why}"

    def _no_size(self, gpus: int, of: str = "") -> str:
        if gpus in self.sizes:
            return ""
        if not self.min <= gpus <= self.max:
            return f"is {gpus}, which is outside {self.min} ({of}min) to {self.max} ({of}max)"
        below = self.min + (gpus - self.min) // self.step * self.step
        near = [str(size) for size in (below, below + self.step) if size in self.sizes]
        what = "size is" if len(near) == 1 else "sizes are"
        return (
            f"is {gpus}, which is not {of}min ({self.min}) and a number of steps of "
            f"{self.step}: the nearest {what} {' and '.join(near)}"
        )

    def mistakes(
        self, gpus: int | None, gang: Gang | None, *, whole: bool, saves: bool
    ) -> tuple[Mistake, ...]:
        """Return all that is wrong with the sizes for a job, seen from its spec.

        `gpus` is what the job says beside them, if it does; it has its GPUs `whole` or not; it
        `saves` and goes on when it is asked to, or not.
        """
        found: list[Mistake] = []
        ends, step = (_at("min"), _at("max")), _at("step")
        if self.min > self.max:
            why = f"is {self.min}, which is above max ({self.max})"
            found.append(Mistake(_at("min"), why, ends))
            if self.desired is not None and self.desired > self.min:
                why = f"is {self.desired}, which is above min ({self.min}) and max ({self.max})"
                found.append(Mistake(_at("desired"), why, ends))
        elif (self.max - self.min) % self.step:
            why = (
                f"is {self.step}, which does not divide the {self.max - self.min} GPUs between "
                f"min ({self.min}) and max ({self.max})"
            )
            found.append(Mistake(step, why, ends))
        if self.min <= self.max:
            if self.desired is not None and (why := self._no_size(self.desired)):
                found.append(Mistake(_at("desired"), why, (*ends, step)))
            # Where it is the desired size, that says the same already.
            said = gpus is None or gpus == self.target
            if gpus is not None and not said and (why := self._no_size(gpus, "malleable.")):
                found.append(Mistake(("gpus",), why, (*ends, step)))
        group = gang.group_gpus if gang is not None else None
        if group is not None:
            parts = {"min": self.min, "step": self.step if self.max > self.min else 0}
            for name, size in parts.items():
                if size % group:
                    why = f"is {size}, which is no multiple of gang.group_gpus ({group})"
                    found.append(Mistake(_at(name), why, (*ends, ("gang",))))
        if not whole:
            why = "it takes whole GPUs: leave out milli and mig, or malleable"
            found.append(Mistake(_at(), why, (("milli",), ("mig",))))
        if self.in_place:
            found += _not_in_place(gang, saves=saves)
        return tuple(found)


def _not_in_place(gang: Gang | None, *, saves: bool) -> Iterator[Mistake]:
    if gang is None:
        why = "takes nodes from a gang: add `gang: {}`, or leave in_place out"
        yield Mistake(_at("in_place"), why, (("gang",),))
    elif gang.spares_per_group:
        why = "takes no gang with spares_per_group: leave out one of them"
        yield Mistake(_at("in_place"), why, (("gang",),))
    if not saves:
        why = (
            "saves before each change: add a checkpoint with save_file or save_signal, or leave "
            "in_place out"
        )
        yield Mistake(_at("in_place"), why, (("checkpoint",),))


def _at(*field: str) -> Place:
    return ("malleable", *field)
