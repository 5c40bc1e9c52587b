"""Which nodes a job has heard to be lost."""

from temporalio import workflow

from longshore.models.messages import NodeLost

_FIRST = 10
"""Losses that older versions kept: with the next one they forgot the first, and a gang that had
lost more nodes at once waited for ever for one of them."""


class Losses:
    """The registrations of nodes that are over, each once. No placement comes under one later."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], NodeLost] = {}
        self._last: list[tuple[str, int]] = []
        self._all_told = False

    def heard(self, lost: NodeLost) -> None:
        """Keep a loss; what was said of it first counts."""
        at = (lost.node_id, lost.epoch)
        # An older version, which may have handled it during an upgrade, hears of the first alone.
        also = lost.also if lost.also and workflow.patched("losses-in-one") else ()
        self._all_told = self._all_told or bool(also)
        self._last.append(at)
        if len(self._last) > _FIRST and not (self._all_told or workflow.patched("every-loss")):
            first = self._last.pop(0)
            if first not in self._last:
                self._known.pop(first, None)
        self._known.setdefault(at, lost)
        for each in also:
            other = {"node_id": each.node_id, "epoch": each.epoch, "also": ()}
            self._known.setdefault((each.node_id, each.epoch), lost.model_copy(update=other))

    def of(self, node_id: str, epoch: int) -> NodeLost | None:
        """Return how a registration was lost, if it was."""
        return self._known.get((node_id, epoch))
