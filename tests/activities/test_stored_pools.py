"""A pool whose stored settings cannot be read: it is named and waits, and holds up no other."""

from datetime import timedelta

import pytest

from longshore.activities.observation import observe
from longshore.activities.snapshot import load_pool
from longshore.activities.views import Views
from longshore.models.errors import StoredError
from longshore.models.pool import PoolSpec
from longshore.models.reconcile import ReconcileRequest
from longshore.workers.doctor.pools import unreadable
from tests.support.ledger import Ledger


@pytest.mark.parametrize(
    ("stored", "why"),
    [('{"interval": "soon"}', "interval"), ('{"buying": 7}', "buying"), ("[1]", ""), ('"x"', "")],
)
async def test_it_is_named_and_holds_up_no_other(ledger: Ledger, stored: str, why: str):
    await ledger.register(gpus=2)
    await ledger.rows(
        "INSERT INTO pools (name, spec) VALUES ('other', CAST(:stored AS jsonb))", stored=stored
    )
    pools = {pool.spec.name: pool for pool in await Views(ledger.database).pools()}
    assert pools["other"].trouble.startswith(f"the settings of pool other: {why}")
    assert pools["other"].spec == PoolSpec(name="other")
    assert (pools[ledger.pool].trouble, pools[ledger.pool].gpus) == ("", 2)
    seen = await observe(
        ledger.database, ledger.temporal, ReconcileRequest(), timedelta(seconds=12)
    )
    assert {pool.name for pool in seen.pools} >= {"other", ledger.pool}
    async with ledger.database.transaction() as connection:
        with pytest.raises(StoredError, match="the settings of pool other"):
            await load_pool(connection, "other")
    (found,) = await unreadable(ledger.database)
    assert (found.says, "longshore pool set other" in found.mend) == (pools["other"].trouble, True)
