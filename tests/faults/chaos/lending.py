"""Gangs with spares in the load, some of which lend them, and jobs that nobody pays for beside."""

import asyncio
import random
from typing import Any

from tests.faults import scenes
from tests.faults.chaos.scene import Scene
from tests.faults.invariants import NOT_PAID_FOR
from tests.support.waiting import eventually

MANY_LENDERS = 6
"""Gangs that lend their spares, of which one at least has to be seen to have lent one."""
LENDER, GUEST = "bank", "guest"
"""A tenant whose budget pays for all of its jobs at any time, and one whose budget pays none."""
_BEGIN = (
    "INSERT INTO tenants (name, budget_since) VALUES (%s, now()), (%s, now()) RETURNING name",
    "INSERT INTO envelopes (tenant, name, milli, sharing) VALUES (%s, 'all', 100000, 'none')"
    " RETURNING name",
)
_STARTS_WITHIN = 30.0
"""Seconds for which a gang is waited for; the load may leave it no room for longer."""
_LENT_WITHIN = 4.0
_STAND_BY = """
    SELECT r.node_id, EXISTS (SELECT FROM placements b
                               WHERE b.borrowed_from = s.job_id AND b.kept_at IS NULL
                                 AND b.ended_at IS NULL) AS lent
      FROM placements s JOIN placements r USING (job_id, attempt)
     WHERE s.job_id = %s AND s.spare AND NOT r.spare AND s.ended_at IS NULL AND r.ended_at IS NULL
     ORDER BY r.rank
"""
_SUMMARY = """
    SELECT count(*) FILTER (WHERE borrowed_from IS NOT NULL) AS loans,
           count(*) FILTER (WHERE kept_at IS NOT NULL) AS kept,
           (SELECT count(*) FROM preemptions p JOIN placements b USING (job_id, attempt)
             WHERE p.for_job = b.borrowed_from) AS stopped,
           (SELECT count(DISTINCT (job_id, attempt)) FROM placements
             WHERE end_reason = 'swapped') AS swaps
      FROM placements
"""


def begin(scene: Scene) -> None:
    """Give the two tenants their budgets."""
    scene.fleet.rows(_BEGIN[0], LENDER, GUEST)
    scene.fleet.rows(_BEGIN[1], LENDER)


async def lend_and_take_back(scene: Scene, chance: random.Random, name: str) -> None:
    """Submit a gang with a spare, and jobs that may borrow that; then mostly have the gang lose
    its node, so that the spare takes its place. What a fault spoils is left as it is."""
    gpus, lends = chance.randint(1, 3), chance.random() < 0.75
    gang: dict[str, Any] = {
        "group_gpus": gpus, "spares_per_group": gpus, "unlabelled_nodes": True,
        "lend_spares": lends,
    }  # fmt: skip
    spec = scene.fleet.journal.job(
        name, round(chance.uniform(0.5, 3), 2), more_at_first=10, gpus=gpus, gang=gang,
        cpus=0.3, ram=0.3, tenant=LENDER, priority=8,
    )  # fmt: skip
    lender = await scenes.submit(scene.fleet, spec)
    scene.submitted.append(lender)
    if lends:
        scene.lenders.append(lender)
    for number in range(chance.randint(1, 3)):
        runs, wants = round(chance.uniform(1, 8), 2), chance.randint(1, gpus)
        guest = scene.fleet.journal.job(f"{name}-{number}", runs, gpus=wants, tenant=GUEST)
        scene.submitted.append(await scenes.submit(scene.fleet, guest))
    if chance.random() < 0.75:
        await _lose_node(scene, chance, lender)


async def _lose_node(scene: Scene, chance: random.Random, job_id: str) -> None:
    """Drain a node of a gang that runs with a spare, and let it take jobs again later."""

    async def runs(lent: bool) -> str:
        rows = await asyncio.to_thread(scene.fleet.rows, _STAND_BY, job_id)
        return next((row["node_id"] for row in rows if row["lent"] or not lent), "")

    try:
        await eventually(lambda: runs(lent=False), timeout=_STARTS_WITHIN, interval=0.2)
        await eventually(lambda: runs(lent=True), timeout=_LENT_WITHIN, interval=0.2)
    except AssertionError:
        pass  # it has no spare, or no job has borrowed that
    if node := await runs(lent=False):
        await scenes.tell(lambda: scene.fleet.longshore.drain(node, "a gang's", now=True))
        await asyncio.sleep(chance.uniform(1, 4))  # how long it is closed
        await scenes.until_taken(lambda: scene.fleet.longshore.uncordon(node, "a gang's"))


def violations(scene: Scene) -> list[str]:
    """Return where a gang has not paid for a GPU that it held, lent or not, and that nothing was
    lent: faults prevent some loans, and not all."""
    problems = [f"a lender did not pay: {row}" for row in scene.fleet.rows(NOT_PAID_FOR, LENDER)]
    if len(scene.lenders) >= MANY_LENDERS and not _counted(scene)["loans"]:
        problems.append(f"no spare was lent: {len(scene.lenders)} gangs would have")
    return problems


def summary(scene: Scene) -> str:
    """Return what came of it, in one line."""
    found = _counted(scene)
    return (
        f"{len(scene.lenders)} gangs lent their spares: {found['loans']} loans, of which"
        f" {found['stopped']} were stopped for the gang and {found['kept']} kept the GPUs;"
        f" {found['swaps']} swaps"
    )


def _counted(scene: Scene) -> dict[str, Any]:
    return scene.fleet.rows(_SUMMARY)[0]
