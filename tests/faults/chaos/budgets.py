"""Tenants with budgets in the load, and edits of these while it runs."""

import asyncio
import random
from typing import Any

from longshore.models.funding import FundingCode
from tests.faults.chaos.scene import Scene

TENANTS = ("default", "lab", "vision", "vision", "audio")
"""Whose jobs come: those of `default` have no budget."""
_BEGIN = (
    "INSERT INTO tenants (name, parent, budget_since) VALUES ('lab', NULL, now()),"
    " ('vision', 'lab', now()), ('audio', 'lab', now()) RETURNING name",
    "INSERT INTO envelopes (tenant, name, milli, sharing, lend_to, lend_milli) VALUES"
    " ('lab', 'rest', 2000, 'family', '{}', 0), ('vision', 'main', 2000, 'family', '{}', 0),"
    " ('audio', 'main', 3000, 'none', '{vision}', 2000) RETURNING name",
    "INSERT INTO funding_caps (tenant, name, milli, subtree) VALUES ('lab', 'all', 12000, true)"
    " RETURNING name",
)
_SIZES = (0, 500, 2000, 6000, 12000)


def begin(scene: Scene) -> None:
    """Give three of the tenants of the load a budget, for fewer GPUs than their jobs want."""
    for statement in _BEGIN:
        scene.fleet.rows(statement)


def wish(chance: random.Random) -> dict[str, Any]:
    """Return whose a job is, and what it says of who pays."""
    tenant = chance.choice(TENANTS)
    found: dict[str, Any] = {"tenant": tenant}
    if tenant == "vision" and chance.random() < 0.5:
        found["funding"] = {"allow_borrow": True, "sponsors": ["audio"]}
    elif tenant != "default" and chance.random() < 0.2:
        found["funding"] = {"unfunded": "wait"}
    return found


async def edit(scene: Scene, chance: random.Random) -> str:
    """Edit envelopes a few times, a second or two apart."""
    done: list[str] = []
    for _ in range(chance.randint(2, 5)):
        done.append(await _edit(scene, chance))
        await asyncio.sleep(chance.uniform(0.5, 2))  # the load goes on meanwhile
    return ", ".join(done)


async def _edit(scene: Scene, chance: random.Random) -> str:
    """Give an envelope another size; now and then have its window end, and another begin, or a cap
    be removed, and made anew."""
    if chance.random() < 0.2:
        gpus = chance.choice((3, 6, 12))
        await asyncio.to_thread(
            scene.fleet.rows,
            "WITH gone AS (UPDATE funding_caps SET removed_at = clock_timestamp()"
            " WHERE removed_at IS NULL RETURNING tenant, name, subtree)"
            " INSERT INTO funding_caps (tenant, name, milli, subtree)"
            " SELECT tenant, name || '.', %s, subtree FROM gone RETURNING id",
            1000 * gpus,
        )  # fmt: skip
        return f"a cap of {gpus} GPUs takes the place of another"
    tenant = chance.choice(("lab", "vision"))
    name = {"lab": "rest", "vision": "main"}[tenant]
    size = chance.choice(_SIZES)
    if chance.random() < 0.6:
        rows = await asyncio.to_thread(
            scene.fleet.rows,
            "UPDATE envelopes SET milli = %s WHERE tenant = %s AND name = %s"
            " AND removed_at IS NULL RETURNING id",
            size, tenant, name,
        )  # fmt: skip
        return f"{tenant}/{name} has {size / 1000:g} GPUs" if rows else f"{tenant} has none"
    await asyncio.to_thread(
        scene.fleet.rows,
        "WITH over AS (UPDATE envelopes SET ends_at = clock_timestamp() + interval '10 ms',"
        " removed_at = clock_timestamp() WHERE tenant = %s AND name = %s AND removed_at IS NULL"
        " RETURNING tenant, name)"
        " INSERT INTO envelopes (tenant, name, milli, sharing, starts_at)"
        " SELECT tenant, name, %s, 'family', clock_timestamp() + interval '2 s' FROM over"
        " RETURNING id",
        tenant, name, size,
    )  # fmt: skip
    return f"{tenant}/{name} ends, and one of {size / 1000:g} GPUs begins"


async def give_enough(scene: Scene) -> None:
    """Let everybody who waits for a budget start, so that all jobs end."""
    await asyncio.to_thread(
        scene.fleet.rows,
        "INSERT INTO envelopes (tenant, name, milli) SELECT name, 'enough', 100000 FROM tenants"
        " RETURNING name",
    )
    await asyncio.to_thread(
        scene.fleet.rows, "UPDATE funding_caps SET milli = 1000000 RETURNING name"
    )


def summary(scene: Scene) -> str:
    """Return what came of it, in one line."""
    (found,) = scene.fleet.rows(
        "SELECT count(*) AS charges, count(*) FILTER (WHERE lent) AS lent,"
        " count(*) FILTER (WHERE c.end_reason = ANY(%s)) AS demoted,"
        " (SELECT count(*) FROM preemptions WHERE by_payer) AS by_payer FROM charges c",
        [code.value for code in FundingCode],
    )
    return (
        f"{found['charges']} charges, {found['lent']} of them lent, {found['demoted']} ended by an"
        f" edit; {found['by_payer']} jobs that nobody paid for gave way"
    )
