"""When this node must assume that it was given up."""

import asyncio
from collections.abc import Callable

from longshore.activities.node.system import boot_clock


class Fence:
    """The last word from the server, on `boot_clock`, and how long it may be silent after it.

    Closed until the first registration: nothing may start.
    """

    def __init__(self) -> None:
        self.epoch = 0
        """Number of the current registration; 0 before the first."""
        self.after = 0.0
        self.acknowledged_at = float("-inf")
        self.on_acknowledged: Callable[[float], None] = lambda _: None

    def open(self, epoch: int, after: float, sent_at: float) -> None:
        """Begin a registration sent at `sent_at`; the fence falls `after` seconds of silence."""
        self.epoch, self.after = epoch, after
        self.acknowledged_at = sent_at
        self.on_acknowledged(sent_at)  # to engines, which outlive a fence that has fallen

    def acknowledge(self, epoch: int, sent_at: float) -> None:
        """Note that the server knew at `sent_at`, or later, that this registration was alive.

        A fence that has fallen stays so: the next registration is on its way, and gives what the
        last one held to others. What a late word would let start beside it, nobody would end.
        """
        if epoch != self.epoch or self.seconds_left <= 0:
            return
        self.acknowledged_at = max(self.acknowledged_at, sent_at)
        self.on_acknowledged(sent_at)

    @property
    def seconds_left(self) -> float:
        """Seconds until the fence falls; not positive when it has."""
        return self.acknowledged_at + self.after - boot_clock()

    async def fallen(self) -> None:
        """Wait until the fence has fallen."""
        # Looked at again and again: the loop's clock stands still while the machine sleeps.
        while (left := self.seconds_left) > 0:  # noqa: ASYNC110 (a clock)
            await asyncio.sleep(min(left, 0.5))
