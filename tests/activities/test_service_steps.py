"""The step of a service: repeated, twice at once, with what agents say in any order; and what the
database refuses whatever the code does."""

import asyncio
import json
from typing import Any, cast

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from temporalio.exceptions import ApplicationError

from longshore.activities.metrics import Metrics
from longshore.activities.serving import services
from longshore.activities.serving.engine_notices import hear
from longshore.activities.serving.revisions import sizes_of, undone_alike
from longshore.activities.serving.service_rows import (
    remove_service,
    scale_service,
    undo_rollout,
)
from longshore.activities.signals import Signals
from longshore.models.errors import NotFoundError, RefusedError, SpecError, StoredError
from longshore.models.messages import job_workflow_id
from longshore.models.service import ServiceState
from longshore.models.service_messages import (
    EngineNotice,
    service_workflow_id,
)
from longshore.models.serving import (
    EngineReport,
    EngineStage,
)
from longshore.workers.sampling import sample_services
from longshore.workflows.service import ServiceWorkflow
from tests.support.recorded_service import MODEL, SIZES, RecordedService
from tests.support.waiting import eventually


async def test_a_repeat_starts_what_is_missing_and_nothing_twice(
    served: RecordedService, monkeypatch: pytest.MonkeyPatch
):
    await served.record(replicas=2)

    async def away(*_: object) -> None:
        raise OSError("the server is away")

    with monkeypatch.context() as broken:
        broken.setattr(services, "start_job", away)
        with pytest.raises(OSError, match="away"):
            await served.look()
    intended = {each.job_id for each in (await served.view()).replicas}
    assert len(intended) == 2
    assert (await served.look()).wanted == 2
    assert {each.job_id for each in (await served.view()).replicas} == intended
    for job_id in intended:
        await served.temporal.get_workflow_handle(job_workflow_id(job_id)).describe()
    await served.end()


async def test_looks_at_the_same_time_start_no_more_than_is_wanted(served: RecordedService):
    await served.record(replicas=3)
    await asyncio.gather(*(served.look() for _ in range(5)))
    assert len((await served.view()).replicas) == 3
    await served.end()


async def test_a_failed_attempt_counts_once_and_what_is_older_changes_nothing(
    served: RecordedService,
):
    await served.record()
    await served.look()
    (replica,) = (await served.view()).replicas
    failed = served.said(replica.job_id, EngineStage.FAILED, attempt=2)
    await served.queued(replica.job_id)
    await served.look(failed, failed)
    await served.look(served.said(replica.job_id, EngineStage.READY, attempt=1))
    (now,) = (await served.view()).replicas
    assert (now.failures, now.message[-8:], now.ready_at) == (1, "it broke", None)
    await served.look(served.said("nobody.r1.aaaaaaaa", EngineStage.READY))
    assert len((await served.view()).replicas) == 1
    await served.end()


@pytest.mark.exhaustive
async def test_it_goes_back_to_what_ran_before_and_not_to_the_newest(served: RecordedService):
    """Somebody had gone back from 2 to 1: a third that fails ends at 1."""
    for cpus in (1, 2):
        await served.record(cpus=cpus, surge=10)
        await served.look()
        newest = (await served.view()).replicas[-1]
        await served.look(served.said(newest.job_id, EngineStage.READY))
    async with served.control.transaction() as connection:
        assert await undo_rollout(connection, served.name, None) == 1
    undone = {each.number: each.undone for each in (await served.view()).revisions or ()}
    assert undone == {1: "", 2: "by hand: back to revision 1"}
    await served.look()
    assert (await served.view()).replicas[-1].revision == 1
    await served.record(cpus=3, surge=10)
    await served.look()
    job_id = (await served.view()).replicas[-1].job_id
    failed = [served.said(job_id, EngineStage.FAILED, attempt) for attempt in (1, 2, 3)]
    assert (await served.look(*failed)).revision == 1
    async with served.control.transaction() as connection:
        said = "revision 3 of service .* was undone by itself: it is back at revision 1.* --to 2`"
        with pytest.raises(RefusedError, match=said):
            await undo_rollout(connection, served.name, None)
        assert await undo_rollout(connection, served.name, 2) == 2
    found = {each.number: each for each in (await served.view()).revisions or ()}
    assert found[2].undone == ""
    assert found[2].can_go_back
    async with served.control.transaction() as connection:
        assert await undo_rollout(connection, served.name, None) == 1, "somebody went on by hand"
    await served.end()


async def test_other_files_of_its_model_are_a_new_revision(served: RecordedService):
    """By its engine it is the same: its replicas would serve other weights one by one."""
    model = f"m-{served.pool}"

    async def files_since(revision: int) -> None:
        spec = {"name": model, "runtime": "vllm"}
        facts = {"files": "a", "files_since": revision}
        async with served.control.transaction() as connection:
            await connection.execute(
                text("INSERT INTO models (name, runtime, spec, facts)"
                     " VALUES (:name, 'vllm', CAST(:spec AS jsonb), CAST(:facts AS jsonb))"
                     " ON CONFLICT (name) DO UPDATE SET facts = excluded.facts"),
                {"name": model, "spec": json.dumps(spec), "facts": json.dumps(facts)},
            )  # fmt: skip

    await files_since(0)
    assert await served.record(model=model) == 1
    served.model_revision = 3
    assert await served.record(model=model) == 1, "something else was changed, and back"
    await files_since(2)
    assert await served.record(model=model) == 2
    assert await served.record(model=model) == 2
    await served.end()


async def test_an_engine_that_was_undone_is_known_again(served: RecordedService):
    """What another revision had too that was ready may be served."""
    await served.record()
    await served.look()
    (first,) = (await served.view()).replicas
    await served.look(served.said(first.job_id, EngineStage.READY))
    good = served.engine
    model = good.model.model_copy(update={"args": ("--nonsense",)})
    served.engine = good.model_copy(update={"model": model})
    await served.record(surge=10)
    await served.look()
    job_id = (await served.view()).replicas[-1].job_id
    failed = [served.said(job_id, EngineStage.FAILED, attempt) for attempt in (1, 2, 3)]
    assert (await served.look(*failed)).revision == 1
    number = await served.record(surge=10, priority=7)
    async with served.control.transaction() as connection:
        assert await undone_alike(connection, served.name, number) == (2, 1)
        assert await undone_alike(connection, served.name, 1) == (0, 0)
    await served.end()


async def test_a_changed_spec_is_a_new_revision_and_another_number_is_not(served: RecordedService):
    assert await served.record(replicas=1) == 1
    assert await served.record(replicas=2) == 1
    assert await served.record(replicas=2, priority=7) == 2
    assert await served.record(replicas=2, priority=7) == 2
    found = await served.view()
    assert (found.revision, found.spec.replicas, found.spec.priority) == (2, 2, 7)
    assert [each.number for each in found.revisions or ()] == [2, 1]
    assert {each.runtime for each in found.revisions or ()} == {"llama.cpp"}


async def test_other_sizes_are_a_new_revision_unless_it_was_stored_without(
    served: RecordedService,
):
    assert await served.record() == 1
    assert await served.record(SIZES) == 1, "as one of before there were sizes"
    assert await served.record(SIZES, priority=7) == 2
    assert await served.record(SIZES, priority=7) == 2
    assert await served.record(SIZES[:1], priority=7) == 3


async def test_a_replica_is_made_in_a_size_that_a_gpu_may_hold(served: RecordedService):
    """The pool has no node: of its sizes the first counts that the largest known GPU holds."""
    await served.record(SIZES)
    await served.look()
    (replica,) = (await served.view()).replicas
    job = await served.start_of(replica.job_id)
    assert (job.gpus, job.milli, job.vram_per_gpu) == (4, 999, 130)
    assert job.engine is not None
    assert (job.engine.model.gpus, job.engine.memory) == (4, 130_000)
    await served.end()


async def test_sizes_that_cannot_be_read_are_told(served: RecordedService):
    await served.record(SIZES)
    revision = await served.spoil(spec={})
    async with served.control.transaction() as connection:
        assert await sizes_of(connection, served.name, revision) == ()
        await connection.execute(
            text(
                "INSERT INTO service_revisions (service, number, spec, engine, model_revision,"
                " sizes) SELECT service, 9, spec, engine, 1, '[{\"gpus\": 0}]'"
                " FROM service_revisions WHERE service = :name AND number = 1"
            ),
            {"name": served.name},
        )
        with pytest.raises(StoredError, match="sizes of revision 9 of service"):
            await sizes_of(connection, served.name, 9)


async def test_a_service_that_nobody_recorded_is_not_found(served: RecordedService):
    with pytest.raises(Exception, match="no service") as refused:
        await served.look()
    assert getattr(refused.value, "type", "") == NotFoundError.__name__


async def test_the_database_refuses_replicas_that_nobody_wants(served: RecordedService):
    await served.record(replicas=1, surge=1)
    await served.look()
    await served.begin_one(1, f"{served.name}.one-more")
    with pytest.raises(DBAPIError, match="has 2 replicas, and 1 are wanted"):
        await served.begin_one(1, f"{served.name}.too-many")
    await served.record(replicas=5, priority=7)
    with pytest.raises(DBAPIError, match="begins no replica of revision 1"):
        await served.begin_one(1, f"{served.name}.old")
    async with served.control.transaction() as connection:
        await remove_service(connection, served.name)
    with pytest.raises(DBAPIError, match="begins no replica of revision 2"):
        await served.begin_one(2, f"{served.name}.late")


async def test_two_at_once_do_not_go_over_the_number_together(served: RecordedService):
    await served.record(replicas=1, surge=0, unavailable=1)
    begun = await asyncio.gather(
        *(served.begin_one(1, f"{served.name}.{number}") for number in range(4)),
        return_exceptions=True,
    )
    assert sorted(isinstance(each, DBAPIError) for each in begun) == [False, True, True, True]


async def test_the_database_keeps_revisions_as_they_were(served: RecordedService):
    await served.record()
    for change in (
        "spec = '{}'", "engine = '{}'", "model_revision = 7", "number = 9", "sizes = '[]'",
    ):  # fmt: skip
        with pytest.raises(DBAPIError, match="is never rewritten"):
            async with served.control.transaction() as connection:
                await connection.execute(
                    text(f"UPDATE service_revisions SET {change} WHERE service = :name"),
                    {"name": served.name},
                )


async def test_one_without_replicas_is_over_once_it_is_removed(served: RecordedService):
    await served.record(replicas=0)
    async with served.control.transaction() as connection:
        await remove_service(connection, served.name)
    assert (await served.look()).state is ServiceState.REMOVED
    assert (await served.view()).state is ServiceState.REMOVED


async def test_its_replicas_are_counted_and_go_to_0_when_it_is_over(served: RecordedService):
    await served.record(replicas=2)
    await served.look()
    metrics = _Gauges()
    shown = await sample_services(served.control, cast(Metrics, metrics))
    assert served.name in shown
    assert metrics.of(served.name) == {"wanted": 2, "ready": 0, "waiting": 2, "over": 0}
    async with served.control.transaction() as connection:
        await connection.execute(
            text("UPDATE services SET state = 'REMOVED' WHERE name = :name"), {"name": served.name}
        )
    await sample_services(served.control, cast(Metrics, metrics), shown)
    assert set(metrics.of(served.name).values()) == {0}


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({}, "newer: no such field"),
        ({"spec": {}, "engine": {"newer": 1}}, "newer: no such field"),
        ({"spec": {}, "engine": {"memory": "much", "model": 7}}, "model: must be a mapping"),
    ],
)
async def test_one_that_cannot_be_read_is_listed_and_can_be_served_anew(
    served: RecordedService, changed: dict[str, Any], what: str
):
    await served.record(replicas=1)
    revision = await served.spoil(**changed)
    await served.begin_one(revision, f"{served.name}.a")
    found = await served.listed()
    says = f"what is stored of revision {revision} of service {served.name}: "
    assert found.trouble.startswith(says)
    assert what in found.trouble
    assert f"`longshore service {served.name} --remove` removes it" in found.trouble
    assert (found.spec.replicas, len(found.replicas)) == (1, 1)
    with pytest.raises(StoredError, match="`longshore serve FILE` stores it anew"):
        await served.view()
    metrics = _Gauges()
    await sample_services(served.control, cast(Metrics, metrics))
    assert metrics.of(served.name)["wanted"] == 1
    assert await served.record(replicas=1) == revision + 1
    assert (await served.listed()).trouble == ""
    assert [each.number for each in (await served.view()).revisions or ()] == [3, 2, 1]


async def test_one_that_cannot_be_read_hears_and_is_removed(served: RecordedService):
    await served.record(replicas=2, surge=1)
    await served.look()
    running = [each.job_id for each in (await served.listed()).replicas]
    revision = await served.spoil()
    await served.begin_one(revision, f"{served.name}.never")
    with pytest.raises(ApplicationError, match="newer: no such field") as refused:
        await served.look(served.said(running[0], EngineStage.FAILED))
    assert refused.value.type == "StoredError"
    assert {each.job_id: each.failures for each in (await served.listed()).replicas}[
        running[0]
    ] == 1
    await served.remove()
    progress = await served.look()
    assert (progress.state, progress.more) == (ServiceState.REMOVING, True)
    for job_id in running:
        handle = served.temporal.get_workflow_handle(job_workflow_id(job_id))
        with pytest.raises(Exception, match=r"ailed|ancelled"):
            await handle.result()
    assert (await served.look()).state is ServiceState.REMOVED
    assert (await served.look()).state is ServiceState.REMOVED


async def test_the_workflow_of_one_that_cannot_be_read_says_so_and_waits(served: RecordedService):
    await served.record(replicas=0)
    await served.spoil()
    await Signals(served.temporal).begin_service(served.name)
    workflow_id = service_workflow_id(served.name)
    handle = served.temporal.get_workflow_handle_for(ServiceWorkflow.run, workflow_id)

    async def said() -> str:
        found = await handle.query(ServiceWorkflow.status)
        return found.reason if found else ""

    why = await eventually(said)
    assert why.startswith("nothing is started or stopped: ")
    assert "newer: no such field" in why
    await served.record(replicas=0)
    await handle.signal(ServiceWorkflow.poke)

    async def well() -> bool:
        return await said() == ""

    await eventually(well)
    await served.spoil()
    await served.remove()
    await handle.signal(ServiceWorkflow.poke)
    assert (await handle.result()).service == served.name


async def test_since_when_an_engine_is_idle_is_kept_while_it_is(served: RecordedService):
    await served.record(replicas=1)
    await served.look()
    [replica] = (await served.view()).replicas
    async with served.control.transaction() as connection:
        await hear(connection, served.name, [served.said(replica.job_id, EngineStage.READY)])

    async def heard(**fields: Any) -> tuple[float | None, int]:
        notice = served.said(replica.job_id, fields.pop("stage", EngineStage.READY))
        report = notice.report.model_copy(update=fields)
        async with served.control.transaction() as connection:
            said = notice.model_copy(update={"report": report})
            await hear(connection, served.name, [said])
            row = await connection.execute(
                text(
                    "SELECT uses, extract(epoch FROM clock_timestamp() - idle_since)"
                    "  FROM replicas WHERE job_id = :id"
                ),
                {"id": replica.job_id},
            )
            uses, seconds = row.one()
            return None if seconds is None else float(seconds), uses

    assert await heard(uses=1) == (None, 1)
    first, _ = await heard(idle=True, uses=1)
    assert first is not None
    assert 10 <= first < 60
    later, _ = await heard(idle=True, uses=1, memory=5)
    assert later is not None
    assert first <= later, "more news of an idle one is no use of it"
    assert await heard(idle=False, uses=2) == (None, 2)
    assert await heard(stage=EngineStage.LOADING, idle=True) == (None, 0)
    await served.end()


async def test_one_whose_engine_is_too_large_to_be_started_says_so_and_is_removed(
    served: RecordedService,
):
    """As an earlier version has let it in."""
    await served.record(replicas=1)
    model = {**MODEL.model_dump(mode="json"), "args": ["x" * 131_000] * 20}
    revision = await served.spoil(spec={}, engine={"model": model})
    await served.begin_one(revision, "never-there")
    with pytest.raises(ApplicationError, match=r"the engine has 2,62.* the most") as refused:
        await served.look()
    assert refused.value.type == StoredError.__name__
    await served.remove()
    await served.look()
    assert (await served.look()).state is ServiceState.REMOVED


@pytest.mark.exhaustive
async def test_the_workflow_hears_however_much_agents_have_said_meanwhile(served: RecordedService):
    """More than one activity can be given (2 MiB), while the database was away."""
    revision = await served.record(replicas=1)
    job_id = f"{served.name}.one"
    await served.begin_one(revision, job_id)
    workflow_id = service_workflow_id(served.name)
    async with served.control.transaction() as connection:
        locked = "SELECT 1 FROM services WHERE name = :name FOR UPDATE"
        await connection.execute(text(locked), {"name": served.name})
        await Signals(served.temporal).begin_service(served.name)
        handle = served.temporal.get_workflow_handle_for(ServiceWorkflow.run, workflow_id)
        report = EngineReport(stage=EngineStage.FAILED, message="\N{PILE OF POO}" * 4_000)
        for attempt in range(1, 201):
            said = EngineNotice(job_id=job_id, attempt=attempt, node_id="n", report=report)
            await handle.signal("engine", said)

    async def heard() -> bool:
        (one,) = [each for each in (await served.view()).replicas if each.job_id == job_id]
        return one.failures == 200

    await eventually(heard)
    await served.remove()
    await handle.signal(ServiceWorkflow.poke)

    async def removed() -> bool:
        return (await served.view()).state is ServiceState.REMOVED

    await eventually(removed)
    await handle.result()


@pytest.mark.parametrize("replicas", [-1, 1_001, 2**63])
async def test_a_number_that_no_service_can_have_is_refused(
    served: RecordedService, replicas: int
):
    await served.record(replicas=0)
    with pytest.raises(SpecError, match=f"replicas: must be 0 to 1,000, got {replicas}"):
        async with served.control.transaction() as connection:
            await scale_service(connection, served.name, replicas)


class _Gauges:
    """Keeps what gauges show."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], float] = {}

    def set(self, metric: object, value: float, *, service: str, state: str) -> None:
        self._shown[service, state] = value

    def of(self, service: str) -> dict[str, float]:
        return {state: value for (name, state), value in self._shown.items() if name == service}
