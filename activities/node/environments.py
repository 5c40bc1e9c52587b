"""Has the environment of a job be there before its process starts: built once, however many wait.

A build belongs to the agent and not to the job that came first. It ends early only when no job
waits for it any more.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

from uv import find_uv_bin

from longshore.activities.failpoints import failpoint
from longshore.activities.node.artifact_cache import ArtifactCache
from longshore.activities.node.code_folder import WORK, MissingObjectError, unpack
from longshore.activities.node.environment_recipe import Recipe, code_of, recipe_of
from longshore.activities.node.environment_store import (
    EnvironmentStore,
    HeldEnvironment,
    source_of,
)
from longshore.activities.node.file_locks import Held, try_lock
from longshore.activities.node.full_disk import is_full_disk
from longshore.activities.node.job_path import with_environment
from longshore.activities.node.launch import AGENT_MARK, clean_env
from longshore.activities.node.preparing import NotReadyError, in_thread, unless_unwanted
from longshore.activities.node.removal import remove_what_can_be
from longshore.activities.node.system import boot_clock, die_with_parent
from longshore.activities.storage import GivenUp
from longshore.models.errors import DamagedError, StoreError
from longshore.models.job import JobSpec
from longshore.models.retry import FailureClass

LAST_LINES = 12
"""Lines of a failed build that are told."""
_POLL_EVERY = 0.1
_UV = "uv"
"""Name of uv's own cache, beside a lock that builds share."""
_CONDA_CACHE = "conda"
"""Name of the packages of conda, under the same lock."""
_SAYS_WHY = re.compile(r"\s*(?:error|cause|caused by)\b|\s*[×╰├]", re.IGNORECASE)
"""Lines of uv and pip that say why. All that a build wrote is in the stderr of the job."""
_LONGEST_WHY = 600
_LONGEST_LINE = 300
_CONDA = (sys.executable, "-I", "-m", "longshore.activities.node.conda_install")
_PROGRAMS = {"sh": "its script", sys.executable: "conda"}
_PIP_SECTION = ".longshore-pip-section.txt"
_TEMPORARY = "tmp"
"""Name of the folder for temporary files of a build, beside its code."""
Say = Callable[[str], None]
Log = Callable[[bytes], None]

_log = logging.getLogger(__name__)


class BuildFailedError(Exception):
    """A build ended without an environment; the text ends with its last lines."""


class Build:
    """A build under way, and who waits for it."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.waiting = 0
        self.output: Path | None = None
        """What it has written so far, once it has begun."""


class Environments:
    """The environments of one agent."""

    def __init__(
        self,
        folder: Path,
        artifacts: ArtifactCache,
        agent_id: str,
        limit: timedelta = timedelta(minutes=30),
    ) -> None:
        """`folder` is that of the caches; a build may take `limit`."""
        self.store = EnvironmentStore(folder / "environments")
        self._uv_cache = folder / _UV
        self._conda_cache = folder / _CONDA_CACHE
        self._artifacts = artifacts
        self._agent_id = agent_id
        self._limit = limit
        self._builds: dict[str, Build] = {}

    async def take(
        self,
        spec: JobSpec,
        job_folder: Path,
        unwanted: threading.Event,
        say: Say,
        log: Log,
    ) -> HeldEnvironment | None:
        """Return the environment of a job, built where it is not here; None of a job without one.

        `say` hears what is being done, `log` what a build writes. Raises NotReadyError where it
        cannot be built, GivenUp as soon as the job is unwanted, OSError where the disk refuses.
        """
        asked = spec.environment
        if asked is None:
            return None
        code = job_folder / WORK if spec.code else None
        path = clean_env(os.environ).get("PATH", os.defpath)
        named = code_of(spec.tenant, spec.code and spec.code.snapshot)
        read = partial(recipe_of, asked, code, path, named)
        recipe = await unless_unwanted(unwanted, read, _nothing)
        while True:
            take = partial(self.store.take, recipe.identity)
            if held := await unless_unwanted(unwanted, take, _release):
                return held
            if why := self.store.failure(recipe.identity):
                raise NotReadyError(FailureClass.START, why)
            say(f"building its environment: {recipe.title}")
            await self._wait(spec, recipe, unwanted, log)

    async def end(self) -> None:
        """End all builds."""
        for build in list(self._builds.values()):
            await _ended(build.task)

    # --- waiting ------------------------------------------------------------------------

    async def _wait(
        self, spec: JobSpec, recipe: Recipe, unwanted: threading.Event, log: Log
    ) -> None:
        build = self._builds.get(recipe.identity)
        if build is None:
            build = Build(asyncio.create_task(self._build(recipe, spec)))
            self._builds[recipe.identity] = build
            mine = build
            build.task.add_done_callback(lambda _: self._forget(recipe.identity, mine))
        build.waiting += 1
        told = 0
        try:
            while not build.task.done():
                await asyncio.wait({build.task}, timeout=_POLL_EVERY)
                told = _pass_on(build.output, told, log)
                if unwanted.is_set():
                    raise GivenUp
        finally:
            build.waiting -= 1
            if not build.waiting and not build.task.done():
                self._forget(recipe.identity, build)
                await _ended(build.task)
        try:
            build.task.result()
        except asyncio.CancelledError:
            return  # it was ended for another job: the next look begins a new one
        except BuildFailedError as error:
            raise NotReadyError(FailureClass.START, str(error)) from None

    def _forget(self, identity: str, build: Build) -> None:
        """Forget a build, unless another one has begun since."""
        if self._builds.get(identity) is build:
            del self._builds[identity]

    # --- building -----------------------------------------------------------------------

    async def _build(self, recipe: Recipe, spec: JobSpec) -> None:
        identity = recipe.identity
        # Another agent may be building it.
        with await _until(partial(self.store.try_building, identity)):
            if held := await in_thread(partial(self.store.take, identity)):
                held.release()
                return
            if self.store.failure(identity):
                return
            folder, building = self.store.begin(identity)
            lock = self._uv_cache.with_name(f"{_UV}.lock")
            with building, await _until(partial(try_lock, lock, shared=True)):
                try:
                    await self._build_in(folder, recipe, spec)
                except BuildFailedError as error:
                    self.store.failed(identity, str(error))
                    raise
                except (StoreError, DamagedError) as error:
                    why = f"its environment cannot be built: {error}"
                    raise NotReadyError(FailureClass.NODE, why) from None
                finally:
                    await asyncio.shield(in_thread(partial(self.store.leave, identity, folder)))
        await in_thread(self.store.tidy)

    async def _build_in(self, folder: Path, recipe: Recipe, spec: JobSpec) -> None:
        began = boot_clock()
        source = source_of(folder)
        unwanted = threading.Event()
        laying = asyncio.ensure_future(in_thread(partial(self._lay_out, source, spec, unwanted)))
        try:
            await asyncio.shield(laying)
        except asyncio.CancelledError:
            unwanted.set()
            await asyncio.wait({laying})  # else it goes on in a folder that is removed meanwhile
            raise
        output = folder.with_name(f"{folder.name}.log")
        with output.open("wb") as log:
            if build := self._builds.get(recipe.identity):
                build.output = output
            log.write(f"longshore: building {recipe.title}\n".encode())
            log.flush()
            await failpoint("build_environment.before-build")
            try:
                async with asyncio.timeout(self._limit.total_seconds()):
                    for words, env in self._commands(recipe, folder, source):
                        await self._run(words, env, source / WORK, log, recipe, output)
            except TimeoutError:
                raise _failed(recipe, f"took longer than {self._limit}", output) from None
            seconds = boot_clock() - began
            log.write(f"longshore: built in {seconds:.1f} s\n".encode())
        await failpoint("build_environment.before-marker")
        done = partial(self.store.succeeded, recipe.identity, folder, seconds, recipe.digest)
        await in_thread(done)
        await failpoint("build_environment.after-marker")

    def _lay_out(self, source: Path, spec: JobSpec, unwanted: threading.Event) -> None:
        """Have the code of the job in a folder of its own: a build may write there."""
        (source / WORK).mkdir(parents=True, exist_ok=True)
        (source / _TEMPORARY).mkdir(exist_ok=True)
        code = spec.code
        if code is not None and code.snapshot is not None:
            tenant = spec.tenant
            held = self._artifacts.hold(tenant, code.snapshot, unwanted)
            try:
                path_of = partial(self._artifacts.path_of, tenant)
                unpack(held.snapshot, path_of, source, unwanted)
            except MissingObjectError as error:
                self._artifacts.drop(tenant, error.name)
                raise DamagedError(f"its code left the cache: {error}") from None
            finally:
                held.release()

    def _commands(
        self, recipe: Recipe, folder: Path, source: Path
    ) -> list[tuple[list[str], dict[str, str]]]:
        """Return what builds an environment, in order, with the variables of each."""
        asked, uv = recipe.asked, find_uv_bin()
        base = {
            **clean_env(os.environ), **recipe.variables, AGENT_MARK: self._agent_id,
            "UV_CACHE_DIR": str(self._uv_cache), "UV_LINK_MODE": "copy", "UV_NO_PROGRESS": "1",
            "UV_COMPILE_BYTECODE": "1", "UV_PYTHON_DOWNLOADS": "never",
            "UV_PROJECT_ENVIRONMENT": str(folder), "TMPDIR": str(source / _TEMPORARY),
        }  # fmt: skip
        inside = with_environment(base, folder, conda=recipe.conda is not None)
        seed = ["--seed"] if asked.script else []
        no_index = ["--no-index"] if recipe.has_no_index else []
        # No uv.toml of a job's code says where packages come from that others get too.
        how = ["--no-config", *no_index]
        commands: list[tuple[list[str], dict[str, str]]] = []
        this_python: list[str] = []
        if recipe.python is not None:
            this_python = ["--python", recipe.python.path]
            venv = [uv, "venv", *how, "--quiet", "--no-project", *seed, *this_python]
            commands.append(([*venv, str(folder)], base))
        if asked.conda is not None and recipe.conda is not None:
            commands.append(([*_CONDA, asked.conda, str(folder), str(self._conda_cache)], base))
            if recipe.conda.pip:
                # Beside the environment.yml: what it includes is seen from there.
                lines = (source / WORK / asked.conda).with_name(_PIP_SECTION)
                lines.write_text("".join(f"{each}\n" for each in recipe.conda.pip), "utf-8")
                python = ["--python", str(folder / "bin" / "python")]
                install = [uv, "pip", "install", *how, *python, "-r", str(lines)]
                commands.append((install, inside))
        if asked.lock is not None:
            project = str((source / WORK / asked.lock).parent)
            sync = [
                "sync",
                "--frozen",
                "--no-dev",
                "--no-install-workspace",
                "--no-install-local",
                "--inexact",
                *no_index,
            ]
            commands.append(([uv, *sync, *this_python, "--project", project], inside))
        if asked.requirements is not None:
            given = (
                ["-r", asked.requirements]
                if isinstance(asked.requirements, str)
                else ["--", *asked.requirements]
            )
            python = ["--python", str(folder / "bin" / "python")]
            commands.append(([uv, "pip", "install", *how, *python, *given], inside))
        if asked.script is not None:
            commands.append((["sh", "-e", asked.script], inside))
        return commands

    async def _run(
        self, words: Sequence[str], env: Mapping[str, str], cwd: Path, log: BinaryIO,
        recipe: Recipe, output: Path,
    ) -> None:  # fmt: skip
        # In the session of the agent, whose other children it takes for what jobs left.
        process = await asyncio.create_subprocess_exec(
            *words, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=_in_a_group,
        )  # fmt: skip
        try:
            status = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it left behind
            if process.returncode is None:
                await process.wait()
        if status:
            what = _PROGRAMS.get(words[0], "uv")
            raise _failed(recipe, f"{what} ended with exit code {status}", output)


def remove_build_caches(folder: Path) -> None:
    """Remove what uv and conda keep below the folder of the caches, where no build uses it."""
    caches = [folder / name for name in (_UV, _CONDA_CACHE)]
    if not any(cache.exists() for cache in caches):
        return
    if held := try_lock(folder / f"{_UV}.lock"):
        with held:
            for cache in caches:
                remove_what_can_be(cache)


def _failed(recipe: Recipe, why: str, output: Path) -> Exception:
    """Return the error of a build that failed: the node's where its disk is full."""
    lines = output.read_text(errors="replace").splitlines()
    last = [line[:_LONGEST_LINE] for line in lines if line.strip()][-LAST_LINES:]
    if is_full_disk(last):
        return NotReadyError(
            FailureClass.NODE, "its environment cannot be built: the disk of the node is full"
        )
    told = [line.strip() for line in last if _SAYS_WHY.match(line)] or last[-1:]
    said = "; ".join(told)[:_LONGEST_WHY]
    return BuildFailedError(f"its environment cannot be built ({recipe.title}): {why}: {said}")


def _pass_on(output: Path | None, told: int, log: Log) -> int:
    """Hand on what a build has written since; return how much that is by now."""
    with contextlib.suppress(OSError):
        if output is not None:
            with output.open("rb") as file:
                file.seek(told)
                if data := file.read():
                    log(data)
                    return told + len(data)
    return told


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def _until(try_it: Callable[[], Held | None]) -> Held:
    while (held := try_it()) is None:  # noqa: ASYNC110 (another process lets go of it)
        await asyncio.sleep(_POLL_EVERY)
    return held


def _in_a_group() -> None:
    os.setpgid(0, 0)
    die_with_parent()


def _release(held: HeldEnvironment | None) -> None:
    if held is not None:
        held.release()


def _nothing(_: object) -> None:
    return None
