"""Times and durations after the submit, as `begin` of a job has them."""

from datetime import UTC, datetime, timedelta

import pytest

from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.moment import format_moment, parse_moment, said_at, says_begin

NOW = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("2h", 2 * HOUR), (90, timedelta(seconds=90)), ("PT1H", HOUR),
        ("2026-11-20T08:00:00Z", NOW), ("2026-11-20 09:00+01:00", NOW),
    ],
)  # fmt: skip
def test_a_time_and_a_duration_are_read_and_written_again(
    written: object, found: datetime | timedelta
):
    spec = JobSpec.model_validate({"name": "a", "command": "b", "begin": written})
    assert spec.begin == found
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert parse_moment(format_moment(found)) == found


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("2026-11-20 08:00", "a time needs its zone: 2026-11-20T08:00:00Z is UTC"),
        ("2026-11-20", "a time needs its zone: 2026-11-20T00:00:00Z is UTC"),
        ("16:00", "give the time with its day and zone, such as 2026-11-20T16:00:00Z, or 16h"),
        ("2100-01-01T00:00:00Z", "a time has to be before 2100"),
        ("9999-12-31T23:59:59-14:00", "a time has to be before 2100"),
        ("2026-13-01T00:00:00Z", "or a time such as 2026-11-20T08:00:00Z, not '2026-13-01T00:"),
        ("tomorrow", "expected a duration such as 2h, which counts from the submit, or a time"),
        ("-1h", "expected a duration such as 2h"),
        (-3600, "a duration cannot be negative"),
        ("4000d", "a duration is ten years at most (3653d)"),
        (True, "expected a duration such as 2h"),
    ],
)
def test_what_is_neither_is_refused_with_what_would_be_right(written: object, says: str):
    with pytest.raises(ValueError, match="begin") as refused:
        JobSpec.model_validate({"name": "a", "command": "b", "begin": written})
    assert says in str(refused.value)


def test_all_mistakes_of_a_file_are_named_with_field_and_line():
    text = "name: a\ncommand: b\ngpus: 0\nbegin: 2026-11-20 08:00\n"
    with pytest.raises(SpecError) as refused:
        load_document(text, "job.yaml", JobSpec)
    assert [each.split(" ")[:2] for each in refused.value.problems] == [
        ["job.yaml:3:", "gpus:"], ["job.yaml:4:", "begin:"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("begin", "begins_at"),
    [
        (None, None), ("0s", None), ("2h", NOW + 2 * HOUR), ("2026-11-20T07:59:00Z", None),
        ("2026-11-20T09:00:00Z", NOW + HOUR),
    ],
)  # fmt: skip
def test_a_begin_that_is_past_is_as_none_and_the_wait_counts_from_one_to_come(
    begin: str | None, begins_at: datetime | None
):
    spec = JobSpec.model_validate({"name": "a", "command": "b", "begin": begin})
    assert spec.begins_at(NOW) == begins_at
    assert JobRequest.of("a", spec, NOW, 1).submitted_at == (begins_at or NOW)


def test_a_job_without_it_is_written_as_it_was():
    assert "begin" not in JobSpec(name="a", command="b").model_dump()


def test_how_a_begin_is_said():
    assert said_at(NOW, NOW - HOUR) == "08:00 UTC"
    assert said_at(NOW + timedelta(seconds=5), NOW - 9 * HOUR) == "2026-11-20 08:00:05 UTC"
    assert says_begin(NOW, NOW) == "begins at 08:00 UTC"
    assert says_begin(NOW, hold="held") == "held; begins at 2026-11-20 08:00 UTC at the earliest"
