"""The domains of the pools as they are now."""

from longshore.activities.database import Database
from longshore.activities.snapshot import load_nodes, load_simulated
from longshore.activities.views import Views
from longshore.models.domains import PoolTopology
from longshore.models.pool import no_such_pool
from longshore.models.settings import Settings
from longshore.scheduling.topology import topology_of


async def read_topology(pool: str | None) -> tuple[PoolTopology, ...]:
    """Return the domains of one pool, or of all by name, of the database of the settings.

    Raises NotFoundError for no such pool, UnavailableError without a database.
    """
    database = Database.for_people(Settings().resolve_database_url(), pool_size=1)
    try:
        return await topology_in(database, pool)
    finally:
        await database.close()


async def topology_in(database: Database, pool: str | None) -> tuple[PoolTopology, ...]:
    """Return the same of this database; of pools whose settings cannot be read too."""
    known = sorted(view.spec.name for view in await Views(database).pools())
    if pool is not None and pool not in known:
        raise no_such_pool(pool, known)
    found: list[PoolTopology] = []
    for name in known if pool is None else [pool]:
        async with database.transaction() as connection:
            nodes = await load_nodes(connection, name)
            simulated = await load_simulated(connection, name)
        found.append(topology_of(name, nodes, simulated))
    return tuple(found)
