"""The queue as HTML and as curves: terms, many rows, and text that people give."""

from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.console import queue_view as view
from longshore.models.deadline import DeadlineJudgment, DeadlineOutlook
from longshore.models.packing import QueueOrder
from longshore.models.queue_view import (
    QueuedJobView,
    QueueHistory,
    QueueMoment,
    QueueView,
    RankTerms,
    ScoreOfJob,
    StartErrors,
)
from longshore.models.score import ScoreProfile

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
TERMS = RankTerms(
    price=30e6, gpus=4, growth=1.25, left=timedelta(hours=2), rank=22.8 / 3600 * 1e6
)  # fmt: skip


def a_job(place: int | None = 1, **fields: Any) -> QueuedJobView:
    return QueuedJobView.model_validate(
        {
            "place": place, "job_id": f"job-{place}", "name": "job", "tenant": "lab",
            "priority": 5, "counted_as": 5, "gpus": 4, "waited": "4m20s",
            "attained": "0s", **fields,
        }
    )  # fmt: skip


def a_queue(*jobs: QueuedJobView, order: QueueOrder = QueueOrder.AGE) -> QueueView:
    return QueueView(pool="default", order=order, jobs=jobs)


def test_the_terms_of_a_rank_stand_where_the_pool_goes_by_rank():
    starts_at = NOW + timedelta(hours=3)
    ranked = a_queue(a_job(terms=TERMS, starts_at=starts_at, counted_as=7))
    html = view.waiting_html(ranked, NOW)
    for said in ("22.8", "$30.00", "1.25", "2h", "15:00:00", "5 as 7", "4m 20s"):
        assert f">{said}</td>" in html
    assert "Growth" in html
    assert "rank = price" in view.below_html(ranked)
    plain = a_queue(a_job(starts_at=starts_at + timedelta(days=1)))
    html = view.waiting_html(plain, NOW)
    assert ">Nov 27 15:00:00</td>" in html
    assert "Growth" not in html
    assert view.below_html(plain) == ""


def test_deadlines_have_a_column_where_somebody_has_one():
    risk = DeadlineJudgment(
        at=NOW + timedelta(hours=5), outlook=DeadlineOutlook.AT_RISK, says="may start <soon>"
    )
    html = view.waiting_html(a_queue(a_job(deadline=risk), a_job(2)), NOW)
    assert ">17:00:00 at risk</td>" in html
    assert html.count("Deadline, UTC</th>") == 1
    assert "Deadline" not in view.waiting_html(a_queue(a_job()), NOW)


def test_a_job_that_is_set_aside_has_no_place():
    html = view.waiting_html(a_queue(a_job(None, gpus=None, reason="it cannot be read")), NOW)
    assert '<tr><td class="n">–</td>' in html
    assert "it cannot be read" in html


def test_of_a_long_queue_the_first_hundred_are_shown():
    queue = a_queue(*(a_job(place) for place in range(1, 1_303)))
    assert view.waiting_html(queue, NOW).count("<tr>") == 1 + view.SHOWN
    assert "1,202 more jobs behind these." in view.below_html(queue)


def test_what_people_write_is_no_html():
    html = view.waiting_html(a_queue(a_job(tenant="<b>", reason="<script>", first=True)), NOW)
    assert "&lt;b&gt;" in html
    assert "first for its long wait; &lt;script&gt;" in html
    assert "<script>" not in html


def test_a_row_for_starts_that_were_told_as_long_before():
    row = StartErrors(
        within=timedelta(hours=1), jobs=57, waiting=0, median=timedelta(minutes=7),
        p90=timedelta(minutes=26), earlier=31, later=12,
    )  # fmt: skip
    html = view.errors_html(
        [row, row.model_copy(update={"within": None, "waiting": 2})], "default"
    )
    for said in ("up to 1h", "over 1d", "57", "7m", "26m", "31", "12", "–", "2"):
        assert f">{said}</td>" in html
    assert "No job of pool default" in view.errors_html([], "default")


def test_the_curves_of_the_day_and_their_words():
    moments = (
        QueueMoment(at=NOW - timedelta(minutes=15), waiting=None, running=1, stops=0),
        QueueMoment(at=NOW, waiting=4, running=3, stops=2),
    )
    history = QueueHistory(
        pool="default", since=NOW - timedelta(minutes=30), every=timedelta(minutes=15),
        moments=moments,
    )  # fmt: skip
    waiting, running, stops = view.history_chart(history)["series"]
    assert [value for _, value in waiting["data"]] == [None, 4]
    assert [value for _, value in running["data"]] == [1, 3]
    # A bucket's number stands from the end of the one before to its own.
    assert stops["step"] == "start"
    assert stops["data"][0] == [history.since.isoformat(), 0]
    assert view.history_words(history) == (
        "The past day: 4 jobs left waiting by the last cycle, 3 running; at most 4 jobs waited; "
        "2 jobs stopped for others."
    )
    assert not view.is_blank(history)
    idle = [each.model_copy(update={"waiting": 0, "running": 0, "stops": 0}) for each in moments]
    assert view.is_blank(history.model_copy(update={"moments": tuple(idle)}))


def test_the_terms_of_a_score_stand_where_the_pool_has_one():
    score = ScoreOfJob(
        priority=0.5, waiting=0.69, fair_share=1, topology=0.575, data=0.25, backlog=0.4,
        energy=None, checkpoint=1 / 6, conformance=1, total=0.5999,
    )  # fmt: skip
    scored = a_queue(a_job(score=score)).model_copy(
        update={"weights": ScoreProfile.BALANCED.weights}
    )
    html = view.waiting_html(scored, NOW)
    for said in ("0.600", "0.57", "0.25"):
        assert f">{said}</td>" in html
    # Not the class and the wait once more, what is the same for all, or what has no weight.
    for head in ("Prio", "Wait<", "Backlog", "Energy", "Ckpt"):
        assert head not in html
    training = scored.model_copy(update={"weights": ScoreProfile.ML_TRAINING.weights})
    assert ">0.17</td>" in view.waiting_html(training, NOW)
    below = view.below_html(scored)
    assert "Weights: prio 0.2, wait 0.2, share 0.2" in below
    assert "Conf" in html
