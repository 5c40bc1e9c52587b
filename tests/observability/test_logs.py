"""Logs of real processes as JSON lines, and the filters one by one."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from longshore.activities.log_context import log_context
from longshore.models.settings import Settings
from longshore.workers import logs
from tests.support.plant import Plant, log_lines
from tests.support.waiting import eventually


async def test_every_line_of_both_processes_is_json_and_says_what_it_is_about(
    plant: Plant, jobs: dict[str, str]
):
    def of_the_job() -> list[dict[str, Any]]:
        return [line for line in log_lines(plant.agent.log) if line.get("job") == jobs["bad"]]

    line = (await eventually(of_the_job))[0]
    assert line["message"] == f"{jobs['bad']} attempt 1: exited with code 3"
    assert {name: line[name] for name in logs.FIELDS if name != "run"} == {
        "job": jobs["bad"], "attempt": 1, "node": "watched-1", "pool": "watched",
        "workflow": f"job-{jobs['bad']}", "activity": "run_process", "activity_attempt": 1,
    }  # fmt: skip
    control = log_lines(plant.control_log)
    assert control[0]["logger"] == "longshore.workers.control"
    for line in (*control, *log_lines(plant.agent.log)):
        assert {"time", "level", "logger", "message"} <= line.keys()
        assert "({'" not in line["message"]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where logs go in this test; afterwards they go where they went before."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)


def test_fields_hold_for_their_block_and_what_it_began(stream: io.StringIO):
    logs.set_up(Settings(log_format="json"), stream, node="n1")
    log = logging.getLogger("test")
    with log_context(job="j", attempt=2):
        log.info("inside")
    log.info("outside")
    inside, outside = map(json.loads, stream.getvalue().splitlines())
    assert (inside["job"], inside["attempt"], inside["node"]) == ("j", 2, "n1")
    assert outside["node"] == "n1"
    assert "job" not in outside


def test_a_warning_of_python_is_a_line_like_any_other(stream: io.StringIO):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logs.set_up(Settings(log_format="json"), stream)
        warnings.warn("a library is surprised", stacklevel=1)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["level"], line["logger"]) == ("WARNING", "py.warnings")
    assert "a library is surprised" in line["message"]


def test_lines_for_people_have_the_fields_behind_the_message(stream: io.StringIO):
    logs.set_up(Settings(), stream, node="n1")
    with log_context(job="j"):
        logging.getLogger("test").warning("look")
    assert stream.getvalue().endswith(" WARNING test: look [job=j node=n1]\n")


def test_lines_for_people_do_not_steer_their_terminal(stream: io.StringIO):
    logs.set_up(Settings(log_format="text"), stream)
    log = logging.getLogger("test")
    with log_context(job="j\x1b[2J"):
        log.info("no folder \x1b]0;title\x07 of \u202ejob")
    message, fields = stream.getvalue().rstrip("\n").split(" [job=")
    assert message.endswith("test: no folder \\x1b]0;title\\x07 of \\u202ejob")
    assert fields == "j\\x1b[2J]"
    try:
        raise ValueError("the command \x1b[31m")
    except ValueError:
        log.exception("failed")
    lines = stream.getvalue().splitlines()
    assert "Traceback (most recent call last):" in lines
    assert lines[-1] == "ValueError: the command \\x1b[31m"


def test_a_password_in_a_url_is_masked_wherever_it_comes_from(stream: io.StringIO):
    for format in ("text", "json"):
        logs.set_up(Settings(log_format=format), stream)
        try:
            raise ValueError("cannot open postgresql://me:hunter2@db/x")
        except ValueError:
            logging.getLogger("test").exception("at s3://key:hunter2@bucket")
    assert "hunter2" not in stream.getvalue()
    assert stream.getvalue().count("postgresql://me:***@db/x") == 4


def test_the_same_warning_is_written_once_in_a_while_with_its_count():
    now = 0.0
    seldom = logs.SeldomAgain(clock=lambda: now)

    def passes(message: str, level: int = logging.WARNING) -> logging.LogRecord | None:
        record = logging.LogRecord("x", level, "", 0, message, (), None)
        return record if seldom.filter(record) else None

    assert passes("a")
    assert passes("b")
    assert [passes("a"), passes("a")] == [None, None]
    assert passes("a", logging.INFO)
    now = logs.REPEAT_AFTER + 1
    again = passes("a")
    assert again
    assert "(and 2 times before)" in logs.Lines().format(again)
    assert json.loads(logs.JSONLines().format(again))["repeats"] == 2
    assert passes("a") is None
