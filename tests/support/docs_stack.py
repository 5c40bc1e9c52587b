"""One local stack on which the pages of the documents are run, each from a clean folder."""

import asyncio
import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml

from longshore.activities.buying.purchase_views import PurchaseViews
from longshore.activities.buying.switch import BuyingSwitch
from longshore.activities.database import Database
from longshore.client.api import Longshore
from longshore.models.document import read_document
from longshore.models.errors import EndedError
from longshore.models.job import JobSpec
from longshore.models.node import NodeState
from longshore.models.pool import PoolSpec
from longshore.models.settings import Settings
from longshore.workers.processes import wait_until
from longshore.workers.stack import SERVERS
from tests.support.home import PROGRAM, Home
from tests.support.local_stack import ROOT, free_ports, guarded
from tests.support.pages import Block, Command
from tests.support.shell import Background, Ran, Shell
from tests.support.shown_output import differences
from tests.support.waiting import eventually
from tests.support.warm_cli import PROGRAM as FORWARD

_ITS_OWN = ("sh", "bash", "python")
_LOOKS = tuple(
    f"{name} "
    for name in (
        "ask", "longshore checkpoints", "longshore job", "longshore jobs", "longshore logs",
        "longshore nodes", "longshore why", "temporal workflow query",
    )
)  # fmt: skip
"""Commands that change nothing: what they show may take a moment to come true."""
_LOOK_FOR = 60.0
_SHOWN = 40
"""Lines of a command's output that a failure shows."""


class DocsStack(Home):
    """`longshore up` in a state folder of its own, and the command line ready on a PATH."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = folder
        ports = free_ports(3)
        self.console, self.other_console, self.market = (f"127.0.0.1:{port}" for port in ports)
        self.programs = folder / "bin"
        self.clone = folder / "clone"
        self.env |= {
            "TZ": "UTC",  # that of the pages
            "LONGSHORE_CONSOLE_ADDRESS": self.console,
            "no_proxy": "127.0.0.1",
            "PATH": f"{self.programs}:{Path(PROGRAM).parent}:{self.env['PATH']}",
        }
        self.first_up = ""
        """What the first `longshore up` wrote."""

    @property
    def settings(self) -> Settings:
        return Settings(state_dir=self.folder)

    @contextmanager
    def running(self) -> Iterator["DocsStack"]:
        self._copy_the_checkout()
        self.programs.mkdir()
        warm = self._warm_program()
        try:
            with guarded(self.settings):
                try:
                    self._start()
                    yield self
                finally:
                    self._stop()
        finally:
            # A command that was never interrupted, for its test failed, runs on below it.
            for process in psutil.Process(warm.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            warm.kill()
            warm.wait(60)

    def page_folder(self, page: str) -> Path:
        """Return a folder for a page that holds what a clone holds, and the state folder."""
        folder = self.root / "pages" / re.sub(r"\W+", "-", page)
        folder.mkdir(parents=True)
        for entry in self.clone.iterdir():
            (folder / entry.name).symlink_to(entry)
        (folder / ".longshore").symlink_to(self.folder)
        return folder

    def _copy_the_checkout(self) -> None:
        """Copy what git knows, or would take."""
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.clone / name)

    def _warm_program(self) -> "subprocess.Popen[str]":
        socket = str(self.root / "warm")
        warm = subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm_cli", socket],
            cwd=ROOT, env=self.env, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        for name in ("longshore", "warm-python"):
            file = self.programs / name
            file.write_text(FORWARD.format(python=sys.executable, socket=socket))
            file.chmod(0o755)
        assert warm.stdout
        assert warm.stdout.readline() == "ready\n"
        return warm

    def _start(self) -> None:
        """Run `longshore up` as on a machine without GPUs, by the installed program."""
        done = subprocess.run(
            [PROGRAM, "up", "--nodes", "2"], env=self.env, cwd=self.clone, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        self.first_up = done.stdout
        temporal = self.programs / "temporal"
        temporal.write_text(
            f"#!/bin/sh\nTEMPORAL_ADDRESS=127.0.0.1:{self.env['LONGSHORE_TEMPORAL_PORT']} "
            f'exec {shlex.quote(str(Path(PROGRAM).parent / "temporal"))} "$@"\n'
        )
        temporal.chmod(0o755)

    def _stop(self) -> None:
        """Stop the servers in order; nobody needs what the others would still finish."""
        for entry in self.stack.processes.recorded():
            if entry.name not in SERVERS and (process := entry.find()):
                process.kill()
        self.stack.stop(lambda line: None)


class PageRun:
    """One page, run from its first block to its last; `mistakes` says what went wrong."""

    def __init__(self, docs: DocsStack, page: str) -> None:
        self.mistakes: list[str] = []
        self.commands = 0
        self._docs = docs
        self._folder = docs.page_folder(page)
        scratch = docs.root / "shells" / self._folder.name
        self._shell = Shell(self._folder, scratch, docs.env)

    def close(self) -> None:
        """Leave jobs, nodes, pools and markets as they were; then end what runs beside."""
        try:
            asyncio.run(_put_back(self._docs.settings))
        finally:
            self._shell.close()
            asyncio.run(_nodes_are_as_before(self._docs.settings))

    def run(self, block: Block) -> None:
        if "not run" in block.marks:
            return
        if name := block.marks.get("file"):
            (self._folder / name).write_text(block.text)
        elif name := block.marks.get("from"):
            self._compare_with_file(block, self._folder / name)
        elif block.language == "console":
            commands = block.commands
            for number, command in enumerate(commands):
                following = commands[number + 1].text if number + 1 < len(commands) else ""
                self._command(block, command, following.startswith("echo $?"))
        elif block.language in _ITS_OWN:
            file = self._folder / f"block-{block.line}"
            file.write_text(block.text)
            program = "warm-python" if block.language == "python" else "bash -eu"
            self._command(block, Command(block.line, f"{program} {file.name}"), False)
        elif block.language == "yaml":
            self._job_file(block)

    def _command(self, block: Block, command: Command, may_fail: bool) -> None:
        text = self._with_our_ports(command.text)
        self.commands += 1
        forever = "until Ctrl-C" in block.marks and command == block.commands[-1]
        try:
            ran = self._shell.run(f"{text} &" if forever else text)
        except (TimeoutError, EOFError) as error:
            self._wrong(block, command, str(error), "")
            raise AssertionError("\n\n".join(self.mistakes)) from error
        if forever:
            self._until_it_says(block, command, self._shell.background[-1])
        else:
            self._compare(block, command, text, ran, may_fail)
        if "market simulate" in text and not forever:
            assert wait_until(self._docs.settings.market_file.exists, 60.0)

    def _compare(
        self, block: Block, command: Command, text: str, ran: Ran, may_fail: bool
    ) -> None:
        """See that it did what the page shows; a command that only looks may look again."""
        shown = () if "output varies" in block.marks else command.shown
        parts = [["...", line, "..."] for line in shown] if "any order" in block.marks else [shown]
        exactly = "--state" in text or "--book" in text
        numbers = "numbers vary" not in block.marks

        def wrong() -> str:
            if ran.code and not may_fail:
                return f"it ended with {ran.code}"
            found = [
                line
                for part in parts
                if part
                for line in differences(part, ran.output, exactly=exactly, numbers=numbers)
            ]
            return "\n".join(found)

        ends = time.monotonic() + (_LOOK_FOR if text.startswith(_LOOKS) else 0)
        while (what := wrong()) and time.monotonic() < ends:
            ran = self._shell.run(text)
        if what:
            self._wrong(block, command, what, ran.output)

    def _until_it_says(self, block: Block, command: Command, started: Background) -> None:
        """Look on until it has written what the page shows, then press Ctrl-C."""
        shown = [*command.shown, "..."]

        def missing() -> list[str]:
            if "output varies" in block.marks or not command.shown:
                return [] if started.output else ["nothing was written"]
            return differences(shown, started.output)

        wait_until(lambda: not missing() or not started.process.is_running(), 60.0)
        found = missing()
        if not self._shell.interrupt(started):
            found.append("it goes on after Ctrl-C")
        if found:
            self._wrong(block, command, "\n".join(found), started.output)

    def _with_our_ports(self, text: str) -> str:
        """Return a command with the addresses of this stack in place of the usual ones."""
        simulate = "longshore market simulate"
        return (
            text.replace("127.0.0.1:8484", self._docs.console)
            .replace("127.0.0.1:8485", self._docs.other_console)
            .replace("127.0.0.1:8486", self._docs.market)
            .replace(simulate, f"{simulate} --port {self._docs.market.rpartition(':')[2]}")
        )

    def _compare_with_file(self, block: Block, file: Path) -> None:
        """See that each line stands in the file, in this order."""
        lines = iter(_without_remarks(file.read_text()))
        for line in _without_remarks(block.text):
            if line != "..." and line not in lines:
                self.mistakes.append(f"{block.where}: {file.name} does not have, there: {line}")
                return

    def _job_file(self, block: Block) -> None:
        """Read a job file, or some fields of one, as `longshore submit` does."""
        file = self._folder / f"block-{block.line}.yaml"
        try:
            fields = yaml.safe_load(block.text)
            usual = {"name": "name: block", "command": "command: 'true'"}
            missing = [line for name, line in usual.items() if name not in fields]
            file.write_text("\n".join([block.text.rstrip(), *missing]) + "\n")
            read_document(file, JobSpec)
        except Exception as error:
            self.mistakes.append(f"{block.where}: it is no job file\n{error}")

    def _wrong(self, block: Block, command: Command, what: str, output: str) -> None:
        lines = output.splitlines()
        said = "\n".join([*lines[:_SHOWN], "..."] if len(lines) > _SHOWN else lines)
        self.mistakes.append(
            f"{block.page}:{command.line}: $ {command.text}\n{what}\n--- its output\n{said}\n---"
        )


def _without_remarks(text: str) -> list[str]:
    lines = (" ".join(re.sub(r"\s+#.*", "", line).split()) for line in text.splitlines())
    return [line for line in lines if line]


async def _put_back(settings: Settings) -> None:
    """End the jobs, give bought time back, free nodes, and undo what pools and caps were told."""
    database = Database(settings.resolve_database_url())
    longshore = await Longshore.connect(settings)
    try:
        for pool in await longshore.pools():
            if pool.spec != (usual := PoolSpec(name=pool.spec.name)):
                await longshore.set_pool(usual)
        for job in await longshore.list(recent=True):
            if not job.state.ended:
                with contextlib.suppress(EndedError):  # by itself meanwhile
                    await longshore.cancel(job.id)
                await longshore.wait(job.id)
        await _give_back(database, longshore)
        for node in await longshore.nodes():
            if node.state is NodeState.DRAINING:
                await longshore.uncordon(node.id)
        switch = BuyingSwitch(database)
        found = await switch.state()
        if found.stopped:
            await switch.resume()
        for cap in found.caps:
            await switch.set_cap(cap.scope, cap.name, None)
    finally:
        await longshore.close()
        await database.close()


async def _nodes_are_as_before(settings: Settings) -> None:
    """Wait until the nodes that the page started have gone."""
    longshore = await Longshore.connect(settings)
    try:

        async def left() -> bool:
            return [node.id for node in await longshore.nodes()] == ["local-1", "local-2"]

        await eventually(left)
    finally:
        await longshore.close()


async def _give_back(database: Database, longshore: Longshore) -> None:
    """End bought blocks while their market runs, so that no other page sees one."""
    views = PurchaseViews(database)
    for block in await views.blocks():
        await longshore.terminate_block(block.id, "the page has ended")

    async def over() -> bool:
        return not (await views.blocks() or await views.purchases())

    await eventually(over)
