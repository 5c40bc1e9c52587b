"""What commands say of a pool whose stored settings cannot be read, and how it is mended."""

import json

import psycopg

from longshore.console.fleet import Fleet
from longshore.models.settings import Settings
from tests.client.conftest import Command
from tests.support.control import new_pool


async def test_it_is_shown_and_set_anew(longshore: Command, pool: str, settings: Settings) -> None:
    spoilt = new_pool()
    with psycopg.connect(settings.resolve_database_url(), autocommit=True) as connection:
        connection.execute(
            """INSERT INTO pools (name, spec) VALUES (%s, '{"interval": "soon"}')""", (spoilt,)
        )
    said = f"the settings of pool {spoilt}: interval"
    for command in (("pools",), ("pool", "show", spoilt)):
        shown = await longshore(*command)
        assert (shown.code, spoilt in shown.out, said in shown.err) == (0, True, True)
    assert (await longshore("pool", "set", pool, "--interval", "30s")).code == 0
    fleet = Fleet(settings)  # the pages, and the REST API
    every = json.loads((await longshore("topology", "--json")).out)
    (alone,) = json.loads((await longshore("topology", "--pool", spoilt, "--json")).out)
    assert alone in every
    for names in ([each["pool"] for each in every], [p.pool for p in await fleet.topology()]):
        assert {pool, spoilt} <= {*names}
    await fleet.close()
    mended = await longshore("pool", "set", spoilt, "--interval", "30s")
    assert (mended.code, said in mended.err) == (0, True)
    assert said not in (await longshore("pools")).err
