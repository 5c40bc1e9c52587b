"""Whatever happens at once to jobs and budgets, the sums are those of the open charges."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import pytest

from longshore.activities.funding.edits import apply_budgets, set_tenant
from longshore.activities.funding.rows import close_charges, load_facts, open_charges
from longshore.models.errors import RefusedError
from longshore.models.funding import Budget, Cap, Envelope, Lending, Tenant
from longshore.scheduling.funding.facts import Charge
from tests.support.funding import SINCE, funding_drift, job_of, tenant
from tests.support.ledger import Ledger

_TENANTS = ("root", "a", "b", "c")
_TURNS = 25


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 4))]
)
async def test_sums_equal_open_charges_whatever_happens_at_once(ledger: Ledger, seed: int):
    await ledger.register(gpus=16)
    for name in _TENANTS:
        await tenant(ledger, name, None if name == "root" else "root")
    chance = random.Random(seed)
    story = _Story(ledger, chance)
    await story.budgets()
    async with asyncio.timeout(300):
        await asyncio.gather(
            *(story.run(step) for step in (story.cycle, story.cycle, story.jobs, story.edit))
        )
    assert story.opened > 5, "a story in which nothing is paid for"
    assert await funding_drift(ledger) == []
    await ledger.rows(
        "UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'x'"
        " WHERE ended_at IS NULL"
    )
    assert await ledger.value("SELECT count(*) FROM charges WHERE ended_at IS NULL") == 0
    assert await ledger.value("SELECT sum(used) + sum(lent) FROM envelopes") == 0
    assert await funding_drift(ledger) == []


class _Story:
    def __init__(self, ledger: Ledger, chance: random.Random) -> None:
        self.opened = 0
        self._ledger = ledger
        self._chance = chance
        self._jobs = 0

    async def run(self, step: Callable[[], Awaitable[None]]) -> None:
        # Nobody waits for another in a circle: the database would end one of them with an error.
        for _ in range(_TURNS):
            with contextlib.suppress(RefusedError):  # a cut below what is lent, a circle
                await step()

    async def jobs(self) -> None:
        """End some jobs, and let others run on the GPUs that are free."""
        await self._ledger.rows(
            "UPDATE placements SET ended_at = clock_timestamp(), end_reason = 'x'"
            " WHERE ended_at IS NULL AND (hashtext(job_id) + :turn) % 3 = 0",
            turn=self._jobs,
        )  # fmt: skip
        free = await self._ledger.rows(
            "SELECT index FROM gpus WHERE kind IS NULL ORDER BY index LIMIT 4"
        )
        for row in free:
            self._jobs += 1
            owner = self._chance.choice(_TENANTS)
            await job_of(self._ledger, f"j{self._jobs}", owner, (row["index"],))

    async def cycle(self) -> None:
        """Close some charges and open others, as facts of a moment ago have it."""
        async with self._ledger.database.transaction() as connection:
            facts = await load_facts(connection, self._ledger.pool)
        assert facts is not None
        paid = {(each.job_id, gpu) for each in facts.charges for gpu in each.gpus}
        wanted: list[Charge] = []
        for use in facts.uses:
            gpu = use.shares[0].gpus[0]
            if (use.job_id, gpu) in paid or not facts.envelopes:
                continue
            owned = facts.envelopes[self._chance.choice(sorted(facts.envelopes))]
            lent = owned.tenant != use.tenant and self._chance.random() < 0.5
            wanted.append(Charge(use.job_id, use.attempt, 0, owned.id, (gpu,), 1000, lent, SINCE))
        some = [each.id for each in facts.charges if self._chance.random() < 0.3]
        async with self._ledger.database.transaction() as connection:
            closed = await close_charges(connection, some, "chance")
        assert closed <= set(some)
        async with self._ledger.database.transaction() as connection:
            self.opened += len(wanted) - len(await open_charges(connection, wanted))

    async def edit(self) -> None:
        """Give a tenant another budget, or another place in the tree."""
        name = self._chance.choice(_TENANTS)
        if self._chance.random() < 0.3:
            tenant = Tenant(name=name, parent=self._chance.choice([None, *_TENANTS]))
            async with self._ledger.database.transaction() as connection:
                await set_tenant(connection, tenant)
        else:
            await self.budgets()

    async def budgets(self) -> None:
        budgets = [
            Budget(
                tenant=name,
                envelopes=tuple(
                    Envelope(
                        name=each, gpus=float(self._chance.randint(1, 5)), end=None,
                        lending=Lending(to=_TENANTS, max=2.0),
                    )
                    for each in ("main", "spot")[: self._chance.randint(1, 2)]
                ),
                caps=(Cap(name="all", gpus=float(self._chance.randint(2, 8)), subtree=True),),
            )
            for name in _TENANTS
        ]  # fmt: skip
        async with self._ledger.database.transaction() as connection:
            await apply_budgets(connection, self._chance.sample(budgets, 2))
