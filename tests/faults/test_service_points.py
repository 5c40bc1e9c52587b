"""The control worker and the servers are killed at each step of a service, then an agent and an
engine: in the end there is an engine for each lease, and a lease for each engine.

One case runs always, the others with `make faults`.
"""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from longshore.activities.failpoints import ServicePoint
from longshore.client.service_readiness import is_settled
from longshore.models.service import ServiceSpec, ServiceState, ServiceView
from longshore.models.serving import ModelSpec
from longshore.workers.stack import agent_process
from tests.faults.cases import cases_of
from tests.faults.chaos.serving import LEASED, engines_of
from tests.faults.fleet import CONTROL, PATIENCE, POSTGRES, TEMPORAL, Fleet
from tests.faults.scenes import until_answered, until_told
from tests.support.gguf_models import Model, write
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

ALWAYS = {
    ("advance_service.after-first-start", CONTROL),
}
NAME = "chat"


def _cases() -> list[object]:
    victims = (CONTROL, TEMPORAL, POSTGRES)
    points = get_args(ServicePoint)
    return cases_of([(point, each) for point in points for each in victims], ALWAYS)


@pytest.mark.parametrize(("point", "victim"), _cases())
async def test_each_replica_is_there_once(
    fleet: Fleet, point: ServicePoint, victim: str, tmp_path: Path
) -> None:
    await _add_model(fleet, tmp_path)
    pool = fleet.journal.job("any").pool
    spec = ServiceSpec(name=NAME, model="tiny", pool=pool, replicas=2, drain=timedelta(seconds=2))
    fleet.arm(point)
    await until_answered(lambda: fleet.longshore.serve(spec))
    try:
        await fleet.reached(point)
        await asyncio.to_thread(fleet.kill, victim)
    finally:
        fleet.let_go(point)
        await asyncio.to_thread(fleet.start_what_is_missing)
    await _until_settled(fleet, tmp_path)
    engine, *_ = engines_of(tmp_path)
    engine.kill()
    await eventually(lambda: engine not in engines_of(tmp_path), timeout=PATIENCE)
    first, *_ = fleet.nodes
    await asyncio.to_thread(fleet.kill, agent_process(first))
    await asyncio.to_thread(fleet.start_what_is_missing)
    changed = spec.model_copy(update={"cpus": 0.5})
    revision, *_ = await until_answered(lambda: fleet.longshore.serve(changed))
    found = await _until_settled(fleet, tmp_path)
    assert found.revision == revision
    await until_told(lambda: fleet.longshore.remove_service(NAME))

    async def over() -> bool:
        return (await _view(fleet)).state is ServiceState.REMOVED

    await eventually(over, timeout=PATIENCE)
    await eventually(lambda: not engines_of(tmp_path), timeout=PATIENCE)
    assert await _leased(fleet) == []


async def _add_model(fleet: Fleet, folder: Path) -> None:
    source = str(write(Model(), folder / "tiny.gguf"))
    model = ModelSpec(name="tiny", source=source, context=1000)
    await until_answered(lambda: fleet.longshore.add_models([model]))


async def _view(fleet: Fleet) -> ServiceView:
    return await until_answered(lambda: fleet.longshore.service(NAME))


async def _until_settled(fleet: Fleet, folder: Path) -> ServiceView:
    """Wait until there are as many engines as leases, each of the service's revision."""

    async def settled() -> bool:
        found = await _view(fleet)
        alone = is_settled(found) and len(found.replicas) == found.spec.replicas
        return alone and len(await _leased(fleet)) == len(engines_of(folder)) == 2

    await eventually(settled, timeout=2 * PATIENCE, interval=0.2)
    return await _view(fleet)


async def _leased(fleet: Fleet) -> list[Any]:
    return await asyncio.to_thread(fleet.rows, LEASED)
