"""Jobs that open their own streams anew, and so would empty a file: `> /dev/stderr`."""

import pytest

from longshore.activities.logstore import Shipped
from tests.agent.conftest import LocalNode

ANEW = """
echo one >&2; echo out one
echo two > /dev/stderr; echo out two > /dev/stdout
echo three >&2; echo out three
"""


async def test_a_job_that_opens_its_streams_anew_loses_no_line(box: LocalNode) -> None:
    run = box.start(ANEW)
    report = await run.done
    assert (report.exit_code, report.log_error) == (0, "")
    key = run.record.key
    streams: tuple[tuple[Shipped, str], ...] = (
        ("stdout", "out one\nout two\nout three\n"),
        ("stderr", "one\ntwo\nthree\n"),
    )
    for stream, said in streams:
        assert box.output(key, stream) == said
        shipped = box.logs.read(key.job_id, stream=stream)
        assert shipped.data == said.encode()


async def test_of_an_array_each_element_keeps_its_own(box: LocalNode) -> None:
    run = box.start_batch(f"echo I am $LONGSHORE_ARRAY_INDEX; {ANEW}", 3)
    batch = (await run.done).batch
    assert batch
    written = box.output(run.record.key).encode()
    assert [
        written[each.stdout.offset : each.stdout.end].split(b"\n")[:2] for each in batch.results
    ] == [[b"I am %d" % index, b"out one"] for index in range(3)]
    assert len(written) == batch.results[-1].stdout.end
    assert {each.stdout.length for each in batch.results} == {
        len("I am 0\nout one\nout two\nout three\n")
    }


@pytest.mark.parametrize("count", [1, 3])
async def test_what_is_written_last_is_there_at_the_end(box: LocalNode, count: int) -> None:
    """More than a pipe holds, also of one that leaves something behind."""
    command = "sleep 300 & head -c 3000000 /dev/zero | tr '\\0' x; echo end"
    run = box.start_batch(command, count) if count > 1 else box.start(command)
    assert (await run.done).failure is None
    assert len(box.output(run.record.key)) == count * 3_000_004
    assert box.output(run.record.key).endswith("end\n")
