"""The agent's end of a supervisor: starting it, feeding it, stopping it, hearing the end."""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Self

from activities import supervisor
from models.base import Frozen

_ROOT = str(Path(__file__).resolve().parent.parent)


class Plan(Frozen):
    """What a supervisor has to start; travels through its pipe and is stored nowhere."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    stdout: str
    stderr: str
    fed: float
    """When the last acknowledged heartbeat was sent, on `system.boot_clock`."""
    fence_after: float
    """Seconds after `fed` at which everything is killed."""
    signal_command: tuple[str, ...] | None = None
    """For a container: the command that signals it; the number goes in before the last word."""
    kill_command: tuple[str, ...] | None = None
    """For a container: the command that removes it."""


class Supervised:
    """A supervisor at work. Feeding and stopping one that has gone does nothing."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, folder: Path, plan: Plan) -> Self:
        """Start the supervisor of a run folder. Raises OSError when the system refuses."""
        with (folder / "supervisor.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", supervisor.START),
                *(_ROOT, str(folder)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
                limit=2**20,
            )
        supervised = cls(process)
        supervised._send(plan.model_dump(exclude_none=True))
        return supervised

    def feed(self, sent_at: float) -> None:
        """Tell that a heartbeat which was sent at `sent_at` was acknowledged."""
        self._send({"fed": sent_at})

    def stop(self, signal_number: int, grace: float) -> None:
        """Ask for an end: the signal now, SIGKILL to all that is left after `grace` seconds."""
        self._send({"stop": signal_number, "grace": grace})

    async def end(self, started: asyncio.Future[dict[str, Any]]) -> dict[str, Any] | None:
        """Wait until nothing of the job is left; return what the supervisor says of the end.

        Resolves `started` when the command runs. Returns None when the supervisor was killed.
        """
        assert self._process.stdout
        end = None
        async for line in self._process.stdout:
            message = json.loads(line)
            if "started" in message and not started.done():
                started.set_result(message["started"])
            end = message.get("end", end)
        await self._process.wait()
        self._close()
        return end

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        if not self._process.stdin.is_closing():
            with contextlib.suppress(OSError):
                self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def _close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
