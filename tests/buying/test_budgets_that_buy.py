"""A pool that buys for jobs of tenants with budgets: where somebody pays, for as many GPUs as are
paid for, and nothing else. What a submit says before is what is bought then."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from longshore.client.api import Longshore
from longshore.models.explanation import Explanation
from longshore.models.forecast import ForecastKind
from longshore.models.funding import Budget, Quotas, Tenant
from longshore.models.job_status import JobState
from tests.buying.buyer import Buyer
from tests.buying.test_pool_buys import bought, may_buy
from tests.support.control import a_spec, reaches
from tests.support.waiting import eventually


@pytest.fixture
async def owner(buyer: Buyer, longshore: Longshore) -> str:
    name = f"t{uuid.uuid4().hex[:8]}"
    await longshore.set_tenant(Tenant(name=name))
    return name


async def may_use(longshore: Longshore, owner: str, **envelope: Any) -> None:
    main = {"name": "main", "start": datetime(2026, 11, 1, tzinfo=UTC), "end": None, **envelope}
    budget = {"tenant": owner, "envelopes": (main,)}
    await longshore.apply_budgets([Budget.model_validate(budget)])


@pytest.mark.exhaustive(always=1)
@pytest.mark.parametrize("by", ["budget", "quota"])
async def test_a_malleable_job_gets_one_machine_for_the_size_that_is_allowed(
    buyer: Buyer, longshore: Longshore, owner: str, by: str
) -> None:
    if by == "budget":
        await may_use(longshore, owner, gpus=4)
    else:
        await longshore.set_tenant(Tenant(name=owner, quotas=Quotas(max_gpus=4)))
    await may_buy(buyer)
    sizes = {"min": 2, "max": 8, "step": 2, "desired": 8}
    spec = a_spec(
        buyer.pool, gpus=2, tenant=owner, malleable=sizes, expected_duration="30m",
        command="sleep 1000", cpus=0.1, ram=0.1,
    )  # fmt: skip
    job = await longshore.submit(spec)
    await reaches(longshore, job.job_id, JobState.RUNNING, within=150)
    held = await buyer.rows(
        "SELECT sum(cardinality(gpu_indices)) AS gpus FROM placements WHERE job_id = :id",
        id=job.job_id,
    )
    assert held[0]["gpus"] == 4
    await longshore.cancel(job.job_id)
    assert len(await bought(buyer)) == 1


async def test_nothing_is_said_to_be_bought_where_nobody_pays(
    buyer: Buyer, longshore: Longshore, owner: str
) -> None:
    await may_use(longshore, owner, gpus=4, gpu_type="A100")
    await may_buy(buyer)
    settings = buyer.market.settings(state_dir=longshore.settings.state_dir)
    api = Longshore(longshore.temporal, settings)
    given: dict[str, Any] = {"gpus": 1, "tenant": owner, "expected_duration": "30m"}
    other = await api.forecast(a_spec(buyer.pool, gpu_type="H100", **given))
    any_type = await api.forecast(a_spec(buyer.pool, **given))
    await api.close()
    assert other is not None
    assert other.kind is ForecastKind.WAITS
    assert "nothing would be bought for it now: no budget pays for 1 GPU" in other.says
    assert any_type is not None
    assert any_type.kind is ForecastKind.BUYS
    assert "A100" in any_type.says
    job = await longshore.submit(a_spec(buyer.pool, gpu_type="H100", **given))
    (warning,) = job.warnings
    assert "nothing is bought for it: no budget pays for 1 GPU" in warning
    assert f"`longshore fund {job.job_id}` says what would" in warning

    await reaches(longshore, job.job_id, JobState.QUEUED)

    async def told() -> Explanation | None:
        found = await longshore.explain(job.job_id)
        return found if found.position and found.buying else None

    found = await eventually(told)
    assert found is not None
    assert "buys what is missing" not in found.headline
    assert "nothing is bought for it: no budget pays for 1 GPU" in found.headline
    assert any(f"`longshore fund {job.job_id}`" in hint for hint in found.hints)
    assert found.buying is not None
    assert "no budget pays for 1 GPU" in found.buying.reason
    await longshore.cancel(job.job_id)
    assert await bought(buyer) == []
