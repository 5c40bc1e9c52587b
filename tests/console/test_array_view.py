"""The page of an array as HTML, and the changes of the size of a malleable job."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

from longshore.console.array_view import bar_html, elements_html, errors_html
from longshore.console.attempts_view import sizes_html
from longshore.models.array_view import ArrayView, ElementView, ErrorGroup
from longshore.models.elements import ElementState
from longshore.models.resize import SizeChange
from longshore.models.retry import FailureClass
from longshore.models.spending import JobCost

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
COUNTS = {
    ElementState.SUCCEEDED: 90, ElementState.FAILED: 4, ElementState.RUNNING: 10,
    ElementState.WAITING: 16,
}  # fmt: skip
BAD = "<script>alert(1)</script>"


def an_array(**fields: object) -> ArrayView:
    basics: dict[str, object] = {
        "elements": 120, "first": 0, "last": 119, "counts": COUNTS, "claimed": 6, "attempts": 107,
        "limit": 4, "slots": 4, "placed": 3, "waiting_slot": "sweep-abcdefghij.s4",
    }  # fmt: skip
    return ArrayView.model_validate({**basics, **fields})


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def test_the_bar_has_each_state_by_its_elements_and_the_cost():
    html = bar_html(an_array(), JobCost(gpu_time=timedelta(minutes=9)))
    assert re.findall(r'class="el (\w+)" style="flex-grow:(\d+)"', html) == [
        ("succeeded", "90"), ("failed", "4"), ("running", "4"), ("claimed", "6"),
        ("waiting", "16"),
    ]  # fmt: skip
    said = words(html)
    for part in (
        "90 succeeded 4 failed 4 running 6 claimed 16 waiting", "107 attempts of elements so far.",
        "3 of 4 slots have GPUs; sweep-abcdefghij.s4 waits for GPUs.", "Cost: 9m of GPU time",
    ):  # fmt: skip
        assert part in said, said
    assert 'href="/jobs/sweep-abcdefghij.s4"' in html
    assert 'aria-label="of 120 elements' in html
    ended = words(bar_html(an_array(slots=0, placed=0, waiting_slot=None, claimed=0), None))
    assert "slots" not in ended
    assert "Cost" not in ended
    dollars = JobCost(gpu_time=timedelta(hours=1), booked_micro_usd=2_500_000, bought=True)
    assert "$2.50" in words(bar_html(an_array(), dollars))


def test_errors_alike_are_one_row():
    group = ErrorGroup(
        failure=FailureClass.USER, exit_code=4, message=f"disk {BAD}", elements=1200,
        indices="2,12,22 and 1197 others",
    )  # fmt: skip
    html = errors_html([group])
    assert "1,200 user 4 disk <script>alert(1)</script> 2,12,22 and 1197 others" in words(html)
    assert "<script" not in html
    assert errors_html(()) == ""


def test_elements_say_how_many_more_there_are_and_what_lists_them():
    ran = ElementView(
        index=7, attempt=2, state=ElementState.FAILED, exit_code=9, message=BAD, node_id="n1",
        started_at=NOW - timedelta(seconds=50), ended_at=NOW - timedelta(seconds=20),
    )  # fmt: skip
    waits = ElementView(index=8, attempt=1, state=ElementState.WAITING)
    html = elements_html("sweep-abcdefghij", [ran, waits], 1302, 0, NOW)
    said = words(html)
    assert "7 failed 2 9 30s n1 <script>alert(1)</script>" in said
    assert "8 waiting 1 1,300 more" in said
    assert "<script" not in html
    assert "1,300 more: longshore elements sweep-abcdefghij lists all" in said
    assert "claimed" not in said
    assert "60 are claimed, and do not run" in elements_html("sweep", [waits], 1, 60, NOW)
    assert "more:" not in elements_html("sweep-abcdefghij", [ran, waits], 2, 0, NOW)
    assert elements_html("sweep-abcdefghij", [], 0, 0, NOW) == ""


def test_the_changes_of_a_size_have_their_times_and_sentences():
    stopped = SizeChange(
        attempt=3, at=NOW, gpus_before=2, gpus=4, paused=timedelta(seconds=7),
        end_reason="resized", reason="resized by its user: from 2 to 4 GPUs, $0.04",
    )  # fmt: skip
    in_place = SizeChange(
        attempt=3, at=NOW, gpus_before=4, gpus=2, paused=timedelta(0), in_place=True,
        end_reason="preempted", reason=f"for a {BAD}",
    )  # fmt: skip
    html = sizes_html([stopped, in_place])
    said = words(html)
    assert "24 Nov 12:00:00 3 2 → 4 7s resized by its user: from 2 to 4 GPUs, $0.04" in said
    assert "3 4 → 2 in place, no stop preempted: for a <script>" in said
    assert "<script" not in html
    assert sizes_html(()) == ""
