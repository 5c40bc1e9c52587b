"""The progress file."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from longshore.activities.node.progress import parse_progress, read_progress
from longshore.models.node_messages import Progress
from tests.agent.conftest import LocalNode
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("line", "fraction", "message"),
    [
        ("0.42 epoch 3", 0.42, "epoch 3"),
        ("42% epoch 3", 0.42, "epoch 3"),
        ("420/1000   epoch 3 ", 0.42, "epoch 3"),
        ("0", 0.0, ""),
        ("1.0", 1.0, ""),
        ("100%", 1.0, ""),
    ],
)
def test_a_line_begins_with_a_fraction(line: str, fraction: float, message: str) -> None:
    assert parse_progress(line) == {"fraction": pytest.approx(fraction), "message": message}


@pytest.mark.parametrize(
    "line", ["loading", "1.5", "120%", "7/0", "3/2", "nan", "-0.1", "1e-3", "٤٢%"]
)
def test_another_first_word_is_noted_and_changes_no_fraction(line: str) -> None:
    parsed = parse_progress(line)
    assert "fraction" not in parsed
    assert "not understood" in str(parsed["message"])


def test_a_file_without_content_changes_nothing(tmp_path: Path) -> None:
    last = Progress(fraction=0.5, message="half")
    assert read_progress(tmp_path / "missing", last) is last
    (tmp_path / "empty").write_text(" \n")
    assert read_progress(tmp_path / "empty", last) is last


def test_bad_content_keeps_the_last_fraction(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_bytes(b"\xff\xfe garbage" * 10_000)
    read = read_progress(path, Progress(fraction=0.5))
    assert read.fraction == 0.5
    assert "not understood" in read.message
    assert len(read.message) < 300


def test_progress_says_when_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    before = datetime.now(UTC)
    path.write_text("10%\nonly the first line counts")
    read = read_progress(path, Progress())
    assert (read.fraction, read.message) == (0.1, "")
    assert read.at
    assert before - timedelta(seconds=1) <= read.at <= datetime.now(UTC)


async def test_a_running_process_shows_its_progress_and_the_report_its_last(
    box: LocalNode,
) -> None:
    run = box.start('echo "1/4 warm" > "$LONGSHORE_PROGRESS_FILE"; cat > /dev/null; sleep 0.3')
    await eventually(lambda: run.progress().fraction == 0.25)
    await eventually(lambda: run.progress().started_at)  # its supervisor says so at the same time
    report = await run.done
    assert report.last_progress
    assert (report.last_progress.fraction, report.last_progress.message) == (0.25, "warm")


async def test_a_job_ends_as_it_does_whatever_times_it_sets(box: LocalNode) -> None:
    """Those of its progress, and the one that is kept of its start."""
    later = "touch -d @999999999999 $LONGSHORE_PROGRESS_FILE; "
    report = await box.report(f"echo 50% >$LONGSHORE_PROGRESS_FILE; {later}")
    assert (report.exit_code, report.failure) == (0, None)
    assert report.last_progress
    assert report.last_progress.fraction == 0.5
    started = '"$(dirname "$LONGSHORE_PROGRESS_FILE")/../started.json"'
    change = 's/"at": [0-9.]*/"at": 999999999999/'
    report = await box.report(f"sed -i '{change}' {started}; grep -q 999999999999 {started}")
    assert (report.exit_code, report.failure) == (0, None)
