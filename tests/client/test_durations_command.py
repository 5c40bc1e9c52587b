"""`longshore durations`: how long jobs run, as is learnt from those before them."""

from datetime import UTC, datetime, timedelta

from rich.console import Console

from longshore.client.durations_command import durations_table
from longshore.client.queue_view import queue_table
from longshore.models.durations import DurationRow, DurationsView, ExpectedFrom
from longshore.models.packing import QueueOrder
from longshore.models.queue_view import QueuedJobView, QueueView
from tests.client.conftest import Command
from tests.support.screens import drawn

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


async def test_it_says_that_nothing_is_learnt_yet_and_what_is_no_name(longshore: Command):
    nothing = await longshore("durations", "--name", "nobody-has-this-*")
    assert (nothing.code, nothing.out) == (0, "")
    assert "No job that succeeded is on record" in nothing.err
    as_json = await longshore("durations", "--name", "nobody-has-this-*", "--json")
    assert DurationsView.model_validate_json(as_json.out).rows == ()
    wrong = await longshore("durations", "--name", "No name")
    assert wrong.code == 2
    assert "--name: expected a name or a form of one" in wrong.err


def test_a_row_for_each_name_and_shape():
    row = DurationRow(
        tenant="default", name="nightly/train", shape="8 x H100", runs=34,
        last=NOW - 2 * HOUR, quantiles=(30 * MINUTE, 40 * MINUTE, HOUR, 2 * HOUR, 9 * HOUR),
        expected=2 * HOUR, used_by=("a", "b", "c"), used=12,
    )  # fmt: skip
    few = row.model_copy(update={"name": "rare", "runs": 3, "expected": None, "used": 0,
                                 "used_by": ()})  # fmt: skip
    lines = _printed(durations_table(DurationsView(rows=(row, few), needed=20), NOW, 200))
    assert lines[0] == [
        "name", "shape", "runs", "1", "in", "10", "half", "9", "in", "10", "planned", "with",
        "last", "in", "use", "by",
    ]  # fmt: skip
    assert " ".join(lines[1]) == (
        "nightly/train 8 x H100 34 30m 1h 9h 2h 2h ago a, b, and 10 more"
    )
    assert " ".join(lines[2]) == "rare 8 x H100 3 30m 1h 9h – 2h ago –"
    other = few.model_copy(update={"tenant": "other"})
    both = _printed(durations_table(DurationsView(rows=(row, other), needed=20), NOW, 200))
    assert [line[0] for line in both] == ["tenant", "default", "other"]


def test_a_narrow_table_has_its_figures_whole():
    row = DurationRow(
        tenant="a-tenant-of-many", name="nightly/train-of-all", shape="8 x H100 with 80GB",
        runs=340, last=NOW - timedelta(hours=26), quantiles=(MINUTE, MINUTE, 25 * HOUR, HOUR,
        90 * HOUR + MINUTE), expected=26 * HOUR + MINUTE, used_by=("a",), used=1,
    )  # fmt: skip
    other = row.model_copy(update={"tenant": "other", "name": "x"})
    for width in (80, 100):
        table = durations_table(DurationsView(rows=(row, other), needed=20), NOW, width)
        lines = drawn(table, width)
        assert max(map(len, lines)) <= width
        for figure in ("340", "1d 1h", "3d 18h", "1d 2h", "26h ago"):
            assert sum(figure in line for line in lines) == 2, (figure, lines)
    none = row.model_copy(update={"expected": None})
    heading = drawn(durations_table(DurationsView(rows=(none,), needed=20), NOW, 80), 80)[0]
    assert heading.split() == ["name", "shape", "runs", "half", "9", "in", "10", "last"]


def test_the_queue_says_where_a_duration_comes_from():
    def waits(name: str, expected: ExpectedFrom, duration: timedelta | None) -> QueuedJobView:
        return QueuedJobView(
            place=1, job_id=name, name=name, tenant="default", priority=5, counted_as=5, gpus=1,
            waited=MINUTE, attained=0 * MINUTE, expected=expected, expected_duration=duration,
            reason="busy",
        )  # fmt: skip

    jobs = (
        waits("told", ExpectedFrom.KNOWN, 2 * HOUR), waits("seen", ExpectedFrom.LEARNT, HOUR),
        waits("new", ExpectedFrom.UNKNOWN, None),
    )  # fmt: skip
    queue = QueueView(pool="default", order=QueueOrder.AGE, jobs=jobs)
    lines = _printed(queue_table(queue, NOW, 100, start=False, terms=True))
    assert lines[0][-2:] == ["expected", "reason"]
    assert [" ".join(line[6:]) for line in lines[1:]] == [
        "2h stated busy", "1h learnt busy", "– busy",
    ]  # fmt: skip
    assert "expected" not in _printed(queue_table(queue, NOW, 100, start=False, terms=False))[0]


def _printed(table: object) -> list[list[str]]:
    console = Console(width=200)
    with console.capture() as seen:
        console.print(table)
    return [line.split() for line in seen.get().splitlines()]
