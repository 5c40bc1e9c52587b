"""The end of a block comes, whatever keeps it from being decided that its machine goes on."""

import asyncio
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from longshore.models.block import (
    BlockEnd,
    BlockInput,
    BlockLook,
    BlockRef,
    BlockVerdict,
    block_workflow_id,
)
from longshore.models.block_end import BlockOptionKind, GoOnRequest
from longshore.workflows import block as block_module
from longshore.workflows.block import BlockWorkflow

_LASTS = timedelta(seconds=6)
"""From the first look on: enough for some tries on a loaded machine."""
_UNSEEN = "unseen"
"""A block that is looked at once, and never again."""
_LATE, _BLIND, _BLIND_ON = "late", "blind", "blind-on"
"""One whose decision comes after its drain should have begun, and its money never; and two that
cannot be looked at any more once their money was to be committed, or is."""
_STEPS = ("decide_block", "go_on")
_FAILURES = ("ValidationError", "IntegrityError")
"""Of a row that this worker cannot read, and of a rule of the database."""


class ScriptedBlocks:
    """The activities of blocks `STEP.FAILURE`: machines that are to go on, where that step fails
    at each try. Of the block `untold` it commits before it fails, and its nodes are told once the
    block has been looked at again."""

    def __init__(self) -> None:
        self.began: dict[str, datetime] = {}
        self.tries: Counter[str] = Counter()
        self.done: dict[str, list[str]] = {}
        self.committed: set[str] = set()
        self.seen: set[str] = set()
        self.drained: dict[str, datetime] = {}

    @activity.defn
    async def look_at_block(self, ref: BlockRef) -> BlockLook:
        if ref.block_id == _UNSEEN:
            return self._look_once(ref)
        if ref.block_id in (_BLIND, _BLIND_ON) and self.tries[ref.block_id]:
            raise ApplicationError("it cannot be read", type="DataError")
        ends_at = self.began.setdefault(ref.block_id, datetime.now(UTC)) + _LASTS
        if ref.block_id == _LATE:
            return self._look_late()
        if ref.block_id in self.committed:
            self.seen.add(ref.block_id)
            ends_at += _LASTS
            return BlockLook(ends_at=ends_at, drain_at=ends_at - timedelta(seconds=5))
        return BlockLook(ends_at=ends_at, drain_at=ends_at - timedelta(seconds=1), goes_on=True)

    def _look_late(self) -> BlockLook:
        began = self.began[_LATE]
        return BlockLook(
            ends_at=began + 5 * _LASTS, drain_at=began + timedelta(seconds=0.1), goes_on=True,
            over=_LATE in self.drained,
        )  # fmt: skip

    def _look_once(self, ref: BlockRef) -> BlockLook:
        self.tries[ref.block_id] += 1
        if ref.block_id in self.began:
            raise ApplicationError("it cannot be read", type="DataError")
        ends_at = self.began.setdefault(ref.block_id, datetime.now(UTC)) + _LASTS
        return BlockLook(ends_at=ends_at, drain_at=ends_at, look_at=datetime.now(UTC))

    @activity.defn
    async def decide_block(self, ref: BlockRef) -> BlockVerdict:
        self._fail(ref.block_id, "decide_block")
        if ref.block_id == _LATE:
            await asyncio.sleep(0.2)
        until = self.began[ref.block_id] + 2 * _LASTS
        kind = BlockOptionKind.GO_ON
        return BlockVerdict(kind=kind, reason="go on", until=until, uses={"job": 7})

    @activity.defn
    async def go_on(self, request: GoOnRequest) -> BlockVerdict:
        assert request.uses == {"job": 7}
        self._fail(request.block_id, "go_on")
        if request.block_id in (_LATE, _BLIND, _BLIND_ON):
            self.tries[request.block_id] += 1
        if request.block_id == _BLIND_ON:
            return BlockVerdict(kind=BlockOptionKind.GO_ON, reason="go on")
        if request.block_id in (_LATE, _BLIND):
            raise ApplicationError("it cannot be read", type="DataError")
        self.committed.add(request.block_id)
        if request.block_id not in self.seen:
            raise ApplicationError("its node does not answer")
        self._note(BlockRef(block_id=request.block_id), "told")
        return BlockVerdict(kind=BlockOptionKind.GO_ON, reason="go on")

    @activity.defn
    async def drain_block(self, ref: BlockRef) -> None:
        self._note(ref, "drain")
        self.drained[ref.block_id] = datetime.now(UTC)

    @activity.defn
    async def stop_machines(self, ref: BlockRef) -> None:
        self._note(ref, "stop")

    @activity.defn
    async def close_block(self, ref: BlockRef) -> BlockEnd:
        return BlockEnd(block_id=ref.block_id, cost=0, used=0, idle=0, resold=0, reason=ref.reason)

    def _fail(self, block_id: str, here: str) -> None:
        step, _, kind = block_id.partition(".")
        if step == here:
            self.tries[block_id] += 1
            raise ApplicationError("it cannot be read", type=kind)

    def _note(self, ref: BlockRef, what: str) -> None:
        self.done.setdefault(ref.block_id, []).append(what)


async def test_a_machine_ends_in_time_however_often_what_it_would_go_on_by_fails(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
):
    steps = ScriptedBlocks()
    names = [f"{step}.{kind}" for step in _STEPS for kind in _FAILURES]
    blocks = [BlockInput(block_id=name) for name in names]
    ends = await ended(temporal, monkeypatch, steps, blocks)
    assert [end.reason for end in ends] == ["its time is over"] * len(names)
    for name in names:
        assert steps.done[name] == ["drain", "stop"]
        assert steps.tries[name] > 1, "it was tried again"


async def test_the_machines_of_a_block_stop_that_cannot_be_looked_at_any_more(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
):
    steps = ScriptedBlocks()
    monkeypatch.setattr(block_module, "MARKET_TIMEOUT", timedelta(seconds=2))
    monkeypatch.setattr(block_module, "_LOOK_AGAIN", timedelta(seconds=0.2))
    (end,) = await ended(temporal, monkeypatch, steps, [BlockInput(block_id=_UNSEEN)])
    assert end.reason == "its time is over"
    assert steps.done[_UNSEEN] == ["drain", "stop"]
    assert steps.tries[_UNSEEN] > 2, "it was tried again"


async def test_its_machines_stop_also_where_no_look_comes_once_its_workflow_runs_anew(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
):
    """With a history of its own: a block of more than a day, or one that fails for so long."""
    steps = ScriptedBlocks()
    monkeypatch.setattr(block_module, "MARKET_TIMEOUT", timedelta(seconds=2))
    monkeypatch.setattr(block_module, "_LOOK_AGAIN", timedelta(seconds=0.2))
    monkeypatch.setattr(
        workflow.Info, "is_continue_as_new_suggested", lambda info: info.continued_run_id is None
    )
    (end,) = await ended(temporal, monkeypatch, steps, [BlockInput(block_id=_UNSEEN)])
    assert end.reason == "its time is over"
    assert steps.done[_UNSEEN] == ["drain", "stop"]


@pytest.mark.exhaustive
async def test_the_nodes_of_a_machine_that_goes_on_are_told_late_where_that_took_too_long(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
):
    steps = ScriptedBlocks()
    await ended(temporal, monkeypatch, steps, [BlockInput(block_id="untold", draining=True)])
    assert steps.done["untold"] == ["told", "drain", "stop"], "it drains for its next end"


@pytest.mark.exhaustive
async def test_no_drain_waits_for_what_comes_late(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
):
    """It waited until the end of the block: no job had time to leave."""
    steps = ScriptedBlocks()
    await ended(temporal, monkeypatch, steps, [BlockInput(block_id=_LATE)], within=5)
    assert steps.tries[_LATE] > 1
    assert steps.drained[_LATE] - steps.began[_LATE] < 4 * _LASTS


async def test_a_machine_ends_that_cannot_be_looked_at_once_its_money_was_to_be_committed(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
):
    steps = ScriptedBlocks()
    (end,) = await ended(temporal, monkeypatch, steps, [BlockInput(block_id=_BLIND)])
    assert end.reason == "its time is over"
    assert steps.done[_BLIND] == ["drain", "stop"]


async def test_a_machine_that_goes_on_does_so_also_where_that_cannot_be_seen(
    temporal: Client, monkeypatch: pytest.MonkeyPatch
):
    steps = ScriptedBlocks()
    await ended(temporal, monkeypatch, steps, [BlockInput(block_id=_BLIND_ON)])
    assert steps.done[_BLIND_ON] == ["drain", "stop"]
    assert steps.drained[_BLIND_ON] - steps.began[_BLIND_ON] > 1.5 * _LASTS


async def ended(
    temporal: Client,
    monkeypatch: pytest.MonkeyPatch,
    steps: ScriptedBlocks,
    blocks: list[BlockInput],
    within: float = 0.5,
) -> list[BlockEnd]:
    """Follow blocks to their ends; a step is waited for so many seconds at least."""
    monkeypatch.setattr(block_module, "DATABASE_TIMEOUT", timedelta(seconds=within))
    queue = f"blocks-{uuid.uuid4().hex}"
    activities = [
        steps.look_at_block, steps.decide_block, steps.go_on, steps.drain_block,
        steps.stop_machines, steps.close_block,
    ]  # fmt: skip
    async with Worker(
        temporal, task_queue=queue, workflows=[BlockWorkflow], activities=activities,
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):  # fmt: skip
        return await asyncio.wait_for(
            asyncio.gather(*(
                temporal.execute_workflow(
                    BlockWorkflow.run, block, id=block_workflow_id(block.block_id),
                    task_queue=queue,
                )
                for block in blocks
            )),
            60,
        )  # fmt: skip
