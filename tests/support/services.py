"""Waiting for a service, and what is told of all services where that is in vain."""

from collections.abc import Callable

from longshore.client.api import Longshore
from longshore.models.service import ServiceView
from tests.support.waiting import eventually

_PATIENCE = 180


async def until(
    longshore: Longshore, name: str, holds: Callable[[ServiceView], bool]
) -> ServiceView:
    """Return a service as it is once that holds."""

    async def is_so() -> ServiceView:
        found = await longshore.service(name)
        assert holds(found), found
        return found

    try:
        return await eventually(is_so, timeout=_PATIENCE)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await _all_that_serves(longshore)}") from error


async def _all_that_serves(longshore: Longshore) -> str:
    """Return each replica of all services, and what `why` says of its job."""
    lines: list[str] = []
    for service in await longshore.services():
        for each in service.replicas:
            why = await longshore.explain(each.job_id)
            lines += [f"{service.name}: {each}", f"  {why.headline}: {why.gave_way}"]
    return "\n".join(lines)
