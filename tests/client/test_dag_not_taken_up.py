"""A DAG that no control worker has taken up yet. None runs in this module but within the test."""

import asyncio
from functools import partial

import pytest
from temporalio.client import Client

from longshore.client import dags
from longshore.client.api import Longshore
from longshore.client.no_record import newest_running
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import dag_workflow_id
from longshore.models.dag_view import DagState
from longshore.models.errors import NotFoundError, UnavailableError
from longshore.models.settings import Settings
from tests.support.control import new_pool, serving_control
from tests.support.waiting import eventually


async def test_a_dag_that_nobody_takes_up_is_said_and_waited_for(
    settings: Settings, temporal: Client, monkeypatch: pytest.MonkeyPatch
):
    """No control worker runs: the first answer is that, and not that there is no such DAG."""
    monkeypatch.setattr(dags, "ON_RECORD_WITHIN", 0.5)
    told: list[str] = []
    api = Longshore(temporal, settings, on_away=told.append, on_back=lambda: told.append("back"))
    jobs = {"a": {"command": "true"}}
    spec = DagSpec.model_validate({"name": "d", "pool": new_pool(), "jobs": jobs})
    dag_id = (await api.submit_dag(spec)).dag_id
    with pytest.raises(UnavailableError, match="no control worker has taken it up"):
        await api.known_dag(dag_id)
    await eventually(partial(_is_listed, temporal, dag_id))
    with pytest.raises(UnavailableError, match=f"DAG {dag_id} is submitted, but no control"):
        await api.known_dag("d")
    with pytest.raises(NotFoundError, match="no DAG"):
        await api.known_dag("never-was")
    waiting = asyncio.create_task(api.wait_dag("d"))
    await eventually(lambda: told)
    assert "no control worker has taken it up" in told[0]
    async with serving_control(temporal, settings):
        await eventually(lambda: "back" in told)
        await api.cancel_dag(dag_id)
        assert (await waiting).state is DagState.CANCELLED
    newer = (await api.submit_dag(spec)).dag_id
    await eventually(partial(_is_listed, temporal, newer))
    with pytest.raises(UnavailableError, match=f"DAG {newer} is submitted"):
        await api.known_dag("d")
    await api.close()


async def _is_listed(temporal: Client, dag_id: str) -> bool:
    return await newest_running(temporal, "d", dag_workflow_id) == dag_id
