"""What a pool never takes it refuses whoever starts it: also arrays and DAGs of another SDK."""

from datetime import UTC, datetime

from temporalio.client import Client

from longshore.activities.arrays import ArrayActivities
from longshore.activities.dags import DagActivities
from longshore.activities.signals import Signals
from longshore.models.array_messages import ArrayInput, OpenArray
from longshore.models.dag import DagSpec
from longshore.models.dag_messages import OpenDag
from longshore.models.job import JobSpec
from longshore.models.pool import Growth
from tests.support.ledger import Ledger

NOW = datetime(2026, 11, 24, tzinfo=UTC)


async def test_an_array_that_a_fixed_pool_could_never_hold_is_refused(
    ledger: Ledger, temporal: Client
) -> None:
    await ledger.register(gpus=2)
    await ledger.set_growth(Growth.FIXED)
    refused = await _open_array(ledger, temporal, "wide", gpus=3)
    assert f"no node of pool {ledger.pool} could ever hold 3 x any GPU" in refused
    assert not await _open_array(ledger, temporal, "fits", gpus=2)
    await ledger.rows("UPDATE nodes SET state = 'GONE'")
    assert not await _open_array(ledger, temporal, "fits", gpus=2), "a repeat"
    assert "has no nodes, and is fixed" in await _open_array(ledger, temporal, "new", gpus=2)


async def test_a_dag_with_a_job_that_a_fixed_pool_could_never_hold_is_refused(
    ledger: Ledger, temporal: Client
) -> None:
    await ledger.register(gpus=2)
    await ledger.set_growth(Growth.FIXED)
    refused = await _open_dag(ledger, temporal, "wide", first=2, then=3, also=3)
    for name in ("then", "also"):
        assert f"{name}: no node of pool {ledger.pool} could ever hold 3 x any GPU" in refused
    assert "first: " not in refused
    assert await ledger.value("SELECT count(*) FROM dags") == 0
    assert not await _open_dag(ledger, temporal, "fits", first=2)
    await ledger.rows("UPDATE nodes SET state = 'GONE'")
    assert not await _open_dag(ledger, temporal, "fits", first=2), "a repeat"


async def test_an_open_pool_takes_both(ledger: Ledger, temporal: Client) -> None:
    assert not await _open_array(ledger, temporal, "a", gpus=9)
    assert not await _open_dag(ledger, temporal, "d", first=9)


async def _open_array(ledger: Ledger, temporal: Client, array_id: str, gpus: int) -> str:
    arrays = ArrayActivities(ledger.database, temporal, Signals(temporal), 1000, 256)
    spec = JobSpec.model_validate(
        {"name": "a", "command": "true", "pool": ledger.pool, "gpus": gpus, "array": "0-3"}
    )
    request = OpenArray(array_id=array_id, job=ArrayInput(spec=spec), submitted_at=NOW)
    return (await arrays.open_array(request)).refusal


async def _open_dag(ledger: Ledger, temporal: Client, dag_id: str, **gpus: int) -> str:
    dags = DagActivities(ledger.database, temporal, 100)
    jobs = {
        name: {"command": "true", "pool": ledger.pool, "gpus": count}
        for name, count in gpus.items()
    }
    spec = DagSpec.model_validate({"name": "d", "jobs": jobs})
    request = OpenDag(dag_id=dag_id, spec=spec, submitted_at=NOW)
    return (await dags.open_dag(request)).refusal
