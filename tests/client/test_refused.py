"""Jobs that somebody starts in Temporal, and whose workflow refuses them: nobody else knows."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from longshore.activities.database import Database
from longshore.client import calls
from longshore.client.api import Longshore
from longshore.client.no_record import newest_running
from longshore.console.fleet import Fleet
from longshore.models.errors import (
    NoRecordError,
    NotFoundError,
    NotTakenUpError,
    RefusedError,
    UnavailableError,
)
from longshore.models.job_status import JobState
from longshore.models.messages import CONTROL_TASK_QUEUE, JOB_WORKFLOW, job_workflow_id
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.control import a_spec, reaches
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

WRONG = "spec.gpus: must be at least 1, got 0"
OWN_HISTORY = "history: is what a job carries over when its workflow continues as new; give none"
NOBODYS = "no-worker-asks-this-queue"
HISTORY = {"submitted_at": "2026-01-01T00:00:00Z", "attempt": 3}


@pytest.fixture
async def api(temporal: Client, settings: Settings) -> AsyncIterator[Longshore]:
    client = Longshore(temporal, settings)
    yield client
    await client.close()


async def started(
    temporal: Client, job_id: str, pool: str, queue: str = CONTROL_TASK_QUEUE, **given: Any
) -> None:
    spec = {"name": "other", "command": "true", "pool": pool, **given.pop("spec", {})}
    await temporal.start_workflow(
        JOB_WORKFLOW, {"spec": spec, **given}, id=job_workflow_id(job_id),
        task_queue=queue,
    )  # fmt: skip


async def refused(temporal: Client, job_id: str, pool: str, **given: Any) -> None:
    await started(temporal, job_id, pool, **given)
    with pytest.raises(WorkflowFailureError):
        await temporal.get_workflow_handle(job_workflow_id(job_id)).result()


@pytest.mark.parametrize("ending", ["", "-abcdefghij"], ids=["chosen", "like ours"])
@pytest.mark.parametrize(
    ("given", "why"),
    [({"spec": {"gpus": 0}}, WRONG), ({"history": HISTORY}, OWN_HISTORY)],
    ids=["unreadable", "read"],
)
async def test_a_refused_job_is_said_to_be_refused_and_why_wherever_one_asks(
    longshore: Command,
    api: Longshore,
    settings: Settings,
    temporal: Client,
    pool: str,
    given: dict[str, Any],
    why: str,
    ending: str,
) -> None:
    job_id = f"bad-{uuid.uuid4().hex[:8]}{ending}"
    await refused(temporal, job_id, pool, **given)
    said = f"job {job_id} was refused, and never came into a queue: {why}"
    for command in ("job", "why", "watch", "logs"):
        ran = await longshore(command, job_id)
        assert (ran.code, ran.out) == (70, "")
        assert " ".join(ran.err.split()) == f"error: {said}"
    for command in ("cancel", "hold", "release"):
        ran = await longshore(command, job_id)
        assert (ran.code, ran.out) in ((70, ""), (77, ""))
        assert "refused" in ran.err
        assert why in " ".join(ran.err.split())

    pages = Fleet(settings)
    for look in (pages.report, pages.explain, pages.checkpoints):
        with pytest.raises(NoRecordError) as error:
            await look(job_id)
        assert str(error.value) == said
    await pages.close()

    if ending:  # no look into the database
        result = await asyncio.wait_for(api.wait(job_id), 30)
        assert (result.state, result.message) == (JobState.FAILED, why)


async def test_who_watches_a_job_that_its_workflow_has_read_and_refused_sees_it_fail(
    temporal: Client, api: Longshore, control: None, pool: str
) -> None:
    job_id = f"bad-{uuid.uuid4().hex[:8]}-abcdefghij"
    await refused(temporal, job_id, pool, history=HISTORY)
    seen = await asyncio.wait_for(anext(api.watch(job_id)), 30)
    assert (seen.state, seen.reason) == (JobState.FAILED, OWN_HISTORY)
    assert seen.result
    assert (seen.result.message, seen.result.attempts) == (OWN_HISTORY, 0)


async def test_a_job_without_a_row_that_was_not_refused_has_ended_as_temporal_says(
    temporal: Client, api: Longshore, pool: str
) -> None:
    job_id = f"bad-{uuid.uuid4().hex[:8]}"
    await started(temporal, job_id, pool, queue=NOBODYS)
    with pytest.raises(NotFoundError) as open_one:
        await api.job(job_id)
    assert not isinstance(open_one.value, NoRecordError)
    for ask in (api.job, api.explain, api.report, api.spec):
        with pytest.raises(NotFoundError) as early:
            await ask(job_id)
        assert str(early.value) == (
            f"job {job_id} is submitted, but no control worker has taken it up yet: ask again in "
            "a moment. Is one running? `longshore up` starts one, or `longshore worker`; "
            "`longshore doctor` looks for one."
        )
    with pytest.raises(NotFoundError, match="no job 'never-was'"):
        await api.job("never-was")
    await temporal.get_workflow_handle(job_workflow_id(job_id)).terminate("by mistake")
    with pytest.raises(NoRecordError) as over:
        await api.job(job_id)
    assert str(over.value) == (
        f"the database has no job {job_id}, and its workflow was terminated"
    )


@pytest.mark.parametrize("older", [False, True], ids=["the first", "another is older"])
async def test_a_job_that_nobody_has_taken_up_is_told_by_its_name_as_well(
    temporal: Client, api: Longshore, settings: Settings, pool: str, control: Database,
    monkeypatch: pytest.MonkeyPatch, older: bool,
) -> None:  # fmt: skip
    """Nobody says of a name that there is no such job, or takes an older one for it."""
    monkeypatch.setattr(calls, "_ENQUEUE_PATIENCE", 0.2)
    monkeypatch.setattr(calls, "_BUSY_PATIENCE", 0.4)
    name = f"new-{uuid.uuid4().hex[:8]}"
    held = (await api.submit(a_spec(pool, name=name), held=True)).job_id if older else ""
    if older:
        await reaches(api, held, JobState.HELD)
        assert (await api.job(name)).id == held
    newest = f"{name}-abcdefghij"
    await started(temporal, newest, pool, queue=NOBODYS)
    await eventually(partial(_is_listed, temporal, name, newest))
    told = f"job {newest} is submitted, but no control worker has taken it up yet"
    fleet = Fleet(settings)
    asks: list[Callable[[str], Awaitable[object]]] = [
        api.job, api.explain, api.report, api.spec, fleet.report, fleet.explain,
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(NotTakenUpError, match=told) as early:
            await ask(name)
        assert early.value.job_id == newest
    await fleet.close()
    assert await api.id_of(name) == newest
    with pytest.raises(UnavailableError, match=told):
        await calls.known_job(api, name)
    await temporal.get_workflow_handle(job_workflow_id(newest)).terminate("it never ran")
    if older:
        await api.cancel(held)


async def _is_listed(temporal: Client, name: str, newest: str | None) -> bool:
    return await newest_running(temporal, name, job_workflow_id) == newest


@pytest.mark.parametrize("given", [{"spec": {"gpus": 0}}, {"history": HISTORY}, {}])
async def test_a_refused_second_start_is_no_state_of_the_job(
    longshore: Command,
    api: Longshore,
    node: ScriptedNode,
    temporal: Client,
    pool: str,
    given: dict[str, Any],
) -> None:
    job_id = (await api.submit(a_spec(pool))).job_id
    await node.end(job_id)
    await reaches(api, job_id, JobState.SUCCEEDED)
    await temporal.get_workflow_handle(job_workflow_id(job_id)).result()
    await refused(temporal, job_id, pool, **given)
    report = await api.report(job_id)
    assert report.job.state is JobState.SUCCEEDED
    assert report.status is None
    assert "its id was started again" in report.missing[0]
    assert (await api.wait(job_id)).state is JobState.SUCCEEDED
    watched = await longshore("watch", job_id)
    assert (watched.code, "FAILED" in watched.out) == (0, False), watched.out
    assert (await longshore("job", job_id)).code == 0
    with pytest.raises(RefusedError, match="has ended already"):
        await api.cancel(job_id)
    with pytest.raises(RefusedError, match="has ended already"):
        await api.hold(job_id)


async def test_a_list_of_temporal_has_those_that_were_refused(
    temporal: Client, control: None, pool: str
) -> None:
    """As docs/other-languages.md says."""
    job_id = f"bad-{uuid.uuid4().hex[:8]}"
    await refused(temporal, job_id, pool, spec={"gpus": 0})
    docs = (Path(__file__).parents[2] / "docs" / "other-languages.md").read_text()
    query = docs.partition("temporal workflow list --query '")[2].partition("'")[0]

    async def is_listed() -> bool:
        """A list of Temporal's may lag."""
        return job_workflow_id(job_id) in {f.id async for f in temporal.list_workflows(query)}

    await eventually(is_listed)


async def test_a_chosen_id_that_no_worker_has_come_to_can_be_cancelled(
    temporal: Client, api: Longshore, pool: str
) -> None:
    job_id = f"chosen-{uuid.uuid4().hex[:8]}"
    await started(temporal, job_id, pool, queue=NOBODYS)
    assert await api.cancel(job_id) == job_id
    await temporal.get_workflow_handle(job_workflow_id(job_id)).terminate()


async def test_a_name_means_the_newest_job_of_it_also_where_no_worker_has_come_to_that(
    longshore: Command, temporal: Client, api: Longshore, pool: str
) -> None:
    name = f"twice-{uuid.uuid4().hex[:8]}"
    older = (await api.submit(a_spec(pool, name=name, gpus=64))).job_id
    await reaches(api, older, JobState.QUEUED)
    newer = f"{name}-abcdefghij"
    await started(temporal, newer, pool, queue=NOBODYS)

    async def is_meant(job_id: str) -> bool:
        """A list of Temporal's may lag."""
        return await api.id_of(name) == job_id

    await eventually(partial(is_meant, newer))
    for verb in ("hold", "release", "cancel"):
        ran = await longshore(verb, name)
        assert (ran.code, ran.out.split()[0]) == (0, newer), ran.err
    assert (await api.status(older)).state is JobState.QUEUED
    await temporal.get_workflow_handle(job_workflow_id(newer)).terminate()
    await eventually(partial(is_meant, older))
    await api.cancel(older)


@pytest.mark.parametrize("ref", ["", "  ", "\0", "train\0"])
async def test_what_can_be_no_name_is_no_job(temporal: Client, settings: Settings, ref: str):
    client = Longshore(temporal, settings)
    for asked in (client.job, client.status, client.cancel, client.explain):
        with pytest.raises(NotFoundError, match="give its id or its name"):
            await asked(ref)
    await client.close()
