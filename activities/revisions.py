"""Which revisions of the tables this version of Longshore knows, and which a database is at."""

from pathlib import Path

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.models import records
from longshore.models.errors import NewerTablesError

MIGRATIONS = Path(records.__file__).parent / "migrations"
HAS_REVISION: TextClause = text("SELECT to_regclass('alembic_version') IS NOT NULL")
REVISION: TextClause = text("SELECT version_num FROM alembic_version")


def newest_revision() -> str:
    """Return the revision that this version of Longshore needs."""
    return _revisions()[-1]


def mismatch(found: str | None) -> str:
    """Return what is wrong with a database at revision `found`, and what to do; or nothing."""
    if found == newest_revision():
        return ""
    return newer(found) or (
        f"the database is at {f'revision {found}' if found else 'no revision'}, and this version "
        f"of Longshore needs {newest_revision()}. Run `longshore db upgrade`."
    )


def newer(found: str | None) -> str:
    """Return the same of a database that a newer version has upgraded; of another nothing."""
    if found is None or found in _revisions():
        return ""
    return (
        f"the database is at revision {found}, which this version of Longshore does not know "
        f"(its newest is {newest_revision()}): a newer one has upgraded it. Run that version, or "
        "restore a backup from before."
    )


async def refuse_newer(connection: AsyncConnection) -> None:
    """Raise NewerTablesError where a newer version has upgraded the database: what columns mean
    to that version nobody knows here."""
    if not await connection.scalar(HAS_REVISION):
        return
    if why := newer(await connection.scalar(REVISION)):
        raise NewerTablesError(why)


def _revisions() -> list[str]:
    """Return the revisions that this version knows, oldest first: their files begin with them."""
    files = (MIGRATIONS / "versions").glob("[0-9]*_*.py")
    return sorted(file.name.partition("_")[0] for file in files)
