"""A control worker ends within its time, whatever hangs."""

import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import make_url
from temporalio.api.enums.v1 import PendingActivityState

from longshore.client import late_answers
from longshore.client.api import Longshore
from longshore.client.control_worker import START, nobody_asks
from longshore.models.errors import UnavailableError
from longshore.models.job_status import JobState
from longshore.models.messages import (
    CONTROL_TASK_QUEUE,
    NODE_WORKFLOW,
    job_workflow_id,
    node_workflow_id,
)
from longshore.models.node_messages import NodeInput
from longshore.models.settings import Settings
from longshore.workers.control import GRACE
from longshore.workers.doctor.findings import Level
from longshore.workers.doctor.temporal import checks
from longshore.workers.stack import Stack
from tests.support.control import a_spec, new_pool, reaches
from tests.support.relay import Relay, relay_to
from tests.support.waiting import eventually
from tests.support.worker_processes import Place, WorkerProcess, own_place


@pytest.fixture
async def place(stack: Stack, database_url: str, tmp_path: Path) -> AsyncIterator[Place]:
    """A namespace and a database for control workers that the test starts; 1 s."""
    async with own_place(stack, database_url, tmp_path) as place:
        yield place


async def test_a_worker_without_work_ends_in_order_and_soon(place: Place):
    with place.worker() as worker:
        await worker.says("takes work from task queue")
        worker.terminate()
        assert await worker.ends(within=60.0) == 0
        assert "stopped" in worker.log.splitlines()[-1]


@pytest.mark.exhaustive
async def test_a_worker_whose_database_says_nothing_ends_within_its_grace_and_a_little(
    place: Place, settings: Settings, database_url: str
):
    async with hanging(place, settings, database_url) as worker:
        asked_at = time.monotonic()
        worker.terminate()
        assert await worker.ends(within=GRACE.total_seconds() + 30) == 0
        assert time.monotonic() - asked_at > GRACE.total_seconds(), "its work got no grace"
        assert "with work under way" in worker.log


@pytest.mark.exhaustive
async def test_a_job_that_no_worker_takes_up_is_told_of_and_waited_for_where_one_polls(
    place: Place,
):
    submitted = await place.run("submit", "--gpus", "1", "--", "true")
    job_id = submitted.stdout.split()[-1]
    says = (
        "warning: no control worker has taken the job up within 2 s: "
        f"{nobody_asks('workflows and activities')}"
    )
    assert says in " ".join(submitted.stderr.split())
    (found,) = {each.mend for each in await checks(place.temporal)["control worker"]()}
    assert found.startswith(START)
    assert START in " ".join(submitted.stderr.split())
    by_name = (["why"], ["logs"], ["preempt", "--dry-run"])
    for words in (["job", job_id], *([*command, "true"] for command in by_name)):
        told = await place.run(*words)
        assert told.returncode != 0
        says = f"job {job_id} is submitted, but no control worker has taken it up yet"
        assert says in " ".join(told.stderr.split())
    with place.worker() as worker:
        await worker.says("takes work from task queue")
        shown = await place.run("job", job_id)
        assert shown.returncode == 0, shown.stderr

        async def takes_up_in_time() -> bool:
            """A busy machine may take longer."""
            again = await place.run("submit", "--gpus", "1", "--", "true")
            assert again.returncode == 0
            return "no control worker" not in again.stderr

        await eventually(takes_up_in_time)


async def test_a_worker_that_hangs_or_was_killed_is_named_at_once(place: Place):
    async def takes_work() -> bool:
        found = await checks(place.temporal)["control worker"]()
        return all(each.level is Level.OK for each in found)

    with place.worker() as worker:
        await worker.says("takes work from task queue")
        await eventually(takes_work)
        who = f"process {worker.pid} on {socket.gethostname()}"
        os.kill(worker.pid, signal.SIGSTOP)
        paused = await place.run("submit", "--gpus", "1", "--", "true")
        says = f"no control worker has taken the job up within 2 s: {who} was given it and has not"
        assert says in " ".join(paused.stderr.split())
        (found,) = await checks(place.temporal)["control worker"]()
        assert who in found.says
        worker.kill()
    killed = await place.run("submit", "--json", "--gpus", "1", "--", "true")
    *_, says = json.loads(killed.stdout)["warnings"]
    assert says.startswith("no control worker has taken the job up within 2 s: ")
    assert who in says


@pytest.mark.exhaustive
async def test_who_asks_for_a_job_is_told_that_the_worker_does_not_answer(
    place: Place, settings: Settings, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Temporal does: it says so of the workflow, and knows that the worker asked a moment ago."""
    monkeypatch.setattr(late_answers, "_ANSWER_WITHIN", timedelta(seconds=2))
    own = settings.model_copy(update={"database_url": SecretStr(database_url)})
    longshore = Longshore(place.temporal, own)
    with place.worker() as worker:
        await worker.says("takes work from task queue")
        job_id = (await longshore.submit(a_spec(new_pool()), held=True)).job_id
        await reaches(longshore, job_id, JobState.HELD)
        await place.temporal.start_workflow(
            NODE_WORKFLOW, NodeInput(node_id="deaf-1"), id=node_workflow_id("deaf-1"),
            task_queue=CONTROL_TASK_QUEUE,
        )  # fmt: skip
        os.kill(worker.pid, signal.SIGSTOP)
        for of_a_node in (longshore.cordon, longshore.drain, longshore.uncordon):
            says = "No control worker has answered for node deaf-1 within 2 s"
            with pytest.raises(UnavailableError, match=f"{says}.*`longshore doctor` says"):
                await of_a_node("deaf-1")
        for ask in (longshore.status, longshore.requeue):
            with pytest.raises(UnavailableError) as told:
                await ask(job_id)
            says = f"Temporal knows job {job_id}, but no control worker has answered within 2 s"
            assert str(told.value).startswith(says)
            assert "`longshore doctor` says" in str(told.value)
        with pytest.raises(
            UnavailableError, match="No control worker has answered for job"
        ) as told:
            await longshore.resize(job_id, 2)
        assert "it may still carry this out" in str(told.value)
        report = await longshore.report(job_id)
        assert (report.state, "no control worker" in report.missing[0]) == (JobState.HELD, True)
    await longshore.close()


@pytest.mark.exhaustive
async def test_a_second_signal_ends_a_worker_at_once(
    place: Place, settings: Settings, database_url: str
):
    async with hanging(place, settings, database_url) as worker:
        worker.terminate()
        await worker.says("stopping")
        worker.terminate()
        # Without the second signal it would end well, and not before its grace is over.
        assert await worker.ends(within=60.0) == 128 + 15


@asynccontextmanager
async def hanging(
    place: Place, settings: Settings, database_url: str
) -> AsyncIterator[WorkerProcess]:
    """Yield a worker in the middle of a step that its database does not answer."""
    own = settings.model_copy(update={"database_url": SecretStr(database_url)})
    longshore = Longshore(place.temporal, own)
    async with relay_to(socket_of(database_url)) as relay:
        url = through(relay, database_url)
        with place.worker(LONGSHORE_DATABASE_URL=url) as worker:
            await worker.says("takes work from task queue")
            first = (await longshore.submit(a_spec(new_pool()))).job_id
            await eventually(lambda: is_known(longshore, first))
            relay.swallow()
            job_id = (await longshore.submit(a_spec(new_pool()))).job_id
            await eventually(lambda: is_under_way(place, job_id))
            yield worker
    await longshore.close()


async def is_known(longshore: Longshore, job_id: str) -> bool:
    """Return whether the job has come into the database."""
    return any(job.id == job_id for job in await longshore.list())


async def is_under_way(place: Place, job_id: str) -> bool:
    """Return whether the worker has begun with the first step of the job."""
    handle = place.temporal.get_workflow_handle(job_workflow_id(job_id))
    pending = (await handle.describe()).raw_description.pending_activities
    started = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    return any(each.state == started for each in pending)


def socket_of(database_url: str) -> str:
    """Return the path of the Unix socket where the test's PostgreSQL listens."""
    return f"{make_url(database_url).query['host']}/.s.PGSQL.5432"


def through(relay: Relay, database_url: str) -> str:
    """Return the URL of the database behind the relay."""
    host, _, port = relay.address.rpartition(":")
    url = make_url(database_url).set(host=host, port=int(port), query={})
    return url.render_as_string(hide_password=False)
