"""Text that others chose, in cells of tables and single lines: neither too wide nor more lines."""

import pytest

from longshore.client.explain import explain
from longshore.client.job_view import job_screen, jobs_table
from longshore.client.node_view import nodes_table
from longshore.client.submission import new_job_id
from longshore.client.terminal import Text, a_table, pairs, say
from longshore.client.why_view import explanation_screen
from longshore.models.job import JobSpec
from longshore.models.job_report import JobReport
from longshore.models.job_status import JobState
from longshore.models.placement import Decision, PlacementKind
from longshore.models.text import NONE
from tests.support.screens import NOW, a_job, a_node, a_running_job, drawn

LONG_ID = f"{'n' * 63}-abcdefghij"
"""As long as one can be that is made of a name."""
CHOSEN_ID = "long-" * 40


@pytest.mark.parametrize("width", [80, 140])
def test_a_long_id_leaves_the_other_columns_readable(width: int) -> None:
    jobs = (a_running_job(), a_job(id=LONG_ID, reason="no node can take it now"))
    lines = drawn(jobs_table(jobs, NOW, width), width)
    assert lines[1].split()[:2] == ["train-abcdefghij", "RUNNING"]
    assert "node-a GPUs 0-3" in lines[1]
    assert "QUEUED" in lines[2]
    assert "no node can" in lines[2]
    # Whole, below one another.
    assert "".join(line[: width * 2 // 5].strip() for line in lines[2:]) == LONG_ID


def test_an_id_of_usual_length_is_not_folded_for_a_long_remark() -> None:
    job = a_job(id="train-with-a-name-abcdefghij0123", reason="no node can take it now " * 9)
    (_, line) = drawn(jobs_table((job,), NOW, 80))
    assert line.startswith("train-with-a-name-abcdefghij0123  QUEUED")


def test_a_pipe_gets_every_id_whole_that_is_made_of_a_name() -> None:
    spec = JobSpec(name="n" * 63, command="true")
    for job_id in (LONG_ID, new_job_id(spec, None)):
        assert job_id in drawn(jobs_table((a_job(id=job_id),), NOW, 4000), 4000)[1]


@pytest.mark.parametrize("width", [80, 140, 4000])
def test_a_longer_id_is_shortened_in_its_middle(width: int) -> None:
    """So it does not make every row as wide; its ends tell it from others."""
    jobs = (a_running_job(), a_job(id=f"{CHOSEN_ID}-2", reason="no node can take it now"))
    table = jobs_table(jobs, NOW, width)
    lines = drawn(table, width)
    taken = max(lines[1].index("RUNNING") - 2, 0)
    said = "".join(line[:taken].strip() for line in lines[2:])
    assert (len(said), said.count("…")) == (len(LONG_ID), 1)
    first, last = said.split("…")
    assert CHOSEN_ID.startswith(first)
    assert f"{CHOSEN_ID}-2".endswith(last)


def test_every_table_shortens_what_is_never_folded() -> None:
    table = a_table(("purchase", "why"), fold=("why",))
    table.add_row("p" * 300, "w" * 300)
    shown = drawn(table, 1000)[1]
    assert (shown.count("p"), shown.count("w")) == (len(LONG_ID) - 1, 300)


@pytest.mark.parametrize("width", [80, 140])
def test_a_long_id_of_a_node_is_folded_and_leaves_its_state_readable(width: int) -> None:
    held = ["train"] * 8
    away = a_node(*held, id=LONG_ID, state="LOST", state_reason="no word of it", simulated=True)
    bought = a_node(*held, id="p-1234567890ab-1-1", gpu_type="NVIDIA H100 80GB HBM3")
    for node in (away, bought):
        lines = drawn(nodes_table((node,), NOW, width), width)
        assert lines[0].split()[-1] == "jobs"
        for part in (node.state.value, "[aaaaaaaa]  8/64  64/512GB  never", "a=train"):
            assert part in lines[1]
        assert "".join(line[: lines[0].index("state")].strip() for line in lines[1:]) == node.id


def test_the_state_of_a_node_that_limits_much_is_whole_in_a_narrow_table() -> None:
    limits = {"storage_bandwidth": 10, "storage_used": 2, "power": 5600, "power_used": 1400}
    node = a_node("train", id=LONG_ID, state="DRAINING", state_reason="new disk", **limits)
    lines = drawn(nodes_table((node,), NOW, 80))
    assert "  state CORDONED new disk  GPUs 1 x H100" in "\n".join(lines)


def test_a_table_that_is_too_wide_is_told_in_paragraphs_and_cuts_nothing() -> None:
    headings = ("pool", *(f"column {letter}" for letter in "abcdefgh"), "why")
    table = a_table(headings, right=("column a",), fold=("why",))
    for pool in ("default", "other"):
        table.add_row(pool, *(f"value-{letter}" for letter in "abcdefg"), "", "because " * 15)
    lines = drawn(table, 80)
    assert max(map(len, lines)) <= 80
    assert lines[0] == "pool default  column a value-a  column b value-b  column c value-c"
    assert lines[1] == "  column d value-d  column e value-e  column f value-f  column g value-g"
    assert [line[:5] for line in lines].count("pool ") == 2
    assert "\n".join(lines).count("because") == 30
    assert "column h" not in "\n".join(lines), "of what is empty nothing is said"
    wide = drawn(table, 300)
    assert wide[0].split() == " ".join(headings).split()
    assert len(wide) == 3


@pytest.mark.parametrize("width", [80, 140])
def test_a_reason_of_a_node_makes_no_row(width: int) -> None:
    node = a_node(None, state="DRAINING", state_reason="a\nnode-b READY", simulated=True)
    lines = drawn(nodes_table((node,), NOW, width), width)
    assert r"CORDONED a\nnode-b READY" in "".join(lines)
    # The mark of a simulated node has a line of its own in a narrow table: that newline is ours.
    assert len(lines) == (3 if width == 80 else 2)


@pytest.mark.parametrize("width", [80, 120, 140])
def test_a_long_reason_of_a_node_leaves_the_other_columns_readable(width: int) -> None:
    away = a_node(None, id="local-2", state="DRAINING", state_reason="z" * 2500)
    busy = a_node("train-abcdefghij", id="local-1")
    _, *lines = drawn(nodes_table((away, busy), NOW, width), width)
    first, second = (line for line in lines if line.startswith("local-"))
    assert first.split()[0] == "local-2"
    assert "CORDONED" in " ".join(lines).replace(" ", "")
    assert second.split()[:2] == ["local-1", "READY"]
    for line, cells in ((first, "[·]"), (second, "[a]")):
        assert f"{cells}  8/64  64/512GB  never" in line
    assert "…" in "".join(lines)


def test_a_pipe_gets_more_of_a_reason() -> None:
    node = a_node(None, state="DRAINING", state_reason="z" * 1000)
    assert "z" * 1000 in drawn(nodes_table((node,), NOW, 4000), 4000)[1]


def test_cells_facts_and_lines_show_the_end_of_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    table = a_table(("a", "b"))
    table.add_row("x\ny", Text("x", style="red").append("\ny"))
    assert drawn(table)[1].split() == [r"x\ny", r"x\ny"]
    assert drawn(pairs([("why", "x\ny")])) == [r"why  x\ny"]
    say("x\ny")
    assert capfd.readouterr().out == "x\\ny\n"


def test_the_reason_of_a_job_is_one_line() -> None:
    said = Decision(job_id="x", kind=PlacementKind.REQUEST_MORE_CAPACITY, reason="no\nroom")
    told = explain(a_job(), last=said, position=1, nodes=1)
    assert r"waits: no\nroom" in drawn(explanation_screen(told, NOW))[0]
    job = a_job(JobState.CANCELLED, reason="a\nb", ended_at=NOW)
    shown = drawn(job_screen(JobReport(job=job, spec=JobSpec(name="x", command="true")), NOW))
    assert r"why        a\nb" in shown


def test_a_job_whose_spec_cannot_be_read_asks_for_nothing_that_is_known() -> None:
    (line,) = drawn(jobs_table([a_job(gpus=0, gpu_type="B200")], NOW, 80), 80)[1:]
    assert line.split()[2] == NONE
