"""Trims windows to the end of the jobs that run in them.

How long so many nodes are needed depends on how the packer fills them. So the queue is packed
into a window that is long enough for anything, and each node is then bought for as long as it is
in use, and the margin: one node that runs ten jobs in a row, or two of unlike length.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from longshore.models.buying import Option, PurchasePlan
from longshore.models.market import NoQuote, Window
from longshore.scheduling.buying.costs import Candidate, Scene, foreseen, lasts_on, name_in
from longshore.scheduling.buying.fleet import names_of
from longshore.scheduling.buying.outlook import Outlook
from longshore.scheduling.buying.prices import BlockSource, Taken, round_up, taken_by, whole_steps

MOST_TRIMMED = 12
_WORTH_IT = timedelta(minutes=10)
"""A window that might end less early than that is left as it is."""
_MINUTE = timedelta(minutes=1)


def trimmed(scene: Scene, found: Iterable[tuple[Candidate, Option]]) -> Iterator[Candidate]:
    """Yield candidates of one window again where nodes of them are idle before its end.

    For each number of nodes the longest window, then the cheapest others; at most 12.
    """
    with_window = [(c, option) for c, option in found if len(c.blocks) == 1 and not c.pods]
    by_end = sorted(with_window, key=lambda pair: _end(pair[0]), reverse=True)
    longest: dict[tuple[int, int], Candidate] = {}
    for candidate, _ in by_end:
        source, plan = candidate.blocks[0]
        longest.setdefault((id(source), plan.nodes), candidate)
    cheapest = [c for c, _ in sorted(with_window, key=lambda pair: pair[1].total)]
    chosen = dict.fromkeys([*longest.values(), *cheapest])
    for candidate in list(chosen)[:MOST_TRIMMED]:
        trimmed_one = _trimmed(scene, candidate)
        if trimmed_one is not None:
            yield trimmed_one


def _end(candidate: Candidate) -> datetime:
    window = candidate.blocks[0][1].window
    assert window is not None
    return window.end


def _trimmed(scene: Scene, candidate: Candidate) -> Candidate | None:
    """Return a candidate with an order for each end of its nodes; None where there is no other."""
    source, plan = candidate.blocks[0]
    assert plan.window is not None
    ends = _ends(scene, source, plan, foreseen(scene, candidate)[1])
    if all(plan.window.end - end < _WORTH_IT for end in ends):
        return None
    orders: list[PurchasePlan] = []
    taken: Taken = scene.taken
    # Fabric and ports differ by place: the nodes of a gang stay where they were looked at.
    gang = any(job.request.gang is not None for job in scene.jobs)
    for end in sorted(set(ends), reverse=True):
        window = Window(start=plan.window.start, end=end)
        order = source.plan(
            ends.count(end), window, scene.tier, scene.policy, scene.now, taken,
            among=(plan.place,) if gang else None, for_gang=bool(plan.fabric),
        )  # fmt: skip
        if isinstance(order, NoQuote):
            return None
        orders.append(order)
        taken = taken_by([order], taken)
    return replace(candidate, blocks=tuple((source, order) for order in orders))


def _ends(
    scene: Scene, source: BlockSource, plan: PurchasePlan, outlook: Outlook
) -> Sequence[datetime]:
    """Return until when each node is needed; nodes that nobody uses are left out.

    The nodes of a gang share one order and so one end: fast fabric does not reach beyond it.
    """
    assert plan.window is not None
    policy, start = scene.policy, plan.window.start
    grain = max(source.market.capabilities.grain, _MINUTE)
    ends: list[datetime] = []
    for name in names_of(plan, name_in(scene, 0)):
        lasts = lasts_on(scene, outlook, name)
        if lasts is not None:
            needed = max(lasts - start, policy.shortest_window)
            end = round_up(start + whole_steps(needed, policy.window_step), grain)
            ends.append(min(end, plan.window.end))
    if ends and any(job.request.gang is not None for job in scene.jobs):
        return [max(ends)] * len(ends)
    return ends
