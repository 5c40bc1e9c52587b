"""A change that is stored stands, also where those whom it is for cannot be told at once."""

from collections.abc import Awaitable

from sqlalchemy.exc import DBAPIError
from temporalio.service import RPCError

from longshore.client.errors import as_ours
from longshore.models.errors import LongshoreError


async def untold(whom: str, telling: Awaitable[object]) -> tuple[str, ...]:
    """Await what tells of a change that is stored, with `whom` it is for, as ``the pools
    were``. Return a note where they cannot be told: the change itself has not failed."""
    try:
        await telling
    except RPCError as error:
        return (_NOT_TOLD.format(whom, as_ours(error, "workflow of that")),)
    except (LongshoreError, DBAPIError, TimeoutError) as error:
        return (_NOT_TOLD.format(whom, error),)
    return ()


_NOT_TOLD = "it is stored, but {} not told, and will go by it at the next look: {}"
