"""The domains of the pools as they are now."""

from longshore.activities.database import Database
from longshore.activities.snapshot import load_nodes, load_pool, load_simulated
from longshore.activities.views import Views
from longshore.models.domains import PoolTopology
from longshore.models.settings import Settings
from longshore.models.views import PoolView
from longshore.scheduling.topology import topology_of


async def read_topology(
    pool: str | None,
) -> tuple[tuple[PoolTopology, ...], tuple[PoolView, ...]]:
    """Return the domains of one pool, or of all by name, of the database of the settings; and the
    pools that are left out, as their settings cannot be read.

    Raises NotFoundError for no such pool, StoredError where the settings of that one cannot be
    read, UnavailableError without a database.
    """
    database = Database.for_people(Settings().resolve_database_url(), pool_size=1)
    try:
        return await _read(database, pool)
    finally:
        await database.close()


async def topology_in(database: Database, pool: str | None) -> tuple[PoolTopology, ...]:
    """Return the same of this database, without the pools that are left out."""
    return (await _read(database, pool))[0]


async def _read(
    database: Database, pool: str | None
) -> tuple[tuple[PoolTopology, ...], tuple[PoolView, ...]]:
    views = () if pool is not None else await Views(database).pools()
    left_out = tuple(view for view in views if view.trouble)
    known = sorted(view.spec.name for view in views if not view.trouble)
    found: list[PoolTopology] = []
    for name in known if pool is None else [pool]:
        async with database.transaction() as connection:
            await load_pool(connection, name, known=True)
            nodes = await load_nodes(connection, name)
            simulated = await load_simulated(connection, name)
        found.append(topology_of(name, nodes, simulated))
    return tuple(found), left_out
