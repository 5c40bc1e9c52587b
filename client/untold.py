"""A change that is stored stands, also where those whom it is for cannot be told at once."""

from collections.abc import Awaitable, Iterable

from sqlalchemy.exc import DBAPIError
from temporalio.service import RPCError

from longshore.client.errors import as_ours
from longshore.models.errors import LongshoreError, UnavailableError


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


def refuse_untold(notes: Iterable[str]) -> None:
    """Raise UnavailableError where one of the notes is of somebody who could not be told: for who
    rather asks again until that is done than have it done at the next look."""
    for note in notes:
        if note.startswith(_STORED):
            raise UnavailableError(note)


_STORED = "it is stored, but "
_NOT_TOLD = _STORED + "{} not told, and will go by it at the next look: {}"
