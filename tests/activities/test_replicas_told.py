"""What the replicas of a service hold and do, as its step and its views tell it."""

from collections.abc import Sequence

import pytest
from sqlalchemy import text

from longshore.activities.database import clock
from longshore.activities.serving.service_rows import facts_of, lock_service, stop_replica
from longshore.activities.serving.service_views import replica_to_explain
from longshore.client.service_view import state_words
from longshore.models.service_messages import (
    EngineNotice,
)
from longshore.models.serving import (
    EngineReport,
    EngineStage,
)
from tests.support.recorded_service import RecordedService
from tests.support.scripted_node import DIED, ScriptedNode
from tests.support.waiting import eventually

_TOOK = EngineReport(stage=EngineStage.FAILED, memory=2_500_000_000, message="out of memory")
_SERVED = EngineReport(stage=EngineStage.READY, memory=2_500_000_000, endpoint="http://a/v1")


async def test_its_message_counts_what_its_replicas_do_now_and_not_at_the_last_look(
    served: RecordedService, node: ScriptedNode
):
    """Nobody looks at a service because an attempt of a replica ends and it waits again."""
    await served.record()
    await served.look()
    (replica,) = (await served.view()).replicas
    await node.started(replica.job_id)
    says = "of 1 replica: 1 draining"
    assert (await served.look(served.said(replica.job_id, EngineStage.DRAINING))).reason == says
    assert (await served.view()).message == says
    await node.cordon("so that it waits")
    await node.end(replica.job_id, report=DIED)

    async def waits() -> bool:
        return (await served.view()).replicas[0].stage is None

    await eventually(waits)
    assert (await served.view()).message == "of 1 replica: 1 without a GPU"
    assert (await served.listed()).message == "of 1 replica: 1 without a GPU"
    await served.end()


async def test_one_whose_engine_failed_says_why_it_has_no_gpu_once_it_is_queued(
    served: RecordedService,
):
    await served.record()
    await served.look()
    (replica,) = (await served.view()).replicas
    await served.queued(replica.job_id)
    queued = await served.look(served.said(replica.job_id, EngineStage.FAILED))
    assert queued.reason == "of 1 replica: 1 without a GPU"
    assert [each.says for each in queued.replicas] == ["waits for a GPU"]
    assert queued.failure == "it broke"

    async def why() -> str:
        """A cycle says it."""
        (now,) = (await served.view()).replicas
        return now.message if now.message.endswith("; its engine failed before: it broke") else ""

    assert (await eventually(why)).startswith("no node can take it now")
    async with served.control.transaction() as connection:
        of = {"id": replica.job_id}
        service = await lock_service(connection, served.name)
        facts = await facts_of(connection, service, None, await clock(connection))
        since = await connection.scalar(
            text("DELETE FROM queue WHERE job_id = :id RETURNING queued_at"), of
        )
        assert [each.queued_at for each in facts.replicas] == [since]
    between = await served.look()
    assert between.reason == "of 1 replica: 1 to be tried again after a failure"
    assert [each.says for each in between.replicas] == ["waits to be tried again"]
    (now,) = (await served.view()).replicas
    assert (now.message, state_words(now)) == ("it broke", "waits (1 failed)")
    assert (await served.view()).message == between.reason
    await served.end()


async def test_one_that_left_while_idle_does_not_say_why_an_engine_before_failed(
    served: RecordedService,
):
    await served.record()
    await served.look()
    (replica,) = (await served.view()).replicas

    async def told(*notices: EngineNotice) -> tuple[str, bool]:
        await served.look(*notices)
        (now,) = (await served.view()).replicas
        return state_words(now), "it broke" in now.message

    failed = "waits (1 failed)", True
    loading = served.said(replica.job_id, EngineStage.LOADING, 2)
    assert await told(served.said(replica.job_id, EngineStage.FAILED)) == failed
    assert await told(loading) == failed, "it is none that has been ready"
    assert await told(served.said(replica.job_id, EngineStage.READY, 2)) == ("waits", False)
    assert await told(served.said(replica.job_id, EngineStage.DRAINING, 2)) == ("waits", False)
    assert await told(served.said(replica.job_id, EngineStage.LOADING, 3)) == ("waits", False)
    broke_again = served.said(replica.job_id, EngineStage.FAILED, 3)
    assert await told(broke_again) == ("waits (2 failed)", True)
    await served.end()


@pytest.mark.parametrize("stage", ["ready", "draining"])
async def test_a_failure_that_an_earlier_version_kept_is_not_told_of_one_that_was_ready(
    served: RecordedService, stage: str
):
    await served.record()
    await served.look()
    async with served.control.transaction() as connection:
        await connection.execute(
            text("UPDATE replicas SET stage = :stage, failures = 1, message = 'it broke'"
                 " WHERE service = :name"),
            {"name": served.name, "stage": stage},
        )  # fmt: skip
    (waits,) = (await served.view()).replicas
    assert (state_words(waits), "it broke" in waits.message) == ("waits", False)
    await served.end()


async def test_what_an_earlier_version_stored_of_its_replicas_is_not_told(served: RecordedService):
    await served.record(replicas=1_000)
    async with served.control.transaction() as connection:
        await connection.execute(
            text("UPDATE services SET message = :said WHERE name = :name"),
            {"name": served.name, "said": "of 1,000 replicas: 1 draining"},
        )
    assert (await served.view()).message == ""
    await served.begin_one(1, f"{served.name}.a")
    assert (await served.view()).message == "of 1,000 replicas: 1 without a GPU"
    await served.remove()
    assert (await served.view()).message == ""


async def test_those_that_stop_or_are_to_be_replaced_are_not_counted(served: RecordedService):
    """Its message is of the last look where that says more than its replicas do."""
    await served.record(replicas=1)
    await served.look()
    old = (await served.view()).replicas[0].job_id
    await served.look(served.said(old, EngineStage.READY))
    await served.record(replicas=1, priority=7)
    assert (await served.view()).message == "", "nobody has looked, and the old one counts no more"
    says = (await served.look()).reason
    assert says.startswith("1 replica to be replaced: 0 of 1")
    assert (await served.view()).message == says
    await served.end()


@pytest.mark.parametrize(
    "reports",
    [(_TOOK,), (_SERVED, EngineReport(stage=EngineStage.LOADING))],
    ids=["failed", "loads"],
)
async def test_one_whose_engine_took_more_than_it_holds_is_tried_again_with_that(
    served: RecordedService, reports: Sequence[EngineReport]
):
    """Also where it loads anew, and nobody looked before."""
    await served.record()
    await served.look()
    (replica,) = (await served.view()).replicas
    await served.queued(replica.job_id)
    said = (
        EngineNotice(job_id=replica.job_id, attempt=attempt, node_id="n", report=report)
        for attempt, report in enumerate(reports, 1)
    )
    await served.look(*said)
    old, new = (await served.view()).replicas
    assert (old.job_id, old.stopping, new.stopping) == (replica.job_id, True, False)
    assert await served.queued(new.job_id) == 2500
    await served.look()
    left = [each.job_id for each in (await served.view()).replicas if not each.stopping]
    assert left == [new.job_id], "it holds enough"
    await served.end()


async def test_what_another_file_took_at_the_same_path_counts_for_no_later_one(
    served: RecordedService,
):
    await served.record()
    await served.look()
    (replica,) = (await served.view()).replicas
    await served.queued(replica.job_id)
    await served.look(EngineNotice(job_id=replica.job_id, attempt=1, node_id="n", report=_SERVED))
    served.model_revision = 2
    await served.record(priority=7, surge=10)
    await served.look()
    (new,) = (each for each in (await served.view()).replicas if each.revision == 2)
    assert await served.queued(new.job_id) == served.engine.memory
    await served.end()


async def test_a_later_engine_holds_what_one_like_it_was_seen_to_take(served: RecordedService):
    await served.record(replicas=1)
    await served.look()
    [first] = (await served.view()).replicas
    assert await served.queued(first.job_id) == 1000
    notice = served.said(first.job_id, EngineStage.READY)
    report = notice.report.model_copy(update={"memory": 1_500_000_001})
    await served.record(replicas=2)
    await served.look(notice.model_copy(update={"report": report}))

    async def holds() -> list[int]:
        return [each.leased for each in (await served.view()).replicas]

    async def as_queued() -> bool:
        return sorted(await holds()) == [1000, 1501, 1501]

    await eventually(as_queued)
    async with served.control.transaction() as connection:
        memory = await connection.scalar(
            text("SELECT spec -> 'vram_per_gpu' FROM jobs WHERE id LIKE :of AND id <> :first"),
            {"of": f"{served.name}-%", "first": first.job_id},
        )
    assert memory == 1.501
    found = (await served.view()).replicas
    assert [each.estimated for each in found] == [1000] * 3
    assert [each.job_id for each in found if each.stopping] == [first.job_id], "it is not ready"
    await served.end()


@pytest.mark.exhaustive
async def test_for_a_service_the_replica_is_explained_that_has_waited_longest(
    served: RecordedService, node: ScriptedNode
):
    """Then one that stops for none of these, and after it one that loads."""
    await served.record()
    await served.look()
    (loads,) = (await served.view()).replicas
    await node.started(loads.job_id)

    async def explained() -> str | None:
        async with served.control.transaction() as connection:
            return await replica_to_explain(connection, served.name)

    assert await explained() == loads.job_id
    await node.cordon("so that others wait")
    for replicas in (2, 3):
        await served.record(replicas=replicas)
        await served.look()
        for each in (await served.view()).replicas:
            await served.queued(each.job_id)
    _, older, newer = (each.job_id for each in (await served.view()).replicas)
    for expected in (older, newer, loads.job_id):
        assert await explained() == expected
        async with served.control.transaction() as connection:
            await stop_replica(connection, expected, "of the test")
    await served.end()
    await served.look()
    assert await explained() is None, "it is removed"
