"""What Longshore needs of its servers: tables, search attributes, schedules."""

import asyncio
import re
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.migrations import current_revision, upgrade
from longshore.client.connection import connect
from longshore.models.errors import RefusedError
from longshore.models.search import SEARCH_ATTRIBUTES
from longshore.models.settings import Settings
from longshore.workers.schedules import ensure_schedules
from longshore.workers.temporal_errors import as_ours

_PATIENCE = timedelta(seconds=15)
_KNOWN_WITHIN = 30.0
"""Seconds until a new search attribute can be used; servers keep copies of their list."""


async def set_up(settings: Settings) -> tuple[str, ...]:
    """Make or bring up to date what is missing, and return what was done, a sentence each.

    May run again and again. Raises UnavailableError and RefusedError.
    """
    url = settings.resolve_database_url()
    before = await asyncio.to_thread(current_revision, url)
    after = await asyncio.to_thread(upgrade, url)
    moved = f"brought from {before or 'nothing'} to" if before != after else "already at"
    temporal = await connect(settings, service="longshore-setup")
    added = await ensure_search_attributes(temporal)
    return (
        f"the database was {moved} revision {after}",
        f"search attributes were added: {', '.join(added)}" if added
        else f"all {len(SEARCH_ATTRIBUTES)} search attributes were there",
        *await ensure_schedules(temporal, settings),
    )  # fmt: skip


async def ensure_search_attributes(temporal: Client) -> tuple[str, ...]:
    """Register the search attributes of jobs that the namespace lacks; return their names.

    Returns when they can be used. Raises RefusedError where the server does not let us, or has
    one of another type, and UnavailableError.
    """
    known = await _search_attributes(temporal)
    wrong = [
        name for name, kind in SEARCH_ATTRIBUTES.items()
        if known.get(name, _type(kind)) != _type(kind)
    ]  # fmt: skip
    if wrong:
        raise RefusedError(
            f"search attribute {wrong[0]} of namespace {temporal.namespace} is not of type "
            f"{SEARCH_ATTRIBUTES[wrong[0]]}, and a type cannot be changed: use another namespace"
        )
    missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in known}
    if not missing:
        return ()
    request = AddSearchAttributesRequest(
        namespace=temporal.namespace,
        search_attributes={name: _type(kind) for name, kind in missing.items()},
    )
    try:
        await temporal.operator_service.add_search_attributes(request, timeout=_PATIENCE)
    except RPCError as error:
        raise as_ours(error, "to register search attributes") from error
    await _until_known(temporal, set(missing))
    return tuple(missing)


async def _search_attributes(temporal: Client) -> dict[str, int]:
    request = ListSearchAttributesRequest(namespace=temporal.namespace)
    try:
        reply = await temporal.operator_service.list_search_attributes(request, timeout=_PATIENCE)
    except RPCError as error:
        raise as_ours(error, "to list search attributes") from error
    return dict(reply.custom_attributes)


async def _until_known(temporal: Client, names: set[str]) -> None:
    """Wait until a search by each attribute is understood."""
    query = " OR ".join(f"{name} IS NULL" for name in sorted(names))
    deadline = asyncio.get_running_loop().time() + _KNOWN_WITHIN
    while True:
        try:
            await temporal.count_workflows(query, rpc_timeout=_PATIENCE)
        except RPCError as error:
            late = asyncio.get_running_loop().time() > deadline
            if late or error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise as_ours(error, "to use search attributes") from error
        else:
            return
        await asyncio.sleep(0.5)


def _type(kind: str) -> "IndexedValueType.ValueType":
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).upper()  # KeywordList is KEYWORD_LIST there
    return IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{name}")
