"""When a gang can start first: asked of the nodes that may have GPUs by then, and as plainly."""

from datetime import datetime

import pytest
from hypothesis import given

from longshore.models.job_request import JobRequest
from longshore.scheduling.gangs import start as gang_start
from longshore.scheduling.gangs.nodes import GangNodes
from longshore.scheduling.gangs.offers import Answers
from longshore.scheduling.gangs.plan import Shares, shares_from
from longshore.scheduling.gangs.start import first_gang_start
from longshore.scheduling.placement.given_back import GivenBack
from longshore.scheduling.placement.state import NodeView, view_nodes
from tests.scheduling.test_gang_offers import gangs, like_nodes
from tests.support.gangs import a_gang, in_domain
from tests.support.packing import HOUR, NOW, POLICY, running
from tests.support.searches import examples


def plainly(views: list[NodeView], job: JobRequest) -> list[tuple[datetime, Shares]]:
    """Return all times at which a hold ends and the gang can start, with what it gets then."""
    nodes = GangNodes.of(views)
    holds = [hold for view in views for hold in (*view.holds, *view.reserved)]
    times = sorted({hold.end for hold in holds if hold.end > NOW})
    found = [(time, shares_from(job, nodes, POLICY, time, Answers())) for time in times]
    return [(time, shares) for time, shares in found if shares is not None]


@examples(150)
@given(like_nodes(), gangs())
def test_the_first_start_is_that_of_asking_all_nodes_at_all_times(
    views: list[NodeView], job: JobRequest
) -> None:
    found = first_gang_start(job, GangNodes.of(views), POLICY, NOW, GivenBack(views, NOW))
    plain = plainly(views, job)
    if any(view.reserved or view.node.expires_at for view in views):
        # What is free does not only grow then: a later time may be found.
        assert found in plain if found else len(plain) < 3
    else:
        assert found == (plain[0] if plain else None)


def test_only_nodes_that_may_have_gpus_by_then_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 64
    nodes = [
        in_domain(f"{number // 8}", f"n{number:02}", busy=range(8)) for number in range(count)
    ]
    runs = [
        running(f"on-{number}", f"n{number:02}", range(8), HOUR * (1 + number))
        for number in range(count)
    ]
    views = view_nodes(nodes, runs, NOW)
    asked: list[int] = []
    ask = gang_start.shares_from

    def counted(job: JobRequest, some: GangNodes, *rest: object) -> Shares | None:
        asked.append(len(some.views))
        return ask(job, some, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(gang_start, "shares_from", counted)
    found = first_gang_start(a_gang(16), GangNodes.of(views), POLICY, NOW, GivenBack(views, NOW))
    assert found is not None
    assert found[0] == NOW + 2 * HOUR
    assert asked == [2], "at the first time at which two of a domain are empty, and these alone"
