"""Whatever happens to jobs and nodes, what is in use is the sum of what is live."""

import random

import pytest

from longshore.models.node import NodeState
from longshore.models.node_messages import DrainRequest, NodeEnd
from tests.support.ledger import Ledger

_NODES = ("node-a", "node-b")
_JOBS = tuple(f"job-{number}" for number in range(10))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 3))]
)
async def test_ledgers_equal_the_sums_of_live_rows_after_any_sequence(ledger: Ledger, seed: int):
    chance = random.Random(seed)  # the same seed is the same sequence
    story = _Story(ledger, chance)
    async with ledger.listening(*_JOBS[:-2]):  # the last two are always withdrawn
        for node in _NODES:
            await ledger.register(node, gpus=4)
        for step in range(60):
            what = await story.step()
            assert await ledger.drift() == [], f"step {step}: {what}"
        assert await ledger.value("SELECT count(*) FROM leases") > 4, "a story with no leases"
        for job in _JOBS:
            await ledger.finish(job, attempt=story.attempts.get(job, 1))
        assert await ledger.value("SELECT count(*) FROM leases WHERE ended_at IS NULL") == 0
        used = (
            "SELECT sum(cpu_milli_used + ram_mb_used + storage_mb_s_used + milliwatts_used)"
            " FROM nodes"
        )
        assert await ledger.value(used) == 0
        assert await ledger.value("SELECT sum(vram_mb_used) FROM gpus") == 0


class _Story:
    """Does one thing after another to jobs and nodes, as chance has it."""

    def __init__(self, ledger: Ledger, chance: random.Random) -> None:
        self.attempts: dict[str, int] = {}
        self._ledger = ledger
        self._chance = chance
        self._boots = 1
        self._cycles = 0

    async def step(self) -> str:
        steps = [self._enqueue] * 4 + [self._cycle] * 4 + [self._release] * 3
        steps += [self._drain, self._end_node, self._register, self._register]
        step = self._chance.choice(steps)
        await step()
        return step.__name__

    async def _enqueue(self) -> None:
        job = self._chance.choice(_JOBS)
        await self._ledger.enqueue(
            job, attempt=self.attempts.setdefault(job, 1), gpus=self._chance.randint(1, 3),
            cpus=self._chance.choice([0, 0.125, 3]), ram=self._chance.choice([0, "250MB", 20]),
            vram_per_gpu=self._chance.choice([0, "512MB", 80]),
            storage_bandwidth=self._chance.choice([0, "250MB/s", 3]),
            power_per_gpu=self._chance.choice([None, 300]),
        )  # fmt: skip

    async def _cycle(self) -> None:
        # Now and then the cycle before is delivered again.
        self._cycles += self._chance.random() < 0.8
        await self._ledger.cycle(f"cycle-{self._cycles}")

    async def _release(self) -> None:
        job = self._chance.choice(_JOBS)
        await self._ledger.release(job, self.attempts.setdefault(job, 1))
        if self._chance.random() < 0.8:
            self.attempts[job] += 1

    async def _register(self) -> None:
        self._boots += self._chance.random() < 0.5
        node = self._chance.choice(_NODES)
        await self._ledger.register(
            node, boot=f"boot-{self._boots}", gpus=self._chance.randint(2, 5),
            storage_bandwidth=self._chance.choice([None, 4]),
            power=self._chance.choice([None, 1500]),
        )  # fmt: skip

    async def _drain(self) -> None:
        node = self._chance.choice(_NODES)
        epoch = await self._live_epoch(node)
        if epoch is not None:
            draining = self._chance.random() < 0.5
            request = DrainRequest(node_id=node, epoch=epoch, draining=draining)
            await self._ledger.run(self._ledger.registry.drain_node, request)

    async def _end_node(self) -> None:
        node = self._chance.choice(_NODES)
        epoch = await self._live_epoch(node)
        if epoch is not None:
            state = self._chance.choice([NodeState.LOST, NodeState.GONE])
            request = NodeEnd(node_id=node, epoch=epoch, state=state, reason="chance")
            await self._ledger.run(self._ledger.registry.end_node, request)

    async def _live_epoch(self, node: str) -> int | None:
        return await self._ledger.value(
            "SELECT epoch FROM nodes WHERE id = :node AND state IN ('READY', 'DRAINING')",
            node=node,
        )
