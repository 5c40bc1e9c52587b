"""`deadline` of a job: what is taken, and what is refused with what would be right."""

from datetime import UTC, datetime, timedelta

import pytest

from longshore.models.bounds import TAKEN
from longshore.models.dag import DagSpec
from longshore.models.deadline import DeadlineJudgment, DeadlineOutlook
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec

NOW = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "command": "b", **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"deadline": "0s"}, "0s is not after the submit: give a later one, or none"),
        ({"deadline": "2h", "begin": "2h"}, "2h is not after its begin, 2h: give a later one"),
        ({"deadline": "2h", "begin": "3h"}, "2h is not after its begin, 3h: give a later one"),
        (
            {"deadline": "2026-11-20T20:00:00Z", "begin": "2026-11-20T21:00:00+01:00"},
            "2026-11-20T20:00:00Z is not after its begin, 2026-11-20T20:00:00Z",
        ),
        (
            {"deadline": "3h", "begin": "1h", "expected_duration": "150m"},
            "3h is too soon: from its begin, 1h on the job takes 2h30m (`expected_duration`); "
            "give 3h30m or later, or a shorter `expected_duration`",
        ),
        (
            {"deadline": "1h", "expected_duration": "2h"},
            "1h is too soon: from the submit on the job takes 2h (`expected_duration`); "
            "give 2h or later",
        ),
        ({"deadline": "16:00"}, "or 16h"),
        ({"deadline": "2026-11-20T20:00:00"}, "a time needs its zone"),
        ({"deadline": "soon"}, "expected a duration such as 2h, which counts from the submit"),
    ],
)
def test_what_cannot_be_met_by_its_file_alone_is_refused(
    fields: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match="deadline") as refused:
        a_spec(**fields)
    assert says in str(refused.value)


def test_a_file_is_refused_at_the_line_of_its_deadline() -> None:
    with pytest.raises(SpecError) as refused:
        load_document("name: a\ncommand: b\nbegin: 3h\ndeadline: 2h\n", "job.yaml", JobSpec)
    (problem,) = refused.value.problems
    assert problem.startswith("job.yaml:4: deadline: 2h is not after its begin, 3h")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"deadline": "2026-11-20T07:59:00Z"}, "2026-11-20T07:59:00Z is past: give a time to"),
        ({"deadline": "2026-11-20T10:00:00Z", "begin": "2h"}, "is not after its begin, 2h"),
        (
            {"deadline": "2026-11-20T10:00:00Z", "begin": "1h", "expected_duration": "90m"},
            "give 2026-11-20T10:30:00Z or later",
        ),
        (
            # A begin that is past is as none.
            {
                "deadline": "3h", "begin": "2026-11-20T07:00:00Z",
                "expected_duration": "2h",
            },
            "",
        ),
        ({"deadline": "2026-11-20T10:00:00Z", "max_duration": "12h"}, ""),
        # No longer than it may.
        ({"deadline": "2h", "max_duration": "1h", "expected_duration": "9h"}, ""),
        ({"deadline": "3h", "begin": "2026-11-20T11:30:00Z"}, "3h is not after its begin, 2026-"),
        ({}, ""),
    ],
)  # fmt: skip
def test_what_cannot_be_met_from_now_on_is_said_at_the_submit(
    fields: dict[str, object], says: str
) -> None:
    found = a_spec(**fields).why_in_vain(NOW)
    assert says in found
    assert bool(found) is bool(says)


def test_it_counts_from_the_submit_where_it_is_a_duration() -> None:
    assert a_spec(deadline="8h", begin="1h").deadline_at(NOW) == NOW + 8 * HOUR
    assert a_spec(deadline="2026-11-20T20:00:00Z").deadline_at(NOW) == NOW + 12 * HOUR
    assert a_spec().deadline_at(NOW) is None


def test_what_was_taken_once_is_read_as_it_is() -> None:
    stored = {"name": "a", "command": "b", "begin": "3h", "deadline": "2h"}
    assert JobSpec.as_known(stored).deadline == 2 * HOUR
    assert JobSpec.model_validate(stored, context=TAKEN).deadline == 2 * HOUR
    assert "deadline" not in a_spec().model_dump()


def test_a_job_of_a_dag_has_one_of_its_own() -> None:
    jobs = {"one": {"command": "b", "deadline": "8h"}}
    dag = DagSpec.model_validate({"name": "d", "jobs": jobs})
    assert dag.jobs["one"].spec.deadline == 8 * HOUR


def test_what_a_newer_version_says_of_it_is_unknown_here() -> None:
    stored = {"at": NOW.isoformat(), "outlook": "hopeless", "says": "it is", "more": 1}
    found = DeadlineJudgment.model_validate(stored)
    assert found.outlook is DeadlineOutlook.UNKNOWN
    assert found.told == "unknown: it is"


def test_how_it_is_said_in_two_words() -> None:
    late = DeadlineJudgment(
        at=NOW, outlook=DeadlineOutlook.LATE, late_by=HOUR / 5, says="late by 12m: it waits"
    )
    assert (late.brief, late.told) == ("late by 12m", "late by 12m: it waits")
    assert late.model_copy(update={"at_least": True}).brief == "late by over 12m"
    risk = DeadlineJudgment(at=NOW, outlook=DeadlineOutlook.AT_RISK, says="it waits")
    assert (risk.brief, risk.told) == ("at risk", "at risk: it waits")
