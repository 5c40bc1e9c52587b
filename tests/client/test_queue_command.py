"""`longshore queue`: who waits, in which order, with the terms of ranks and the starts."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from longshore.client.queue_view import errors_table, legends, queue_table
from longshore.models.packing import QueueOrder
from longshore.models.queue_view import (
    QueuedJobView,
    QueueView,
    RankTerms,
    ScoreOfJob,
    StartErrors,
)
from longshore.models.score import ScoreProfile
from tests.client.conftest import Command

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
NONE = timedelta(0)


async def test_it_lists_who_waits_in_order_with_what_ranks_are_made_of(
    longshore: Command, pool: str
):
    empty = await longshore("queue", "--pool", pool)
    assert empty.code == 66
    assert f"no pool '{pool}'" in empty.err
    set_ = await longshore("pool", "set", pool, "--profile", "none", "--order", "attained-service")
    assert set_.code == 0, set_.err
    shown = await longshore("pool", "show", pool)
    assert "attained-service" in shown.out
    nobody = await longshore("queue", "--pool", pool)
    assert (nobody.code, nobody.err) == (0, f"Nobody waits in pool {pool}.\n")
    for name, gpus, held in (("narrow", 1, False), ("wide", 8, False), ("held", 2, True)):
        ran = await longshore(
            "submit", "--pool", pool, "--name", name, "--gpus", str(gpus), "--yes", "-q",
            *(["--hold"] if held else []), "--", "true",
        )  # fmt: skip
        assert ran.code == 0, ran.err
        there = await longshore("job", ran.out.strip())  # on record by then
        assert there.code == 0, there.err
    found = await longshore("queue", "--pool", pool, "--json")
    queue = QueueView.model_validate_json(found.out)
    assert [(job.name, job.place) for job in queue.jobs] == [
        ("wide", 1), ("held", 2), ("narrow", 3),
    ]  # fmt: skip
    wide = queue.jobs[0]
    assert wide.terms is not None
    assert json.loads(found.out)["order"] == "attained-service"
    # No checkpoint: it ranks by all that it will run, as nobody said how long that is.
    assert wide.terms.left == timedelta(seconds=9_400)
    printed = await longshore("queue", "--pool", pool, "--terms", "--start")
    assert printed.code == 0, printed.err
    for heading in ("rank", "price", "growth", "left", "starts (UTC)"):
        assert heading in printed.out
    first = await longshore("queue", "--pool", pool, "-n", "1")
    assert "2 more jobs behind these" in first.err
    first = await longshore("queue", "--pool", pool, "-n", "1", "--json")
    assert [each["name"] for each in json.loads(first.out)["jobs"]] == ["wide"]
    assert "2 more jobs behind these" in first.err
    alone = await longshore("queue", "--pool", pool, "--since", "1h")
    assert (alone.code, "--since 1h: give --estimates too" in alone.err) == (2, True)
    told = await longshore("queue", "--pool", pool, "--estimates")
    assert (told.code, told.err) == (
        0, f"No job of pool {pool} was told a start in 1d that has come.\n",
    )  # fmt: skip
    wrong = await longshore("queue", "--pool", pool, "--estimates", "--since", "soon")
    assert (wrong.code, "--since 'soon': give a duration such as 10m" in wrong.err) == (2, True), (
        wrong.err
    )
    by_age = await longshore("pool", "set", pool, "--order", "age")
    assert by_age.code == 0
    plain = await longshore("queue", "--pool", pool, "--terms")
    assert f"pool {pool} goes by age" in plain.err
    assert "rank" not in plain.out
    assert plain.out.index("narrow") < plain.out.index("wide")


@pytest.mark.parametrize("width", [80, 160])
def test_a_row_tells_class_wait_and_start(width: int):
    terms = RankTerms(
        price=30_000_000, gpus=8, growth=7, left=timedelta(hours=2), rank=80_000_000 / 3600
    )
    risen = QueuedJobView(
        place=1, job_id="train-9gk2", name="train", tenant="lab", priority=4, counted_as=5,
        gpus=8, waited=timedelta(days=2), attained=timedelta(hours=2), first=True, terms=terms,
        starts_at=NOW + timedelta(days=1), reason="no node has 8 free GPUs",
    )  # fmt: skip
    queue = QueueView(pool="default", order=QueueOrder.ATTAINED_SERVICE, jobs=(risen,))
    console = Console(width=width)
    with console.capture() as captured:
        console.print(queue_table(queue, NOW, width, start=True, terms=width > 100))
    said = captured.get()
    assert "4 as 5" in said
    assert "Nov 26 12:00:00" in said
    if width > 100:
        for word in ("2d", "2h", "80", "$30.00", "7.00", "first for its long wait"):
            assert word in said


@pytest.mark.parametrize("width", [80, 160])
def test_a_row_tells_how_far_off_starts_were(width: int):
    near = StartErrors(
        within=timedelta(minutes=10), jobs=40, waiting=0, median=NONE, p90=timedelta(minutes=2),
        earlier=1, later=3,
    )  # fmt: skip
    far = near.model_copy(
        update={
            "within": None,
            "waiting": 2,
            "p90": timedelta(hours=30),
            "with_range": 9,
            "in_range": 6,
        }
    )
    console = Console(width=width)
    with console.capture() as captured:
        console.print(errors_table((near, far)))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    if width == 80:
        assert lines == [
            "told before up to 10m  jobs 40  half off by at most 0s  9 in 10 2m",
            "  came earlier 1  later 3  overdue –  in its range –",
            "told before over 1d  jobs 40  half off by at most 0s  9 in 10 1d 6h",
            "  came earlier 1  later 3  overdue 2  in its range 6 of 9",
        ]
        return
    rows = [line.split() for line in lines if line.startswith(("up to", "over"))]
    assert rows == [
        ["up", "to", "10m", "40", "0s", "2m", "1", "3", "–", "–"],
        ["over", "1d", "40", "0s", "1d", "6h", "1", "3", "2", "6", "of", "9"],
    ]


async def test_a_pool_that_is_made_is_balanced_until_it_is_told(longshore: Command, pool: str):
    assert (await longshore("pool", "set", pool, "--growth", "fixed")).code == 0
    shown = " ".join((await longshore("pool", "show", pool)).out.split())
    assert "balanced: priority 0.2, waiting 0.2, fair_share 0.2" in shown
    assert "attained-service" in shown
    told = await longshore("pool", "set", pool, "--profile", "none", "--order", "age")
    assert told.code == 0, told.err
    found = QueueView.model_validate_json((await longshore("queue", "--pool", pool, "--json")).out)
    assert (found.order, found.weights) == (QueueOrder.AGE, None)


@pytest.mark.exhaustive
async def test_a_score_is_set_by_a_profile_or_weights_and_shown(longshore: Command, pool: str):
    set_ = await longshore("pool", "set", pool, "--profile", "balanced", "--score", "half_life=3d")
    assert set_.code == 0, set_.err
    shown = await longshore("pool", "show", pool)
    assert "balanced: priority 0.2, waiting 0.2, fair_share 0.2" in " ".join(shown.out.split())
    assert "attained-service" in shown.out
    assert "half-life 3d" in shown.out
    ran = await longshore("submit", "--pool", pool, "--gpus", "1", "--yes", "-q", "--", "true")
    assert ran.code == 0, ran.err
    assert (await longshore("job", ran.out.strip())).code == 0  # on record by then
    found = QueueView.model_validate_json((await longshore("queue", "--pool", pool, "--json")).out)
    assert found.order is QueueOrder.ATTAINED_SERVICE
    (job,) = found.jobs
    assert job.score is not None
    assert (job.score.priority, job.score.energy) == (0.5, None)
    printed = await longshore("queue", "--pool", pool, "--terms")
    assert "score = sum of weight x term" in printed.out
    told = "target 100.0% of the pool, had 0.0% of late: "
    assert [part.target for part in found.tenants] == [1.0]
    assert f"share of {job.tenant}: {told}{job.tenant} 1 of 1 share" in " ".join(
        printed.out.split()
    )
    why = await longshore("why", job.job_id)
    assert told in " ".join(why.out.split())
    # Another profile brings its own order; one that is named goes before it.
    for arguments, order in (
        (("--profile", "service"), "age"),
        (("--profile", "interactive", "--order", "age"), "age"),
        (("--profile", "interactive"), "attained-service"),
        (("--profile", "none"), "attained-service"),
        (("--order", "age", "--term-weights", "waiting=0.6,data=.4"), "age"),
    ):
        done = await longshore("pool", "set", pool, *arguments)
        assert done.code == 0, done.err
        now = QueueView.model_validate_json(
            (await longshore("queue", "--pool", pool, "--json")).out
        )
        assert now.order == order, arguments
    assert now.weights is not None
    assert (now.weights.waiting, now.weights.data) == (0.6, 0.4)
    for arguments, says in (
        (("--profile", "balance"), "must be hpc-batch, ml-training, service, sensitive, "),
        (("--term-weights", "waiting=0.6"), "the nine weights sum to 0.6: they have to sum to 1"),
        (("--term-weights", "waiting=nan"), "waiting"),
        (("--term-weights", "waiting"), "waiting"),
        (("--profile", "service", "--term-weights", "waiting=1"), "one of the two"),
        (("--order", "attained-service", "--profile", "sensitive"), "give waiting a weight"),
    ):
        wrong = await longshore("pool", "set", pool, *arguments)
        assert wrong.code != 0
        assert says in wrong.err, wrong.err
    same = QueueView.model_validate_json((await longshore("queue", "--pool", pool, "--json")).out)
    assert same.weights == now.weights


@pytest.mark.parametrize("width", [80, 200])
def test_the_terms_of_a_score_stand_below_their_weights(width: int):
    score = ScoreOfJob(
        priority=0.5, waiting=0.69, fair_share=1, topology=0.575, data=0.5, backlog=0.5,
        energy=None, checkpoint=1 / 6, conformance=1, total=0.5999,
    )  # fmt: skip
    job = QueuedJobView(
        place=1, job_id="job-1", name="job", tenant="lab", priority=5, counted_as=5, gpus=4,
        waited=timedelta(hours=1), attained=NONE, score=score,
    )  # fmt: skip
    queue = QueueView(pool="p", order=QueueOrder.AGE, jobs=(job,),
                      weights=ScoreProfile.SERVICE.weights)  # fmt: skip
    table = queue_table(queue, NOW, width, start=True, terms=True)
    by_head = {str(column.header): list(column.cells) for column in table.columns}
    assert by_head["wait"] == ["x 0.05", "0.69"]
    assert by_head["score"] == ["", "0.600"]
    assert by_head["energy"] == ["x 0.1", "–"]
    assert any("No price of energy is known" in words for words in legends(queue))
    plain = queue_table(queue, NOW, width, start=False, terms=False)
    assert "wait" not in [column.header for column in plain.columns]
