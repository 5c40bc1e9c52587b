"""What an array does next: worked cases, and what always holds."""

import dataclasses
import heapq
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.models.array import ArraySpec, expanded, ranges_text
from longshore.models.elements import ElementResult, ElementState
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.retry import FailureClass, RetryPolicy
from longshore.scheduling.arrays import (
    FIRST_SLOTS,
    MOST_IN_BATCH,
    ArraySeen,
    QueueRoom,
    batch_size,
    decide,
    outcome,
    progress_text,
    slot_limit,
    too_many,
)

NOW = datetime(2026, 11, 24, tzinfo=UTC)
WAITING, RUNNING = ElementState.WAITING, ElementState.RUNNING
SUCCEEDED, FAILED, CANCELLED = (
    ElementState.SUCCEEDED, ElementState.FAILED, ElementState.CANCELLED,
)  # fmt: skip


def spec(array: object) -> ArraySpec:
    return ArraySpec.model_validate(array)


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("0-4", (0, 1, 2, 3, 4), None),
        ("0-9:4", (0, 4, 8), None),
        ("7", (7,), None),
        (7, (7,), None),
        ("1,5, 3-4 %2", (1, 3, 4, 5), 2),
        ("0-3,2-5%50", (0, 1, 2, 3, 4, 5), 50),
    ],
)
def test_the_syntax_is_that_of_slurm(text: object, indices: tuple[int, ...], limit: int | None):
    found = spec(text)
    assert (expanded(found.ranges), found.limit) == (indices, limit)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ("0-9%0", "%0: behind the % goes how many run at a time, 1 or more"),
        ("0-9%", "behind the % goes"),
        ("0-9%x", "behind the % goes"),
        ("", "is no index or range"),
        ("5-2", "ends before it begins, and has no index"),
        ("0-9:0", "has the step 0"),
        ("-1-3", "is no index or range"),
        ("0-9;2", "is no index or range"),
        ("0-99999999", "has 100,000,000 elements; 1,000,000 is the most"),
        ({"limit": 3}, "give indices or a table"),
        ({"indices": "0-9", "table": "a.csv"}, "give indices or a table"),
        ({"indices": "0-9%3", "limit": 4}, "the limit is given twice"),
        ({"columns": ["LONGSHORE_X"], "rows": [["1"]]}, "is a variable of Longshore"),
        ({"columns": ["A", "B"], "rows": [["1", "2"], ["3"]]}, "has 1 value for 2 columns"),
        ({"columns": ["A", "A"], "rows": [["1", "2"]]}, "two columns have this name"),
    ],
)
def test_what_is_wrong_with_an_array_is_said(array: object, says: str):
    with pytest.raises(ValidationError, match=says.replace("(", r"\(")):
        spec(array)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({"gang": {}}, "a gang"),
        ({"image": "x"}, "an image"),
        ({"checkpoint": {"folder": "c"}}, "a checkpoint contract"),
        ({"malleable": {"min": 1, "max": 4}}, "malleable: each runs on exactly `gpus`"),
    ],
)
def test_elements_are_simple_jobs(field: dict[str, object], says: str):
    with pytest.raises(ValidationError, match=f"array: elements cannot have {says}"):
        JobSpec.model_validate({"name": "x", "command": "true", "array": "0-9", **field})


def test_an_array_with_sizes_that_was_taken_before_goes_on():
    sizes = {"min": 1, "max": 4}
    stored = {"name": "x", "command": "true", "array": "0-9", "malleable": sizes}
    assert JobSpec.as_known(stored).array == spec("0-9")


def test_a_plain_job_is_written_as_it_was():
    assert "array" not in JobSpec(name="x", command="true").model_dump()


def test_too_many_elements_are_refused_by_arithmetic():
    assert too_many(spec("0-99"), 100) == ""
    assert too_many(spec("0-999999:1"), 100_000) == (
        "array 0-999999 has 1,000,000 elements; 100,000 is the most (setting "
        "most_array_elements): use a step, or several arrays"
    )


def test_a_limit_holds_for_slots_and_a_setting_where_there_is_none():
    assert slot_limit(spec("0-99%5"), 256, 100) == 5
    assert slot_limit(spec("0-999"), 256, 1000) == 256
    assert slot_limit(spec("0-9"), 256, 10) == 10


def test_a_table_gives_variables():
    table = spec({"columns": ["LR", "SEED"], "rows": [["0.1", "7"], ["0.2", "8"]]})
    assert (table.most_elements, table.parameters(1)) == (2, {"LR": "0.2", "SEED": "8"})
    assert table.without_rows == spec("0-1")


def test_indices_are_told_in_short():
    assert ranges_text((0, 1, 2, 7, 9, 10)) == "0-2,7,9-10"
    assert ranges_text(tuple(range(0, 20, 2)), most=2) == "0,2 and 8 others"


def lately(number: int, seconds: float) -> list[ElementResult]:
    """Return elements that took so long, one after another."""
    step = timedelta(seconds=seconds)
    return [
        ElementResult(
            index=at, attempt=1, started_at=NOW + at * step, ended_at=NOW + (at + 1) * step
        )
        for at in range(number)
    ]


@pytest.mark.parametrize(
    ("took", "waiting", "slots", "size"),
    [
        ([], 10_000, 8, 1),  # nobody knows
        (lately(1, 1.0), 10_000, 8, 2),  # twice the one before
        (lately(16, 1.0), 10_000, 8, 20),  # 20 s worth
        (lately(5, 1.0), 100, 8, 6),  # a fair share of what is left
        (lately(1, 60.0), 10_000, 8, 1),
        (lately(9, 0.001), 10_000, 8, 18),
        (lately(400, 0.001), 10_000, 8, MOST_IN_BATCH),
        (lately(90, 0.01), 80, 8, 10),  # short work: all of its part of what is left
        (lately(90, 0.01), 800, 8, 50),  # as much of it as half a second has
        (lately(90, 0.01), 3, 8, 1),
        (lately(1, 0.02), 39, 4, 2),  # the first failed at once; the rest may be long
        ([], 0, 8, 0),
    ],
)
def test_a_batch_is_some_seconds_of_work(
    took: list[ElementResult], waiting: int, slots: int, size: int
):
    assert batch_size(took, waiting, slots) == size


def played(seconds: list[float], slots: int, message: float = 0.1) -> tuple[float, int]:
    """Return when an array ends whose elements take so long, and how many batches it takes.

    `message` is what lies between two batches of a slot."""
    free: list[tuple[float, int, list[ElementResult]]] = [(0.0, n, []) for n in range(slots)]
    at, batches, end = 0, 0, 0.0
    while at < len(seconds):
        now, slot, before = heapq.heappop(free)
        mine = seconds[at : at + batch_size(before, len(seconds) - at, slots)]
        at, batches, ran, now = at + len(mine), batches + 1, list[ElementResult](), now + message
        for took in mine:
            ran.append(
                ElementResult(
                    index=0, attempt=1, started_at=NOW + timedelta(seconds=now),
                    ended_at=NOW + timedelta(seconds=now + took),
                )
            )  # fmt: skip
            now += took
        heapq.heappush(free, (now, slot, ran))
        end = max(end, now)
    return end, batches


@pytest.mark.parametrize("first", [0.0, 0.02])
@pytest.mark.parametrize("rest", [0.5, 5.0, 60.0])
def test_a_first_element_that_fails_at_once_costs_no_parallelism(first: float, rest: float):
    seconds = [first] + [rest] * 39
    end, _ = played(seconds, 4)
    # One batch may begin when all others have ended; here it has two elements at most.
    assert end < sum(seconds) / 4 + 2 * rest + 3


def test_many_short_elements_take_few_batches():
    end, batches = played([0.002] * 10_000, 8)
    assert 2 * batches / 10_000 < 0.04, "billed actions: a claim and a run for each batch"
    assert end < 6, "of which 2.5 s are the elements"


@given(
    seconds=st.lists(st.sampled_from([0.001, 0.02, 0.5, 30.0]), min_size=1, max_size=300),
    slots=st.integers(1, 40),
)
def test_no_slot_takes_more_than_its_part(seconds: list[float], slots: int):
    ran = [each for took in seconds for each in lately(1, took)]
    for waiting in (1, 7, 100, 10_000):
        size = batch_size(ran, waiting, slots)
        assert 1 <= size <= min(-(-waiting // slots), 2 * len(ran), MOST_IN_BATCH)


def test_elements_that_are_claimed_are_not_told_as_running():
    counts = {SUCCEEDED: 4, RUNNING: 36, WAITING: 2}
    told = "of 42 elements 4 succeeded, 4 running, 32 claimed, 2 waiting"
    assert progress_text(counts, 32) == told
    assert progress_text({RUNNING: 4}) == "of 4 elements 4 running"
    assert progress_text({RUNNING: 4}, aside=1).endswith(" 4 running; 1 slot is set aside")
    assert decide(seen(counts, claimed=32)).reason == told


POLICY = RetryPolicy.model_validate(
    {"user": {"max_retries": 2, "backoff": "4s"}, "node": {"max_retries": 1}}
)


def ended(**how: object) -> ElementResult:
    return ElementResult.model_validate({"index": 0, "attempt": 1, **how})


@pytest.mark.parametrize(
    ("result", "used", "stopped_as", "cancelled", "state", "again"),
    [
        (ended(exit_code=0), {}, None, False, SUCCEEDED, None),
        (ended(failure="user"), {}, None, False, FAILED, 4),
        (ended(failure="user"), {"user": 1}, None, False, FAILED, 8),
        (ended(failure="user"), {"user": 2}, None, False, FAILED, None),
        (ended(failure="node"), {"user": 2}, None, False, FAILED, 0),
        (ended(failure="node"), {"node": 1}, None, False, FAILED, None),
        (ended(stopped=True), {}, FailureClass.PREEMPTED, False, FAILED, 0),
        (ended(stopped=True), {}, None, False, FAILED, 0),  # held or moved
        (ended(stopped=True), {}, None, True, CANCELLED, None),
        (ended(stopped=True, cancelled=True), {}, None, False, CANCELLED, None),
        (ended(failure="user"), {}, None, True, FAILED, None),
        (ended(exit_code=0), {}, None, True, SUCCEEDED, None),
    ],
)
def test_what_follows_from_a_result(
    result: ElementResult,
    used: dict[str, int],
    stopped_as: FailureClass | None,
    cancelled: bool,
    state: ElementState,
    again: int | None,
):
    found = outcome(
        result, POLICY, {FailureClass(k): n for k, n in used.items()}, stopped_as,
        cancelled=cancelled,
    )  # fmt: skip
    wait = None if found.again is None else found.again.total_seconds()
    assert (found.state, wait) == (state, again)


def seen(counts: dict[ElementState, int], **fields: object) -> ArraySeen:
    base: dict[str, object] = {
        "limit": 50, "ready": counts.get(WAITING, 0), "next_ready": None, "placed": 0, "queued": 0,
    }  # fmt: skip
    return ArraySeen(counts=counts, **base | fields)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("found", "opened"),
    [
        (seen({WAITING: 100}), FIRST_SLOTS),
        (seen({WAITING: 3}), 3),
        (seen({WAITING: 100}, limit=2), 2),
        (seen({WAITING: 100}, placed=8, queued=0), 8),
        (seen({WAITING: 100}, placed=8, queued=8), 0),  # enough wait for GPUs
        (seen({WAITING: 100}, placed=20, queued=8), 12),
        (seen({WAITING: 100}, placed=48, queued=0), 2),
        (seen({WAITING: 100}, failed=47), 3),  # one that failed counts
        (seen({WAITING: 100}, failed=5, begun=False), FIRST_SLOTS - 5),
        (seen({RUNNING: 3}, placed=3), 0),
    ],
)
def test_slots_are_opened_as_they_are_of_use(found: ArraySeen, opened: int):
    assert decide(found).open == opened


@pytest.mark.parametrize(("left", "opened"), [(100, 8), (8, 8), (3, 3), (0, 0), (-2, 0)])
def test_as_many_slots_are_opened_as_the_queue_takes(left: int, opened: int):
    room = QueueRoom(left, "quota of tenant red: max_queued: 5 + 1 > 5", NOW)
    plan = decide(seen({WAITING: 100}, queue_room=room, begun=False))
    assert (plan.open, plan.give_up, plan.state) == (opened, "", JobState.RUNNING)
    assert plan.wake_at == (NOW if opened < 8 else None)
    assert ("max_queued: 5 + 1 > 5" in plan.reason) is (opened == 0)


def test_slots_that_wait_for_gpus_end_when_no_element_is_left():
    plan = decide(seen({RUNNING: 3}, placed=3, queued=5))
    assert (plan.cancel_queued, plan.cancel_all, plan.open) == (True, False, 0)


def test_a_wait_before_a_retry_is_waited_for():
    plan = decide(seen({WAITING: 1, SUCCEEDED: 9}, ready=0, next_ready=NOW))
    assert (plan.state, plan.wake_at, plan.open) == (JobState.RUNNING, NOW, 0)


def test_what_no_slot_can_run_fails():
    plan = decide(
        seen({WAITING: 9, SUCCEEDED: 1}, limit=2, failed=2, slot_message="no such folder",
             slot_failure=FailureClass.START)
    )  # fmt: skip
    assert plan.give_up == "no slot was left to run it: no such folder"
    none = seen({WAITING: 100}, limit=256, failed=FIRST_SLOTS, begun=False)
    assert decide(none).give_up
    # All that had got elements were lost, and the elements wait again.
    assert decide(dataclasses.replace(none, begun=True)).open == FIRST_SLOTS
    assert decide(seen({FAILED: 9, SUCCEEDED: 1}, slot_failure=FailureClass.START)).failure is (
        FailureClass.START
    )


@pytest.mark.parametrize(
    ("counts", "state", "reason"),
    [
        ({SUCCEEDED: 10}, JobState.SUCCEEDED, "10 elements succeeded"),
        ({SUCCEEDED: 7, FAILED: 3}, JobState.FAILED, "of 10 elements 7 succeeded, 3 failed"),
        ({SUCCEEDED: 9, CANCELLED: 1}, JobState.FAILED, "of 10 elements 9 succeeded, 1 cancelled"),
    ],
)
def test_how_an_array_ends(counts: dict[ElementState, int], state: JobState, reason: str):
    plan = decide(seen(counts))
    assert (plan.state, plan.reason) == (state, reason)


def test_an_array_that_is_cancelled_ends_its_slots_first():
    plan = decide(seen({CANCELLED: 8, RUNNING: 2}, placed=2, cancelled="enough"))
    assert (plan.state, plan.cancel_all) == (JobState.RUNNING, True)
    plan = decide(seen({CANCELLED: 10}, cancelled="enough"))
    assert (plan.state, plan.reason) == (JobState.CANCELLED, "enough")


def test_one_that_is_held_opens_nothing():
    plan = decide(seen({WAITING: 10}, queued=3, held=True))
    assert (plan.open, plan.cancel_queued) == (0, True)


@given(
    waiting=st.integers(0, 500), ready=st.integers(0, 500), placed=st.integers(0, 60),
    queued=st.integers(0, 60), failed=st.integers(0, 60), limit=st.integers(1, 50),
    running=st.integers(0, 50),
)  # fmt: skip
def test_never_more_slots_than_the_limit_and_never_stuck(
    waiting: int, ready: int, placed: int, queued: int, failed: int, limit: int, running: int
):
    ready = min(ready, waiting)
    plan = decide(
        seen({WAITING: waiting, RUNNING: running}, ready=ready, placed=placed, queued=queued,
             failed=failed, limit=limit, next_ready=NOW if ready < waiting else None)
    )  # fmt: skip
    assert plan.open == 0 or placed + queued + plan.open <= limit
    slots = placed + queued
    if waiting and not slots:
        # Something follows: slots, an end for want of them, or a look at a known time.
        assert plan.open or plan.give_up or plan.wake_at


def test_before_its_begin_an_array_opens_no_slot_and_says_when():
    begins_at = datetime(2026, 11, 20, 8, tzinfo=UTC)
    plan = decide(seen({WAITING: 100}, begins_at=begins_at))
    assert (plan.open, plan.reason) == (0, "begins at 2026-11-20 08:00 UTC")
    both = decide(seen({WAITING: 100}, begins_at=begins_at, held=True))
    assert both.reason == (
        "held: it starts no further element; begins at 2026-11-20 08:00 UTC at the earliest"
    )
