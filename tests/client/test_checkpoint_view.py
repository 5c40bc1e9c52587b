"""How checkpoints show: in a table, and among the facts of their job."""

import io
from datetime import UTC, datetime, timedelta

from rich.console import Console, RenderableType

from longshore.client.checkpoint_commands import checkpoints_table
from longshore.client.checkpoint_view import checkpoint_facts, saving_facts
from longshore.models.checkpoint import CheckpointInfo
from longshore.models.checkpointing import CheckpointDecision, CheckpointTerm
from longshore.models.node_messages import Progress
from longshore.models.units import format_bytes

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def an_info(number: int, **fields: object) -> CheckpointInfo:
    document = {
        "job_id": "job-a", "attempt": 2, "number": number, "step": number * 100,
        "bytes": 2_140_000_000, "write_seconds": 4.25, "saved_at": NOW - timedelta(minutes=3),
        "published": True, "whole": True, **fields,
    }  # fmt: skip
    return CheckpointInfo.model_validate(document)


def shown(what: RenderableType) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_says_what_is_whole() -> None:
    half = an_info(2, ranks=4, whole=False, write_seconds=None, step=None)
    lines = shown(checkpoints_table((half, an_info(1, simulated=True)), NOW))
    assert lines[0].split() == ["attempt", "#", "step", "size", "saved", "took", "whole"]
    assert lines[1].split("  ")[-1] == "no: not all 4 ranks have stored it"
    assert lines[2].split() == [
        "2",
        "1",
        "100",
        "2.1GB",
        "3m",
        "ago",
        "4.2s",
        "yes",
        "(simulated)",
    ]


def test_a_job_shows_what_it_saved_last_and_what_is_stored() -> None:
    progress = Progress(checkpoint=an_info(3, published=False), checkpoint_error="no space left")
    facts = [value for _, value in checkpoint_facts(progress, an_info(1), NOW)]
    assert facts == [
        "step 300 of attempt 2, 3m ago, 2.1GB, written in 4.2s, not in the store",
        "step 100 of attempt 2, 3m ago, 2.1GB, written in 4.2s, is in the store",
        "trouble: no space left",
    ]


def test_what_is_stored_is_told_once() -> None:
    facts = checkpoint_facts(Progress(checkpoint=an_info(3)), an_info(3), NOW)
    assert len(facts) == 1
    assert checkpoint_facts(None, None, NOW) == []


def test_bytes_are_told_as_people_say_them() -> None:
    sizes = (0, 999, 1000, 2_140_000_000, 5 * 10**15)
    assert [format_bytes(size) for size in sizes] == ["0B", "999B", "1.0kB", "2.1GB", "5000.0TB"]


def test_a_decision_about_a_save_shows_with_what_counted() -> None:
    decision = CheckpointDecision(
        job_id="job-a", at=NOW - timedelta(seconds=20), save=True, value=90_000, write=40_000,
        storage=0, reason="$0.09 may be lost, most of it by failure; a save costs $0.04",
        terms=(CheckpointTerm(name="failure", chance=0.015, value=90_000),),
    )  # fmt: skip
    assert [value for _, value in saving_facts(decision, NOW)] == [
        "asked to save 20s ago: $0.09 may be lost, most of it by failure; a save costs $0.04",
        "may be lost: failure $0.09 (1.5%); a save: GPUs $0.04, storage $0.00",
    ]
    bare = decision.model_copy(update={"save": False, "terms": (), "reason": "saving is off"})
    assert [value for _, value in saving_facts(bare, NOW)] == [
        "not asked to save 20s ago: saving is off"
    ]
    assert saving_facts(None, NOW) == []
