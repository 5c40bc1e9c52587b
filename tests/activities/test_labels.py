"""Jobs selected by their labels and the form of their names, on PostgreSQL."""

import pytest
from sqlalchemy import text

from longshore.activities.job_selection import label_conditions
from longshore.activities.view_queries import of_jobs
from longshore.activities.views import Views
from longshore.models.labels import matches, parse_selector
from tests.support.ledger import Ledger

JOBS: dict[str, dict[str, str]] = {
    "a-1": {"sweep": "7", "team": "vision"},
    "a-2": {"sweep": "7", "team": "nlp"},
    "a-3": {"sweep": "8"},
    "b_1": {"team": "vision", "example.com/stage": ""},
    "b-2": {},
}


@pytest.mark.parametrize(
    "selector",
    [
        ["sweep=7"], ["sweep!=7"], ["team in (vision, nlp)"], ["team notin (vision, nlp)"],
        ["sweep"], ["!sweep"], ["sweep=7", "team!=nlp"], ["example.com/stage"], ["sweep=9"],
        ["team in (vision, other)", "!sweep"], [],
    ],
    ids=" and ".join,
)  # fmt: skip
async def test_the_database_selects_what_the_selector_says(ledger: Ledger, selector: list[str]):
    await _queued(ledger)
    asked = parse_selector(selector)
    found = await Views(ledger.database).jobs(labels=asked)
    assert {job.id for job in found} == {
        job_id for job_id, labels in JOBS.items() if matches(labels, asked)
    }
    assert {job.id: job.labels for job in found} == {job.id: JOBS[job.id] for job in found}


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("a-*", {"a-1", "a-2", "a-3"}), ("?-2", {"a-2", "b-2"}), ("b_1", {"b_1"}),
        ("b?1", {"b_1"}), ("*_*", {"b_1"}), ("%", set[str]()), ("*", set(JOBS)),
    ],
)  # fmt: skip
async def test_jobs_are_found_by_the_form_of_their_name(ledger: Ledger, form: str, said: set[str]):
    await _queued(ledger)
    assert {job.id for job in await Views(ledger.database).jobs(named=form)} == said


@pytest.mark.parametrize("selector", ["sweep=7", "sweep", "team in (vision, nlp)"])
async def test_a_selector_is_answered_by_an_index(ledger: Ledger, selector: str):
    wanted, values = label_conditions(parse_selector([selector]))
    query = f"EXPLAIN {of_jobs({}, wanted)}"
    async with ledger.database.transaction() as connection:
        # A small table is read whole where that is allowed.
        await connection.execute(text("SET LOCAL enable_seqscan = off"))
        await connection.execute(text("SET LOCAL enable_indexscan = off"))
        steps = (await connection.execute(text(query), values | {"limit": 50})).scalars()
        assert "jobs_by_label" in "\n".join(steps)


async def _queued(ledger: Ledger) -> None:
    for job_id, labels in JOBS.items():
        await ledger.enqueue(job_id, name=job_id, labels=labels)
