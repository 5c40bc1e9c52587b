"""Which losses of nodes a job remembers, by what a version before this one has handled."""

import pytest
from temporalio import workflow

from longshore.models.messages import NodeEpoch, NodeLost
from longshore.workflows.losses import Losses


@pytest.mark.parametrize("patched", [True, False])
def test_what_is_told_in_one_counts_unless_an_older_version_has_handled_it(
    monkeypatch: pytest.MonkeyPatch, patched: bool
) -> None:
    """During an upgrade its history goes on as that has written it, or it replays no more."""
    monkeypatch.setattr(workflow, "patched", lambda _: patched)
    losses = Losses()
    other = NodeEpoch(node_id="b", epoch=2)
    losses.heard(NodeLost(node_id="a", epoch=1, reason="told again", also=(other,)))
    assert losses.of("a", 1) is not None
    assert (losses.of("b", 2) is not None) is patched


def test_of_a_dozen_told_one_by_one_an_older_version_has_forgotten_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workflow, "patched", lambda _: False)
    losses = Losses()
    for epoch in range(12):
        losses.heard(NodeLost(node_id="a", epoch=epoch, reason="it burns"))
    assert [epoch for epoch in range(12) if losses.of("a", epoch) is None] == [0, 1]
