"""Ending what outlived its agent: processes and containers that nobody supervises any more."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import psutil

from longshore.activities.node.launch import AGENT_MARK, removal
from longshore.activities.node.supervisor import REMOVALS
from longshore.activities.node.system import (
    is_same,
    is_there,
    processes,
    send,
    start_ticks,
    stat_fields,
)
from longshore.models.placement import PlacementKey

SUPERVISOR_PATIENCE = 3.0
"""Seconds in which an orphaned supervisor should have killed its job and written the end."""

STRAY_PATIENCE = 10.0
"""Seconds in which what came to a stopped fork server ends."""

_log = logging.getLogger(__name__)


async def end_orphans(
    agent_id: str,
    started: list[dict[str, Any]],
    runtime: str | None,
    but: Collection[PlacementKey] = (),
) -> None:
    """Kill everything that an earlier life of this agent started, `but` these attempts, and wait
    for its end.

    `started` are the supervisors' first words of the runs without a report. What remains is
    found by those process ids (with their start times, as ids are reused) and by the mark in
    the environment that every process of a job inherits.
    """
    await asyncio.to_thread(_end_supervisors, started)
    await asyncio.to_thread(_kill_until_gone, agent_id, None, started, but)
    if runtime:
        await _remove_containers(runtime, f"label=longshore.agent={agent_id}")


async def end_marked(agent_id: str, key: PlacementKey) -> None:
    """Kill what is left of one attempt whose supervisor has died, and wait for its end."""
    await asyncio.to_thread(_kill_until_gone, agent_id, key, [])


class Told:
    """Says in the log which processes are killed, of each of them once."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def killing(self, found: Collection[int]) -> None:
        new = set(found) - self._told
        if new:
            _log.warning("killing %d processes that outlived their supervisor", len(new))
        self._told |= new


class Unended:
    """What could not be ended: it is waited for once, and one job is told of it."""

    def __init__(self) -> None:
        self._since: dict[int, int | None] = {}
        """By process id, when each started."""
        self._untold: list[int] = []

    def __contains__(self, pid: int) -> bool:
        return pid in self._since and is_same(pid, self._since[pid])

    def give_up(self, found: list[int]) -> list[int]:
        """Remember what could not be ended, and return it: for a job, or for nobody."""
        if found:
            _log.warning("processes that could not be ended: %s", found)
        still = {pid: at for pid, at in self._since.items() if is_same(pid, at)}
        self._since = still | {pid: start_ticks(pid) for pid in found}
        return found

    def told_to_nobody(self, found: list[int]) -> None:
        """Keep for the next job what no job was told of."""
        self._untold += found

    def to_tell_of(self) -> list[int]:
        """Return what still runs of that; what has ended since is logged, as it was before."""
        untold, self._untold = self._untold, []
        left = [pid for pid in untold if pid in self and runs(pid)]
        if ended := sorted(set(untold) - set(left)):
            _log.info("processes that could not be ended at first have ended: %s", ended)
        return left


def end_strays(fork_server: int, stays: Callable[[int], bool]) -> None:
    """Kill the orphans that came to a stopped fork server, and wait for their end.

    Gives up after a while: of another user's process (sudo) there is no end.
    """
    until = time.monotonic() + STRAY_PATIENCE
    told = Told()
    while (found := strays(fork_server, stays)) and time.monotonic() < until:
        told.killing(found)
        # One whose first word was read a moment ago is no stray.
        kill(pid for pid in found if not stays(pid))
        time.sleep(0.01)  # the end of one may leave others, and takes a moment


def strays(fork_server: int, stays: Callable[[int], bool]) -> list[int]:
    """Return what lives of the children that are no supervisors, and all that descends from them.

    `stays` tells of the supervisors, and of what could not be ended before. A supervisor that has
    ended is one of them: its children may be on their way to the fork server.
    """
    children = _children()
    parents = [pid for pid in children.get(fork_server, []) if not (runs(pid) and stays(pid))]
    return [pid for pid in _with_descendants(parents, children) if runs(pid)]


def adopted_strays(stays: Callable[[int], bool]) -> list[int]:
    """Return what lives of the jobs' processes that came to this one, which is a subreaper.

    `stays` tells of the children in sessions of their own that belong to the agent, and of what
    could not be ended before. Its other children are in its session. No job can put a process
    there: a session is inherited or new.
    """
    children = _children()
    parents = [pid for pid in _adopted(children) if not (runs(pid) and stays(pid))]
    return [pid for pid in _with_descendants(parents, children) if runs(pid)]


def reap_adopted(is_fork_server: Callable[[int], bool]) -> None:
    """Collect what has ended of the processes that came to this one.

    Not those that it started: who started one waits for it by its number.
    """
    for pid in _adopted(_children()):
        if not runs(pid) and not is_fork_server(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def a_child_has_ended() -> bool:
    """Return whether a child of this process waits to be collected, by whomever."""
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def runs(pid: int) -> bool:
    """Return whether a process is there, and no zombie; one that cannot be read now counts."""
    fields = stat_fields(pid)
    return is_there(pid) if fields is None else fields[0] not in ("Z", "X")


def kill(pids: Iterable[int]) -> None:
    """Kill processes; those of other users stay."""
    pids = list(pids)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none starts another when one ends
        for pid in pids:
            send(pid, number)


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, parent, _ in processes():
        children.setdefault(parent, []).append(pid)
    return children


def _with_descendants(parents: list[int], children: Mapping[int, list[int]]) -> list[int]:
    found: list[int] = []
    while parents:
        pid = parents.pop()
        found.append(pid)
        parents += children.get(pid, [])
    return found


def _adopted(children: Mapping[int, list[int]]) -> list[int]:
    """Return the children of this process that are in another session."""
    own, found = os.getsid(0), list[int]()
    for pid in children.get(os.getpid(), []):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) != own:
                found.append(pid)
    return found


async def remove_container(runtime: str, name: str) -> None:
    """Kill and remove a container; one that is gone already is no error."""
    await _remove_containers(runtime, f"name=^{name}$")


def _end_supervisors(started: list[dict[str, Any]]) -> None:
    supervisors = [p for s in started if (p := _same(s["supervisor"], s["supervisor_ticks"]))]
    _, alive = psutil.wait_procs(supervisors, timeout=SUPERVISOR_PATIENCE)
    for process in alive:
        _log.warning("killing the supervisor %d of an earlier life", process.pid)
        _kill(process)
    psutil.wait_procs(alive)


def _kill_until_gone(
    agent_id: str,
    key: PlacementKey | None,
    started: list[dict[str, Any]],
    but: Collection[PlacementKey] = (),
) -> None:
    leaders = [p for s in started if (p := _same(s["pid"], s["ticks"]))]
    found = {q for p in leaders for q in [p, *_descendants(p)]}
    while found := {p for p in found if p.is_running()} | set(_marked(agent_id, key, but)):
        _log.warning("killing %d processes that outlived their agent", len(found))
        for process in found:
            _kill(process)
        psutil.wait_procs(list(found), timeout=1.0)
        time.sleep(0.01)  # what another parent has to reap is gone a moment later
        found = {p for p in found if _alive(p)}


def _marked(
    agent_id: str, key: PlacementKey | None, but: Collection[PlacementKey] = ()
) -> list[psutil.Process]:
    """Return the processes of this agent's jobs (of one attempt, with `key`), `but` those of some
    attempts."""
    stay = {(each.job_id, str(each.attempt)) for each in but}
    wanted = {AGENT_MARK: agent_id}
    if key:
        wanted |= {"LONGSHORE_JOB_ID": key.job_id, "LONGSHORE_ATTEMPT": str(key.attempt)}
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environ = process.environ()
            if not all(environ.get(k) == v for k, v in wanted.items()):
                continue
            its = (environ.get("LONGSHORE_JOB_ID", ""), environ.get("LONGSHORE_ATTEMPT", ""))
            if its not in stay and _alive(process):
                found.append(process)
    return found


def _same(pid: int, ticks: int | None) -> psutil.Process | None:
    """Return the process, unless its number now belongs to another."""
    if ticks is None or start_ticks(pid) != ticks:
        return None
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


async def _remove_containers(runtime: str, which: str) -> None:
    """Kill and remove the containers that a filter of the runtime finds.

    Again where the runtime was tidying up after one at the same moment, and neither came through.
    """
    for _ in range(REMOVALS):
        ids = await _output(runtime, "ps", "--all", "--quiet", "--filter", which)
        if not ids:
            return
        _log.warning("removing %d containers that outlived what ran them", len(ids))
        await _output(*removal(runtime, *ids))


async def _output(*command: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().split()
