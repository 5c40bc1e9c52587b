"""What a fleet does while something is killed: jobs are submitted, held and released."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from longshore.client.api import Longshore
from longshore.client.untold import refuse_untold
from longshore.models.errors import NotFoundError, RefusedError, UnavailableError
from longshore.models.job import JobSpec
from longshore.models.job_status import JobState
from longshore.models.pool import PoolSpec
from tests.faults.fleet import GPUS_PER_NODE, PATIENCE, Fleet
from tests.faults.journal import SAVES, SLEEP
from tests.support.waiting import eventually

T = TypeVar("T")


async def until_answered(
    call: Callable[[], Awaitable[T]], not_yet: tuple[type[Exception], ...] = (UnavailableError,)
) -> T:
    """Repeat a call while a server is away, as a patient user does; return its answer."""
    answers: list[T] = []

    async def answered() -> bool:
        try:
            answers.append(await call())
        except not_yet as error:
            raise AssertionError(f"no answer for {PATIENCE:g} s: {error}") from error
        return True

    async with asyncio.timeout(2 * PATIENCE):  # a call that never comes back is none
        await eventually(answered, timeout=PATIENCE, interval=0.05)
    return answers[0]


async def until_told(change: Callable[[], Awaitable[Iterable[str]]]) -> None:
    """Repeat a change, which returns notes, until it is answered and who it is for was told."""

    async def told() -> None:
        refuse_untold(await change())

    await until_answered(told)


async def until_taken(command: Callable[[], Awaitable[object]]) -> None:
    """Repeat a command while what it is for is away: a node whose agent is just starting."""
    await until_answered(command, (UnavailableError, NotFoundError, RefusedError))


async def tell(command: Callable[[], Awaitable[object]]) -> None:
    """Send a command once, to something that may have ended."""
    with contextlib.suppress(NotFoundError, RefusedError):
        await until_answered(command)


async def submit(fleet: Fleet, spec: JobSpec, *, held: bool = False) -> str:
    """Submit a job once, however often that takes; return its id."""
    key = uuid.uuid4().hex
    submission = await until_answered(lambda: fleet.longshore.submit(spec, key=key, held=held))
    return submission.job_id


async def submit_some(fleet: Fleet) -> list[str]:
    """Submit a short job, two that may share a GPU, and a longer one; return their ids."""
    half: dict[str, Any] = {"milli": 500, "vram_per_gpu": 20}
    specs = [fleet.journal.job("short"), *(fleet.journal.job(n, **half) for n in ("one", "two"))]
    return [await submit(fleet, spec) for spec in [*specs, fleet.journal.job("long", 1.0)]]


async def submit_some_longer(fleet: Fleet) -> list[str]:
    """Submit as `submit_some`, and a job that at first runs on until somebody has killed it."""
    jobs = await submit_some(fleet)
    return [*jobs, await submit(fleet, fleet.journal.job("until-killed", more_at_first=20))]


async def submit_with_outputs(fleet: Fleet) -> list[str]:
    """Submit as `submit_some`, and a job that gives a file back."""
    jobs = await submit_some(fleet)
    gives = fleet.journal.job("gives", work=f"echo kept > kept.txt{SLEEP}", outputs=["kept.txt"])
    return [*jobs, await submit(fleet, gives)]


async def submit_and_hold(fleet: Fleet) -> list[str]:
    """Submit as `submit_some`, and hold one job while it runs and one before; release both."""
    jobs = await submit_some(fleet)
    waiting = await submit(fleet, fleet.journal.job("held"), held=True)
    running = await submit(fleet, fleet.journal.job("stopped", 2.5))
    await eventually(lambda: fleet.journal.running(running), timeout=PATIENCE)
    await tell(lambda: fleet.longshore.hold(running))
    await eventually(lambda: _held_or_over(fleet.longshore, running), timeout=PATIENCE)
    for job_id in (running, waiting):
        await tell(lambda job_id=job_id: fleet.longshore.release(job_id))
    return [*jobs, waiting, running]


async def submit_and_resize(fleet: Fleet) -> list[str]:
    """Submit as `submit_some`, and a malleable job that is resized while it runs."""
    jobs = await submit_some(fleet)
    sizes: dict[str, Any] = {"malleable": {"min": 1, "max": 2}}
    running = await submit(fleet, fleet.journal.job("resized", 2.5, **sizes))
    await eventually(lambda: fleet.journal.running(running), timeout=PATIENCE)
    for gpus in (1, 2):
        await tell(lambda gpus=gpus: fleet.longshore.resize(running, gpus, from_start=True))
    return [*jobs, running]


async def submit_and_grow(fleet: Fleet) -> list[str]:
    """Fill most of both nodes while a malleable job starts on one GPU, so that it grows then."""
    soon = timedelta(seconds=1)
    await until_answered(
        lambda: fleet.longshore.set_pool(PoolSpec(interval=soon, grow_after=soon))
    )
    most: dict[str, Any] = {"gpus": GPUS_PER_NODE - 1}
    wide = [await submit(fleet, fleet.journal.job(name, 2.0, **most)) for name in ("one", "two")]
    await eventually(lambda: all(map(fleet.journal.running, wide)), timeout=PATIENCE)
    sizes: dict[str, Any] = {
        "malleable": {"min": 1, "max": GPUS_PER_NODE},
        "checkpoint": {"folder": "saved", "grace": "1s"},
    }
    grows = await submit(fleet, fleet.journal.job("grows", more_at_first=60, **sizes))
    await eventually(lambda: _is_past(fleet.longshore, grows, 1), timeout=PATIENCE)
    return [*wide, grows]


async def submit_and_resize_in_place(fleet: Fleet) -> list[str]:
    """Submit a gang on both nodes, and have one of them leave it while it runs."""
    whole = GPUS_PER_NODE
    sizes = {"min": whole, "max": 2 * whole, "step": whole, "in_place": True}
    more: dict[str, Any] = {
        "gang": {"unlabelled_nodes": True}, "malleable": sizes,
        "checkpoint": {"folder": "saved", "store": False, "save_file": True, "grace": 5},
    }  # fmt: skip
    job = await submit(fleet, fleet.journal.job("elastic", 4.0, work=SAVES, **more))
    await eventually(lambda: fleet.journal.running(job), timeout=PATIENCE)
    await tell(lambda: fleet.longshore.resize(job, whole))
    return [job]


async def submit_and_grow_in_place(fleet: Fleet) -> list[str]:
    """Submit a gang on one node, have a rank join on the other while it runs, and leave again."""
    whole = GPUS_PER_NODE
    sizes = {"min": whole, "max": 2 * whole, "step": whole, "desired": whole, "in_place": True}
    more: dict[str, Any] = {
        "gang": {"unlabelled_nodes": True}, "malleable": sizes,
        "checkpoint": {"folder": "saved", "store": False, "save_file": True, "grace": 5},
    }  # fmt: skip
    job = await submit(fleet, fleet.journal.job("elastic", 6.0, work=SAVES, **more))
    await eventually(lambda: fleet.journal.running(job), timeout=PATIENCE)
    await tell(lambda: fleet.longshore.resize(job, 2 * whole))
    await eventually(lambda: _has_grown(fleet, job), timeout=PATIENCE)
    await tell(lambda: fleet.longshore.resize(job, whole))
    return [job]


def _has_grown(fleet: Fleet, job_id: str) -> bool:
    """Return whether a second rank of a job has started, or the first has come to its end."""
    lines = fleet.journal.by_job()[job_id]
    return any(line.rank == 1 or line.word == "end" for line in lines)


async def submit_and_drain(fleet: Fleet) -> list[str]:
    """Submit as `submit_some`; have a running job queued again, and its node drained and back."""
    jobs = await submit_some(fleet)
    running = await submit(fleet, fleet.journal.job("moved", 2.5))
    await eventually(lambda: fleet.journal.running(running), timeout=PATIENCE)
    await tell(lambda: fleet.longshore.requeue(running))
    for node in fleet.nodes:
        await tell(lambda node=node: fleet.longshore.drain(node, "for a test", now=True))
        await tell(lambda node=node: fleet.longshore.uncordon(node))
    return [*jobs, running]


async def submit_and_swap(
    fleet: Fleet, lent_to: JobSpec | None = None, **fields: Any
) -> list[str]:
    """Submit a gang with a spare, and drain its node while it runs: the spare takes its place.
    Where it is `lent_to` a job, that runs there until then. Both run on at first, until then."""
    whole = GPUS_PER_NODE
    gang: dict[str, Any] = {
        "group_gpus": whole, "spares_per_group": whole, "unlabelled_nodes": True,
        "lend_spares": lent_to is not None,
    }  # fmt: skip
    spared = fleet.journal.job("spared", 2.5, more_at_first=60, gang=gang, gpus=whole, **fields)
    job = await submit(fleet, spared)
    await eventually(lambda: fleet.journal.running(job), timeout=PATIENCE)
    submitted = [job]
    if lent_to is not None:
        submitted.append(await submit(fleet, lent_to))
        await eventually(lambda: fleet.journal.running(submitted[-1]), timeout=PATIENCE)
    node = (await until_answered(lambda: fleet.longshore.status(job))).attempts[-1].node_id
    await until_taken(lambda: fleet.longshore.drain(node, "for a test", now=True))
    await eventually(lambda: _is_past(fleet.longshore, job, 1), timeout=PATIENCE)
    await until_taken(lambda: fleet.longshore.uncordon(node))
    return submitted


async def submit_and_preempt(fleet: Fleet) -> list[str]:
    """Fill both nodes, and submit a job of a higher class that one has to make room for."""
    whole: dict[str, Any] = {"gpus": GPUS_PER_NODE}
    low = [
        await submit(fleet, fleet.journal.job(name, 3.0, priority=2, **whole))
        for name in ("low-one", "low-two")
    ]
    await eventually(lambda: all(map(fleet.journal.running, low)), timeout=PATIENCE)
    high = await submit(fleet, fleet.journal.job("high", priority=8, **whole))
    return [*low, high]


async def _is_past(longshore: Longshore, job_id: str, attempt: int) -> bool:
    return (await until_answered(lambda: longshore.status(job_id))).attempt > attempt


async def _held_or_over(longshore: Longshore, job_id: str) -> bool:
    status = await until_answered(lambda: longshore.status(job_id))
    return status.state is JobState.HELD or status.state.ended
