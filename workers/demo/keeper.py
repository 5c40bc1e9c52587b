"""Starts again what ends during the demo: whatever is killed, the demo only takes longer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from longshore.models.errors import LongshoreError
from longshore.workers.local import CONTROL, Flags, start_agents, start_control_worker
from longshore.workers.stack import SERVERS, PartState, Stack, agent_process

POLL_EVERY = 1.0


class Keeper:
    """Keeps a stack running. `spared` are nodes whose agents are to stay down for now."""

    def __init__(
        self, stack: Stack, nodes: Mapping[str, Flags], tell: Callable[[Sequence[str]], None]
    ) -> None:
        self.spared: set[str] = set()
        self._stack = stack
        self._nodes = nodes
        self._tell = tell

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Look after the stack until the end of the block."""
        task = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _keep(self) -> None:
        while True:
            ended = self._ended()
            if ended:
                # Two looks: a process that is being replaced must not be started twice.
                await asyncio.sleep(POLL_EVERY)
                ended = [name for name in ended if name in self._ended()]
            if ended:
                await self._start_again(ended)
            await asyncio.sleep(POLL_EVERY)

    def _ended(self) -> list[str]:
        wanted = {*SERVERS, CONTROL, *map(agent_process, set(self._nodes) - self.spared)}
        parts = {part.name: part.state for part in self._stack.status()}
        return sorted(n for n in wanted if parts.get(n, PartState.STOPPED) is PartState.STOPPED)

    async def _start_again(self, names: list[str]) -> None:
        try:
            await asyncio.to_thread(self._start)
        except LongshoreError:
            return  # another part ended meanwhile: the next look sees it
        self._tell(names)

    def _start(self) -> None:
        nodes = {node: flags for node, flags in self._nodes.items() if node not in self.spared}
        with self._stack.exclusive(_quiet):
            self._stack.start(_quiet)
            start_control_worker(self._stack, _quiet)
            start_agents(self._stack, nodes, _quiet)


def _quiet(line: str) -> None:
    del line
