"""Labels as a search attribute of Temporal: people filter by them there."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey

from longshore.activities import job_starts
from longshore.client.api import Longshore
from longshore.models.messages import job_workflow_id
from longshore.models.settings import Settings
from tests.support.control import a_spec
from tests.support.waiting import eventually


@pytest.fixture
async def api(temporal: Client, settings: Settings, control: None) -> AsyncIterator[Longshore]:
    found = Longshore(temporal, settings)
    yield found
    await found.close()


async def submitted(api: Longshore, pool: str, labels: dict[str, str]) -> str:
    """Submit a job that is held; return the id of its workflow."""
    return job_workflow_id((await api.submit(a_spec(pool, labels=labels), held=True)).job_id)


async def attributes(temporal: Client, workflow_id: str) -> set[str]:
    described = await temporal.get_workflow_handle(workflow_id).describe()
    return {pair.key.name for pair in described.typed_search_attributes}


async def test_jobs_are_found_by_their_labels(api: Longshore, temporal: Client, pool: str) -> None:
    flow = await submitted(api, pool, {"sweep": pool, "x.io/stage": ""})
    await submitted(api, pool, {"sweep": "other"})

    async def found() -> list[str]:
        query = f"LongshoreLabels = 'sweep={pool}' AND LongshoreLabels = 'x.io/stage='"
        return [each.id async for each in temporal.list_workflows(query)]

    assert await eventually(found) == [flow]


async def test_labels_that_no_attribute_holds_are_left_out(
    api: Longshore, temporal: Client, pool: str
) -> None:
    many = {f"{number:02}{'a' * 40}": "b" * 40 for number in range(40)}
    assert "LongshoreLabels" not in await attributes(temporal, await submitted(api, pool, many))
    assert "LongshoreLabels" not in await attributes(temporal, await submitted(api, pool, {}))


async def test_a_job_starts_where_the_namespace_does_not_have_the_attribute_yet(
    api: Longshore, temporal: Client, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = SearchAttributeKey.for_keyword_list("LongshoreLabelsOfLater")
    monkeypatch.setattr(job_starts, "_LABELS", later)
    found = await attributes(temporal, await submitted(api, pool, {"sweep": "7"}))
    assert "Pool" in found
    assert not any(name.startswith("LongshoreLabels") for name in found)
