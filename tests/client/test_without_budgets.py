"""What commands say of who pays where no tenant has a budget, in a database of its own."""

import json

from tests.client.conftest import Command, Ran
from tests.client.test_funding_shown import submitted, words
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually


async def _refused(longshore: Command, job: str) -> Ran | None:
    ran = await longshore("fund", job)
    return ran if ran.code else None


async def test_nothing_is_said_of_payers_where_no_tenant_has_a_budget(
    longshore: Command, pool: str, node: ScriptedNode
) -> None:
    job = await submitted(longshore, pool, "grey", "alone")
    await node.started(job)
    for command in ("job", "why"):
        assert "paid for" not in (await longshore(command, job)).out
        assert json.loads((await longshore(command, job, "--json")).out)["payers"] is None
    told = words(await longshore("fund", job))
    assert "Paid for: tenant grey has no budget: it pays for all that it uses" in told
    await node.end(job)
    ended = await eventually(lambda: _refused(longshore, job))
    assert ended is not None
    assert f"job {job} has ended: nobody pays for it any more" in ended.err
