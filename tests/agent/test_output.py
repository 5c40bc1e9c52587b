"""The output file: read once the process has ended with success, and never more than it may be."""

import os
from pathlib import Path

from longshore.activities.node.output import read_output
from longshore.models.output import MOST_BYTES
from tests.agent.conftest import LocalNode


def test_what_is_no_file_or_too_large_is_told_and_not_read(tmp_path: Path):
    assert read_output(tmp_path / "output") is None
    (tmp_path / "output").write_text("\n")
    assert read_output(tmp_path / "output") is None
    (tmp_path / "output").write_bytes(b" " * MOST_BYTES + b"7" * 10**6)
    large = read_output(tmp_path / "output")
    assert large is not None
    assert (large.content, large.bytes) == ("", MOST_BYTES + 1)
    os.mkfifo(tmp_path / "fifo")
    fifo = read_output(tmp_path / "fifo")
    assert fifo is not None
    assert fifo.problem == "its output cannot be read: is no regular file"
    (tmp_path / "secret").write_text("7")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    link = read_output(tmp_path / "link")
    assert link is not None
    assert not link.content


async def test_it_comes_with_the_report_of_a_process_that_succeeds(box: LocalNode):
    run = box.start("""echo '{"rows": 7}' > "$LONGSHORE_OUTPUT" """)
    report = await run.done
    assert report.output is not None
    assert (report.output.content, report.output.bytes) == ('{"rows": 7}', 11)
    failed = await box.start("""echo 1 > "$LONGSHORE_OUTPUT"; exit 3""").done
    assert failed.output is None
    assert (await box.start("true").done).output is None
