"""A shell that runs one command after the other, as a person types them."""

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_LOOP = """
status=0
while IFS= read -r file <&3; do
    (exit $status)
    . "$file" </dev/null
    status=$?
    echo "$status ${!:-0}" >&4
done
"""
_BACKGROUND = re.compile(r"^(?P<command>.*?)\s*(?<!&)&\s*(#.*)?$", re.DOTALL)
_PATIENCE = 300.0


@dataclass(frozen=True)
class Ran:
    code: int
    output: str
    """Of both streams, in the order in which it was written."""


@dataclass
class Background:
    """A command that was started with `&`."""

    process: psutil.Process
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


class Shell:
    """One bash. Variables, folder and `$?` go from one command to the next."""

    def __init__(self, folder: Path, scratch: Path, env: Mapping[str, str]) -> None:
        """`scratch` is a folder for its own files, away from what the commands see."""
        self._scratch = scratch
        scratch.mkdir(parents=True)
        self._log = scratch / "output"
        self._count = 0
        self.background: list[Background] = []
        asked, self._ask = os.pipe()
        self._answers, answered = os.pipe()
        with self._log.open("ab") as log:
            self._bash = subprocess.Popen(
                ["bash", "--norc", "-c", f"exec 3<&{asked} 4>&{answered}\n{_LOOP}"],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(asked, answered),
                start_new_session=True,
            )
        os.close(asked)
        os.close(answered)

    def run(self, command: str) -> Ran:
        """Run one command to its end; one with `&` behind it is started, with a log of its own."""
        started = _BACKGROUND.match(command)
        self._count += 1
        log = self._scratch / f"background-{self._count}"
        if started:
            log.touch()
            command = f"{{ {started['command']}\n}} >{log} 2>&1 &"
        file = self._scratch / f"command-{self._count}"
        file.write_text(command + "\n")
        begun = self._log.stat().st_size
        os.write(self._ask, f"{file}\n".encode())
        code, pid = self._answer(command)
        if started:
            self.background.append(Background(psutil.Process(pid), log))
        return Ran(code, self._log.read_bytes()[begun:].decode(errors="replace"))

    def _answer(self, command: str) -> tuple[int, int]:
        """Wait for the exit code, and the process id of the last command in the background."""
        ready, _, _ = select.select([self._answers], [], [], _PATIENCE)
        if not ready:
            raise TimeoutError(f"still running after {_PATIENCE:.0f} s: {command}")
        line = os.read(self._answers, 100).decode()
        if not line:
            raise EOFError(f"the shell has ended: {command}")
        code, pid = line.split()
        return int(code), int(pid)

    def interrupt(self, background: Background) -> bool:
        """Press Ctrl-C for a command in the background; return whether it has ended by that."""
        return self._end(background, signal.SIGINT)

    def close(self) -> None:
        """End what runs in the background, the last one first, and then the shell."""
        for each in reversed(self.background):
            self._end(each, signal.SIGTERM)
        os.close(self._ask)
        os.close(self._answers)
        try:
            self._bash.wait(5)
        except subprocess.TimeoutExpired:  # a command hangs
            os.killpg(self._bash.pid, signal.SIGKILL)
            self._bash.wait(60)

    def _end(self, background: Background, number: signal.Signals) -> bool:
        """Signal the command itself: the shell's child may be a shell that waits for it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = background.process
            for each in process.children() or [process]:
                each.send_signal(number)
            ends = time.monotonic() + 60
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() > ends:
                    return False
                with contextlib.suppress(psutil.TimeoutExpired):
                    process.wait(0.05)
        return True
