"""Jobs without a start kept are told the same for some seconds, and anew after them."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from longshore.activities import later_starts
from longshore.models.placement import CyclePlan, Decision, PlacementKind, RejectionCode
from longshore.models.start_range import StartRange
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
    assert starts.taken_in("p", _plan(LATER), most, NOW) == _plan(LATER)
    clock[0] += 9.0
    assert (starts.due("p", 2), starts.due("q", 2)) == (0, most)
    assert starts.taken_in("p", _plan(_waits(reason="not known")), 0, NOW) == _plan(LATER)
    for other in (
        _waits(rejected={RejectionCode.STATE: 1}),
        _waits(kind=PlacementKind.SET_ASIDE),
        _waits(estimated_start=NOW + 2 * HOUR),
        _waits("b"),
        Decision(job_id="a", kind=PlacementKind.EXISTING_NODE, node_id="n"),
    ):
        assert starts.taken_in("p", _plan(other), 0, NOW) == _plan(other)
    clock[0] += 1.0
    assert starts.due("p", 2) == most
    assert starts.taken_in("p", _plan(_waits()), most, NOW) == _plan(_waits())
    clock[0] += 1.0
    assert starts.taken_in("p", _plan(_waits()), 0, NOW) == _plan(_waits()), (
        "nothing is told any more"
    )


def test_a_start_alone_is_taken_from_what_was_told_and_none_that_has_passed():
    at = NOW + timedelta(seconds=3)
    told = _waits(
        estimated_start=at, start_range=StartRange.at(at), start_kept=False, reason="until then",
        counted_as=5,
    )  # fmt: skip
    starts = later_starts.LaterStarts()
    starts.taken_in("p", _plan(told), starts.due("p", 2), NOW)
    new = _waits(reason="its start is not known", counted_as=6)
    (shown,) = starts.taken_in("p", _plan(new), 0, NOW + timedelta(seconds=2)).decisions
    assert shown == told.model_copy(update={"counted_as": 6}), "of now but for the start"
    for seconds in (3, 9):
        later = NOW + timedelta(seconds=seconds)
        assert starts.taken_in("p", _plan(new), 0, later) == _plan(new)
