"""When what a queue says of a waiting job is written anew, and when its job hears of it."""

from datetime import datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longshore.models.placement import Decision, PlacementKind, RejectionCode
from longshore.scheduling.reason_updates import Stored, to_tell, to_write
from longshore.scheduling.words import format_start
from tests.support.packing import NOW

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
WAITS = PlacementKind.REQUEST_MORE_CAPACITY


def test_what_is_stored_already_is_not_written():
    said = _said()
    assert to_write([said], {"a": _stored(said)}, NOW) == []


def test_what_nobody_has_looked_at_is_written():
    (written,) = to_write([_said()], {"a": Stored(attempt=3)}, NOW)
    assert (written.decision, written.attempt, written.is_news) == (_said(), 3, True)


def test_another_constraint_kind_or_class_is_news():
    stored = {"a": _stored(_said())}
    for change in (
        {"rejected": {RejectionCode.GPUS_BUSY: 2, RejectionCode.STATE: 1}},
        {"kind": PlacementKind.QUEUE_FOR_FLEX},
        {"counted_as": 7},
        {"estimated_start": NOW + HOUR},
    ):
        (written,) = to_write([_said(**change)], stored, NOW)
        assert written.is_news, change


def test_a_start_is_news_when_it_moves_by_more_than_a_minute_and_a_tenth():
    def is_news(before: timedelta, after: timedelta) -> bool:
        stored = {"a": _stored(_said(estimated_start=NOW + before), at=NOW)}
        found = to_write([_said(estimated_start=NOW + after, reason="later")], stored, NOW)
        return any(each.is_news for each in found)

    assert not is_news(3 * MINUTE, 4 * MINUTE)
    assert is_news(3 * MINUTE, 4 * MINUTE + timedelta(seconds=1))
    assert not is_news(10 * HOUR, 9 * HOUR)
    assert is_news(10 * HOUR, 9 * HOUR - MINUTE)
    assert is_news(-5 * MINUTE, MINUTE)


def test_a_start_is_news_when_a_place_is_kept_for_it_or_no_longer():
    said = _said(estimated_start=NOW + HOUR)
    for before, after in ((True, False), (False, True)):
        stored = {"a": _stored(said)._replace(start_kept=before)}
        written = to_write([said.model_copy(update={"start_kept": after})], stored, NOW)
        assert [each.is_news for each in written] == [True]


def test_a_start_without_a_place_kept_is_written_when_it_moves_and_is_no_news():
    """Each newcomer that goes first moves it: a signal each would fill the job's history."""
    at = NOW + HOUR
    later = {"estimated_start": at, "start_kept": False, "reason": format_start(at)}
    stored = {"a": _stored(_said(**later))}
    for by, is_written in ((MINUTE, False), (7 * MINUTE, True), (-7 * MINUTE, True)):
        start = NOW + HOUR + by
        said = _said(**later | {"estimated_start": start, "reason": format_start(start)})
        written = to_write([said], stored, NOW + MINUTE)
        assert [(each.decision, each.is_news) for each in written] == [(said, False)] * is_written
    unknown = {"a": _stored(_said())}
    (written,) = to_write([_said(**later)], unknown, NOW + MINUTE)
    assert not written.is_news
    assert to_write([_said(**later)], {"a": Stored(attempt=1)}, NOW)[0].is_news, "its first answer"


def test_starts_without_a_place_kept_that_move_are_all_written_whoever_else_has_other_words():
    """A job of hours that goes first moves all of them: they are not behind fifty mere words."""

    def said(number: int, start: timedelta | None, words: str) -> Decision:
        later = {} if start is None else {"estimated_start": NOW + start, "start_kept": False}
        return _said(job_id=f"job-{number:03}", reason=words, **later)

    five = 5 * HOUR
    moves = [(HOUR, HOUR + five)] * 60 + [(HOUR, None)] * 4 + [(None, five)] * 4
    before = [said(number, start, "old") for number, (start, _) in enumerate(moves)]
    after = [said(number, start, "new") for number, (_, start) in enumerate(moves)]
    before += [said(number, None, "old") for number in range(100, 300)]
    after += [said(number, None, "new") for number in range(100, 300)]
    stored = {
        each.job_id: _stored(each, at=NOW - (MINUTE if each.job_id < "job-100" else HOUR))
        for each in before
    }
    written = to_write(after, stored, NOW)
    assert [each.decision for each in written[: len(moves)]] == after[: len(moves)]
    assert len(written) == len(moves) + 50, "and as many mere words as ever"
    assert not any(each.is_news for each in written)


def test_that_a_start_without_a_place_kept_is_known_no_more_is_told_to_nobody():
    stored = {"a": _stored(_said(estimated_start=NOW + HOUR, start_kept=False))}
    gone = _said(reason="its start is not known")
    (written,) = to_write([gone], stored, NOW)
    assert (written.decision, written.is_news) == (gone, False)
    assert to_write([gone], {"a": _stored(written.decision)}, NOW + MINUTE) == []


def test_a_start_that_creeps_is_news_by_what_was_news_last():
    """As of a holder that should have ended: each cycle has it end a little later."""
    stored, heard, now = {"a": Stored(attempt=1)}, list[str](), NOW
    for second in range(0, 300, 10):
        now = NOW + timedelta(seconds=second)
        start = now + MINUTE
        plan = [_said(estimated_start=start, reason=format_start(start))]
        written = to_write(plan, stored, now)
        before = stored["a"]
        if written:
            assert written[0].is_news
            stored["a"] = _stored(written[0].decision, at=now)._replace(
                told=before.told, told_at=before.told_at
            )
        if to_tell(plan, {"a": before}, written, now):
            stored["a"] = stored["a"]._replace(told=stored["a"].words, told_at=now)
            heard.append(stored["a"].words)
    assert [each[-12:-4] for each in heard] == [
        "12:01:00", "12:02:10", "12:03:20", "12:04:30", "12:05:40"
    ]  # fmt: skip


def test_a_start_that_moves_with_the_clock_is_written_when_it_is_news_alone():
    """As of a holder of which nobody knows when it ends, which has run for three days."""

    def said_at(second: int) -> Decision:
        start = NOW + 2 * timedelta(seconds=second) + 72 * HOUR
        return _said(estimated_start=start, reason=f"on 3 nodes; it waits {format_start(start)}")

    stored = {"a": _stored(said_at(0), at=NOW)}
    for second in range(10, 3600, 10):
        assert to_write([said_at(second)], stored, NOW + timedelta(seconds=second)) == []
    last = said_at(3600)
    other = last.model_copy(update={"reason": last.reason.replace("3 nodes", "4 nodes")})
    (written,) = to_write([other], stored, NOW + HOUR)
    assert not written.is_news
    assert written.decision.estimated_start == last.estimated_start
    assert written.decision.start_told == NOW + 72 * HOUR


def test_mere_words_are_written_for_a_few_the_oldest_first_and_not_at_once():
    names = [f"job-{number:03}" for number in range(120)]
    said = [_said(job_id=name, reason="of late") for name in names]
    stored = {
        name: _stored(_said(job_id=name), at=NOW - timedelta(seconds=number))
        for number, name in enumerate(names)
    }
    written = to_write(said, stored, NOW)
    assert sorted(each.decision.job_id for each in written) == names[70:]
    assert not any(each.is_news for each in written)
    fresh = {name: stored[name]._replace(at=NOW - timedelta(seconds=9)) for name in names}
    assert to_write(said, fresh, NOW) == []


def test_a_job_that_is_set_aside_once_more_rests_once_more():
    aside = _said(kind=PlacementKind.SET_ASIDE, rejected={})
    stored = {"a": _stored(aside)._replace(told=aside.reason, told_at=NOW - HOUR)}
    written = to_write([aside], stored, NOW)
    assert [each.decision for each in written] == [aside]
    assert to_tell([aside], stored, written, NOW) == []


def test_a_job_hears_at_once_that_it_is_set_aside():
    """No cycle looks at it again for ten minutes, and for so long it would say what it heard."""
    aside = _said(kind=PlacementKind.SET_ASIDE, rejected={}, reason="its request cannot be read")
    heard = _heard(_said(), 1)
    assert to_tell([aside], heard, to_write([aside], heard, NOW), NOW) == ["a"]


def test_a_job_hears_of_its_first_reason_and_of_news_after_a_while():
    said, news = _said(), _said(counted_as=6, reason="later")
    first = {"a": Stored(attempt=1)}
    assert to_tell([said], first, to_write([said], first, NOW), NOW) == ["a"]
    for ago, hears in ((20, []), (31, ["a"])):
        heard = _heard(said, ago)
        assert to_tell([news], heard, to_write([news], heard, NOW), NOW) == hears
        # It came too early once, and was stored: it is told later, though nothing is new.
        late = {"a": _stored(news)._replace(told=said.reason, told_at=heard["a"].told_at)}
        assert to_tell([news], late, [], NOW) == hears


def test_nobody_hears_of_mere_words():
    heard = _heard(_said(), 60)
    words = _said(reason="2 nodes are busy")
    written = to_write([words], heard, NOW)
    assert [each.is_news for each in written] == [False]
    assert to_tell([words], heard, written, NOW) == []


def test_those_that_heard_nothing_come_first_in_the_order_of_the_plan():
    said = [_said(job_id=f"job-{number:03}") for number in range(60)]
    stored = {each.job_id: Stored(attempt=1) for each in said}
    old = stored["job-000"]._replace(told="something else", told_at=NOW - HOUR)
    stored["job-000"] = old
    told = to_tell(said, stored, to_write(said, stored, NOW), NOW)
    assert told == [f"job-{number:03}" for number in range(1, 51)]


@given(st.data())
def test_after_some_cycles_every_job_says_what_is_true(data: st.DataObject):
    """Whatever a plan says: what is written makes what is stored true but for numbers in words,
    and where nothing changes any more the words too, and then nothing is written."""
    jobs = [f"job-{number}" for number in range(data.draw(st.integers(1, 70)))]
    codes = st.dictionaries(st.sampled_from(RejectionCode), st.integers(1, 3), max_size=2)
    stored = {job: Stored(attempt=1) for job in jobs}
    now, plan = NOW, list[Decision]()
    for _ in range(4):
        now += timedelta(seconds=data.draw(st.integers(1, 40)))
        plan = [
            _said(
                job_id=job, rejected=data.draw(codes), reason=data.draw(st.sampled_from("xy")),
                estimated_start=data.draw(st.sampled_from([None, NOW + HOUR, NOW + 3 * HOUR])),
            )
            for job in jobs
        ]  # fmt: skip
        _write(plan, stored, now)
        for decision in plan:
            now_stored = stored[decision.job_id]
            assert now_stored.codes == decision.rejected.keys()
            assert now_stored.start == decision.estimated_start
    for _ in range(2):
        now += timedelta(seconds=11)
        _write(plan, stored, now)
    assert {job: stored[job].words for job in jobs} == {d.job_id: d.reason for d in plan}
    assert to_write(plan, stored, now + HOUR) == []


def _write(plan: list[Decision], stored: dict[str, Stored], now: datetime) -> None:
    for written in to_write(plan, stored, now):
        stored[written.decision.job_id] = _stored(written.decision, at=now)


def _heard(said: Decision, seconds_ago: int) -> dict[str, Stored]:
    told_at = NOW - timedelta(seconds=seconds_ago)
    return {"a": _stored(said)._replace(told=said.reason, told_at=told_at)}


def _said(**fields: Any) -> Decision:
    return Decision.model_validate(
        {
            "job_id": "a", "kind": WAITS, "rejected": {RejectionCode.GPUS_BUSY: 3},
            "reason": "3 nodes are busy", **fields,
        }
    )  # fmt: skip


def _stored(said: Decision, at: datetime = NOW - HOUR) -> Stored:
    return Stored(
        attempt=1, kind=said.kind, codes=frozenset(said.rejected), counted_as=said.counted_as,
        start=said.estimated_start, start_told=said.start_told,
        start_kept=said.start_kept, words=said.reason, at=at,
    )  # fmt: skip
