"""The control worker, the servers and a client are killed at each step of who pays: charges are
those of the placements, no more and no less, and an edit of budgets is whole or has not been.

Three cases run always, the others with `make faults`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

from longshore.activities.failpoints import FundingPoint, Point
from longshore.models.errors import NotFoundError, RefusedError
from longshore.models.funding import Budget, Envelope, Tenant
from longshore.workers.programs import program
from tests.faults import scenes
from tests.faults.cases import cases_of
from tests.faults.fleet import CONTROL, GPUS_PER_NODE, PATIENCE, POSTGRES, TEMPORAL, Fleet
from tests.faults.invariants import NOT_PAID_FOR, check
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(240)

CLIENT = "client"
ALWAYS = {
    ("settle_charges.before-commit", CONTROL),
    ("take_back.before-commit", CONTROL),
    ("apply_budgets.after-commit", CLIENT),
}
ENDS: tuple[Point, ...] = ("finish.before-commit", "finish.after-commit")
"""Where the charges of a job are closed with its placement."""
OWNER, RELATIVE, FAMILY = "owner", "relative", "family"
ROOM = GPUS_PER_NODE + 1


def _cases() -> list[object]:
    servers = CONTROL, TEMPORAL, POSTGRES
    cases: list[tuple[str, str]] = []
    for point in (*get_args(FundingPoint), *ENDS):
        edits = point.startswith("apply_budgets")
        cases += [(point, each) for each in ((CLIENT, POSTGRES) if edits else servers)]
    return cases_of(cases, ALWAYS)


@pytest.fixture
async def budgets(fleet: Fleet) -> AsyncIterator[None]:
    """The owner has an envelope that its relative may use; nobody has a budget at the end."""
    longshore = fleet.longshore
    await fleet.all_ready()
    await longshore.set_tenant(Tenant(name=FAMILY))
    for tenant in (OWNER, RELATIVE):
        await longshore.set_tenant(Tenant(name=tenant, parent=FAMILY))
    await longshore.apply_budgets([_owners(ROOM), Budget(tenant=RELATIVE)])
    yield
    await asyncio.to_thread(fleet.start_what_is_missing)
    for tenant in (OWNER, RELATIVE):
        with suppress(NotFoundError, RefusedError):
            await scenes.until_answered(lambda tenant=tenant: longshore.remove_budget(tenant))


@pytest.mark.usefixtures("budgets")
@pytest.mark.parametrize(("point", "victim"), _cases())
async def test_charges_are_those_of_the_placements(
    fleet: Fleet, tmp_path: Path, point: FundingPoint | Point, victim: str
) -> None:
    fleet.arm(point)
    edits = point.startswith("apply_budgets")
    scene = _SCENES.get(point, _recall)
    jobs = asyncio.create_task(scene(fleet))
    edit = asyncio.create_task(_edit(fleet, tmp_path)) if edits else None
    try:
        await fleet.reached(point)
        if edit is not None and victim == CLIENT:
            (await edit).kill()
        else:
            await asyncio.to_thread(fleet.kill, victim)
        fleet.let_go(point)
        await asyncio.to_thread(fleet.start_what_is_missing)
        async with asyncio.timeout(PATIENCE):
            submitted = await jobs
        if edit is not None:
            await (await edit).wait()
        await check(fleet, submitted)
        assert fleet.rows(NOT_PAID_FOR, OWNER) == []
        if edit is not None:
            await _is_whole(fleet, after=point.endswith("after-commit"))
    finally:
        fleet.let_go(point)
        jobs.cancel()
        await asyncio.to_thread(fleet.start_what_is_missing)


async def _recall(fleet: Fleet) -> list[str]:
    """Have a relative use the envelope of an owner, until that wants a part of it back."""
    two: dict[str, Any] = {"gpus": 2, "tenant": RELATIVE}
    relative = await scenes.submit(fleet, fleet.journal.job("relative", 3.0, **two))
    await eventually(lambda: fleet.journal.running(relative), timeout=PATIENCE)
    whole: dict[str, Any] = {"gpus": GPUS_PER_NODE, "tenant": OWNER}
    owner = await scenes.submit(fleet, fleet.journal.job("owner", 0.5, **whole))
    free = await scenes.submit(fleet, fleet.journal.job("free"))
    return [relative, owner, free]


async def _swap(fleet: Fleet) -> list[str]:
    """Have a spare take the place of a node, with what pays for it."""
    await fleet.longshore.apply_budgets([_owners(2 * GPUS_PER_NODE), Budget(tenant=RELATIVE)])
    return await scenes.submit_and_swap(fleet, tenant=OWNER)


async def _take_back(fleet: Fleet) -> list[str]:
    """Have a spare take the place of a node while a job runs on it for which nobody pays."""
    await fleet.longshore.apply_budgets([_owners(2 * GPUS_PER_NODE), Budget(tenant=RELATIVE)])
    small: dict[str, Any] = {"gpus": 2, "tenant": RELATIVE, "cpus": 0.02, "ram": 0.02}
    guest = fleet.journal.job("guest", 1.0, more_at_first=60, **small)
    return await scenes.submit_and_swap(fleet, guest, tenant=OWNER)


_SCENES = {"carry_charges.before-commit": _swap, "take_back.before-commit": _take_back}


async def _edit(fleet: Fleet, folder: Path) -> asyncio.subprocess.Process:
    """Cut one envelope and make another, in one file, by a program of its own."""
    file = folder / "budget.yaml"
    file.write_text(
        f"budgets:\n- tenant: {OWNER}\n  envelopes:\n"
        f"    main: {{gpus: {GPUS_PER_NODE}, end: never}}\n"
        f"- tenant: {RELATIVE}\n  envelopes:\n    small: {{gpus: 1, end: never}}\n"
    )
    return await asyncio.create_subprocess_exec(
        program("longshore"), "budget", "apply", str(file), env=fleet.stops_at_points(),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


async def _is_whole(fleet: Fleet, *, after: bool) -> None:
    rows = fleet.rows("SELECT tenant, milli FROM envelopes WHERE removed_at IS NULL ORDER BY 1")
    found = [(row["tenant"], row["milli"] // 1000) for row in rows]
    assert found == ([(OWNER, GPUS_PER_NODE), (RELATIVE, 1)] if after else [(OWNER, ROOM)])


def _owners(gpus: int) -> Budget:
    return Budget(tenant=OWNER, envelopes=(Envelope(name="main", gpus=gpus, end=None),))
