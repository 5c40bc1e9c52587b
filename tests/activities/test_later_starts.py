"""Jobs without a start kept are told the same for some seconds, and anew after them."""

from types import SimpleNamespace

import pytest

from longshore.activities import later_starts
from longshore.models.placement import CyclePlan, Decision, PlacementKind, RejectionCode
from tests.support.packing import HOUR, NOW

WAITS = PlacementKind.REQUEST_MORE_CAPACITY


def _plan(*decisions: Decision) -> CyclePlan:
    return CyclePlan(decisions=decisions)


def _waits(name: str = "a", **more: object) -> Decision:
    said = {"job_id": name, "kind": WAITS, "rejected": {RejectionCode.GPUS_BUSY: 1}}
    return Decision.model_validate({**said, **more})


LATER = _waits(estimated_start=NOW + HOUR, start_kept=False, reason="later")


def test_what_was_told_holds_for_some_seconds(monkeypatch: pytest.MonkeyPatch):
    clock = [100.0]
    monkeypatch.setattr(later_starts, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    starts = later_starts.LaterStarts()
    most = starts.due("p", 2)
    assert most == 64
    assert starts.taken_in("p", _plan(LATER), most) == _plan(LATER)
    clock[0] += 9.0
    assert (starts.due("p", 2), starts.due("q", 2)) == (0, most)
    assert starts.taken_in("p", _plan(_waits(reason="not known")), 0) == _plan(LATER)
    for other in (
        _waits(rejected={RejectionCode.STATE: 1}),
        _waits(kind=PlacementKind.SET_ASIDE),
        _waits(estimated_start=NOW + 2 * HOUR),
        _waits("b"),
        Decision(job_id="a", kind=PlacementKind.EXISTING_NODE, node_id="n"),
    ):
        assert starts.taken_in("p", _plan(other), 0) == _plan(other)
    clock[0] += 1.0
    assert starts.due("p", 2) == most
    assert starts.taken_in("p", _plan(_waits()), most) == _plan(_waits())
    clock[0] += 1.0
    assert starts.taken_in("p", _plan(_waits()), 0) == _plan(_waits()), "nothing is told any more"
