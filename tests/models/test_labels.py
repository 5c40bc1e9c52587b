"""Labels of jobs and what selects by them; time limits as Slurm writes them."""

from datetime import UTC, datetime, timedelta

import pytest

from longshore.models.dag import DagSpec
from longshore.models.document import load_document
from longshore.models.errors import SpecError
from longshore.models.job import JobSpec
from longshore.models.job_request import JobRequest
from longshore.models.labels import format_labels, matches, parse_label, parse_selector
from longshore.models.retry import FailureClass, RetryPolicy, RetryRule
from longshore.models.units import parse_time_limit
from longshore.scheduling.dag_paths import expected_seconds

RULE = (
    "it has letters, digits, dash, underscore and dot, with a letter or digit at both ends, at "
    "most 63 characters"
)
LABELS = {"sweep": "7", "team": "vision"}


def a_job(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"name": "train", "command": "x", **fields})


def test_numbers_are_texts_and_a_value_may_be_empty():
    spec = load_document(
        "{name: a, command: x, labels: {sweep: 7, lr: 0.1, example.com/stage: ''}}", "job", JobSpec
    )
    assert spec.labels == {"sweep": "7", "lr": "0.1", "example.com/stage": ""}
    assert format_labels(spec.labels) == "example.com/stage=, lr=0.1, sweep=7"


def test_what_says_neither_travels_as_before():
    told = a_job().model_dump(mode="json")
    assert not {"labels", "max_duration"} & told.keys()
    assert "time_limit" not in told["retry"]
    request = JobRequest.of("a", a_job(), _NOW, 1)
    assert "max_duration" not in request.model_dump(mode="json")


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("sweep=7", True), ("sweep==7", True), ("sweep!=7", False), ("sweep in (7, 8)", True),
        ("sweep notin (8)", True), ("sweep", True), ("!sweep", False), ("lr", False),
        ("!lr", True), ("lr!=1", True), ("lr notin (1)", True), ("lr=1", False),
    ],
)  # fmt: skip
def test_a_selector_means_what_it_means_in_kubernetes(selector: str, selected: bool):
    assert matches(LABELS, parse_selector([selector])) is selected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sweep=7,team=a", "give each by itself, as in --label sweep=7 --label team"),
        ("team in (a", "a bracket is missing"), ("team=a|b", "write team in"),
        ("sweep=", "a value is missing"), ("a b", "expected a selector of labels such as"),
        ("", "not ''"),
    ],
)  # fmt: skip
def test_what_selects_nothing_is_said(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        parse_selector([text])


def test_all_selectors_have_to_hold():
    assert matches(LABELS, parse_selector(["sweep=7", "team=vision"]))
    assert not matches(LABELS, parse_selector(["sweep=7", "team=nlp"]))
    assert matches({}, parse_selector([]))


@pytest.mark.parametrize("text", ["sweep=7", "a/b=", "example.com/team=x_y.z-1"])
def test_a_label_is_a_name_and_a_value(text: str):
    assert "=".join(parse_label(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sweep", "expected NAME=VALUE, such as sweep=7"), ("=7", "is no name of a label"),
        ("-a=7", "is no name of a label"), ("a=-7", "is no value of a label"),
        ("a b=7", "is no name of a label"), ("a=b c", "is no value of a label"),
        ("A_/x=7", "what is before the slash is no DNS name"),
        ("x" * 64 + "=7", "at most 63 characters"), ("a=" + "7" * 64, "at most 63 characters"),
    ],
)  # fmt: skip
def test_what_is_no_label_is_said(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        parse_label(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("90", timedelta(minutes=90)), ("90:30", timedelta(minutes=90, seconds=30)),
        ("1:30:00", timedelta(hours=1.5)), ("36:00:00", timedelta(hours=36)),
        ("1-0", timedelta(days=1)), ("1-12", timedelta(hours=36)),
        ("2-01:30", timedelta(days=2, hours=1.5)), ("0-00:00:09", timedelta(seconds=9)),
        ("90m", timedelta(minutes=90)), ("2h", timedelta(hours=2)),
        ("1d12h", timedelta(hours=36)), ("45s", timedelta(seconds=45)),
    ],
)  # fmt: skip
def test_a_time_limit_is_as_slurm_writes_it_or_as_we_do(text: str, limit: timedelta):
    assert parse_time_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "longer than 0"), ("0s", "longer than 0"), ("0-0", "longer than 0"),
        ("UNLIMITED", "leave it out"), ("1:60:00", "expected a time such as 90m"),
        ("1-2-3", "expected a time"), ("-5", "expected a time"), ("soon", "expected a time"),
        ("1:2:3:4", "expected a time"), ("9" * 20, "ten years at most"), ("", "expected a time"),
        ("5000d", "ten years at most"),
    ],
)  # fmt: skip
def test_what_is_no_time_limit_is_said(text: str, said: str):
    with pytest.raises(ValueError, match=said):
        parse_time_limit(text)


def test_no_attempt_is_taken_to_run_for_longer_than_it_may():
    spec = a_job(expected_duration="5h", max_duration="2h")
    assert spec.likely_duration == timedelta(hours=2)
    assert a_job(expected_duration="1h", max_duration="2h").likely_duration == timedelta(hours=1)
    assert JobRequest.of("a", spec, _NOW, 1).expected_duration == timedelta(hours=2)
    sizes = {"min": 1, "max": 4}
    elastic = a_job(expected_duration="1h", max_duration="90m", malleable=sizes)
    request = JobRequest.of("a", elastic, _NOW, 1)
    assert request.expected_duration == timedelta(hours=1)
    assert request.at_size(2).expected_duration == timedelta(minutes=90)
    assert request.at_size(2).max_duration is None


def test_a_time_limit_is_tried_again_only_where_the_policy_says_so():
    assert RetryPolicy().rule_for(FailureClass.TIME_LIMIT) == RetryRule()
    twice = RetryRule(max_retries=2)
    assert RetryPolicy(time_limit=twice).rule_for(FailureClass.TIME_LIMIT) == twice


def test_what_is_wrong_in_a_file_is_said_with_line_and_field():
    text = """\
name: train
command: x
max_duration: 0
labels:
  sweep: 7
  bad name: x
  team: -y
  on: true
retry:
  time_limit: {max_retry: 3}
"""
    with pytest.raises(SpecError) as caught:
        load_document(text, "job.yaml", JobSpec)
    assert caught.value.problems == (
        "job.yaml:3: max_duration: must be longer than 0: leave it out for no limit",
        f"job.yaml:6: labels.bad name: 'bad name' is no name of a label: {RULE}",
        f"job.yaml:7: labels.team: '-y' is no value of a label: {RULE}",
        "job.yaml:8: labels.on: must be text, got true",
        "job.yaml:10: retry.time_limit.max_retry: no such field; did you mean max_retries?",
    )


def test_jobs_of_a_dag_have_its_default_labels_or_their_own():
    text = """\
name: nightly
defaults: {labels: {sweep: 7, team: vision}, max_duration: 2h}
jobs:
  a: {command: x}
  b: {command: x, labels: {sweep: 8}, max_duration: 1h}
"""
    dag = load_document(text, "dag.yaml", DagSpec)
    assert {name: job.spec.labels for name, job in dag.jobs.items()} == {
        "a": LABELS, "b": {"sweep": "8"},
    }  # fmt: skip
    assert expected_seconds(dag) == {"a": 3600.0, "b": 3600.0}
    assert [job.max_duration for job in dag.jobs.values()] == [
        timedelta(hours=2), timedelta(hours=1),
    ]  # fmt: skip


def test_a_job_may_have_so_many_labels_and_no_more():
    with pytest.raises(ValueError, match="has 65 entries; 64 is the most"):
        a_job(labels={f"l{number}": "x" for number in range(65)})


_NOW = datetime(2026, 1, 1, tzinfo=UTC)
