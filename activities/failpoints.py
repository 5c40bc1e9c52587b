"""Named places between two effects, where a test may stop a process. For tests only.

Where the environment names a folder (`LONGSHORE_FAILPOINTS`), a process that comes to a point
looks there for a file of the point's name. The first to come renames it to `POINT.reached` with
its process id in it, and waits until that file has gone: meanwhile the test kills whom it likes,
this process or another. Without the variable a point costs one comparison.
"""

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from longshore.activities.node.system import boot_clock

VARIABLE: Final = "LONGSHORE_FAILPOINTS"
LONGEST_STOP = 60.0
"""Seconds after which a stopped process goes on by itself."""

Point = Literal[
    "enqueue.before-commit",
    "enqueue.after-commit",
    "enqueue.after-poke",
    "set_hold.before-commit",
    "set_hold.after-commit",
    "release.before-commit",
    "release.after-commit",
    "resize.before-commit",
    "resize.after-commit",
    "leave_ranks.before-commit",
    "leave_ranks.after-commit",
    "join_ranks.before-commit",
    "join_ranks.after-commit",
    "finish.before-commit",
    "finish.after-commit",
    "swap.before-commit",
    "swap.after-commit",
    "cycle.before-commit",
    "cycle.after-commit",
    "cycle.after-first-signal",
    "preempt.before-commit",
    "preempt.after-commit",
    "grow.before-signal",
    "grow.after-signal",
    "register.before-commit",
    "register.after-commit",
    "end_node.before-commit",
    "end_node.after-commit",
    "see_off.before-commit",
    "see_off.after-commit",
    "run_process.after-claim",
    "run_process.after-spawn",
    "run_process.before-outputs",
    "run_process.before-report",
    "stop_process.before-signal",
    "stop_process.after-end",
    "resize_process.before-file",
    "watch_agent.before-heartbeat",
    "watch_agent.after-heartbeat",
]

HoldingPoint = Literal["store_holdings.before-commit", "store_holdings.after-commit"]
"""Steps of what a node says that it holds."""

DagPoint = Literal[
    "open_dag.before-commit",
    "open_dag.after-commit",
    "advance_dag.before-commit",
    "advance_dag.after-commit",
    "advance_dag.after-first-start",
]
"""Steps of a DAG."""

ServicePoint = Literal[
    "hear_engines.before-commit",
    "hear_engines.after-commit",
    "advance_service.before-commit",
    "advance_service.after-commit",
    "advance_service.after-first-start",
]
"""Steps of a service."""

ArrayPoint = Literal[
    "open_array.before-commit",
    "open_array.after-commit",
    "advance_array.before-commit",
    "advance_array.after-commit",
    "advance_array.after-first-start",
    "claim_elements.before-commit",
    "claim_elements.after-commit",
    "cancel_elements.before-commit",
]
"""Steps of an array."""

FundingPoint = Literal[
    "settle_charges.before-commit",
    "pay_charges.before-commit",
    "carry_charges.before-commit",
    "tell_paid.before-signal",
    "take_back.before-commit",
    "apply_budgets.before-commit",
    "apply_budgets.after-commit",
]
"""Steps of who pays: charges closed and opened for what runs, opened for what begins, carried on
by a swap; jobs told; a lent spare taken back; a budget edited, in the client."""

ArtifactPoint = Literal[
    "upload.before-snapshot",
    "upload.before-commit",
    "sweep_artifacts.marked",
    "sweep_artifacts.before-commit",
]
"""Steps of an upload, and of the removal of what nothing needs."""

CheckpointPoint = Literal[
    "publish.before-files",
    "publish.after-first-file",
    "publish.before-manifest",
    "publish.after-manifest",
    "publish.after-prune",
]
"""Steps of a checkpoint into the store."""

CodePoint = Literal[
    "bring_code.after-snapshot",
    "bring_code.before-object",
    "bring_code.after-object",
    "bring_code.after-first-file",
    "bring_code.before-index",
    "bring_code.after-index",
]
"""Steps of a snapshot from the artifact store to the folder of a job."""

DataPoint = Literal[
    "fetch_data.before-file",
    "fetch_data.after-file",
    "fetch_data.before-complete",
]
"""Steps of a data set from its source to a job."""

EnvironmentPoint = Literal[
    "build_environment.before-build",
    "build_environment.before-marker",
    "build_environment.after-marker",
]
"""Steps of an environment on its node."""

BuyingPoint = Literal[
    "open_purchase.before-commit",
    "open_purchase.after-commit",
    "intend_order.before-commit",
    "intend_order.after-commit",
    "place_order.before-call",
    "place_order.after-call",
    "place_order.after-commit",
    "look_at_order.after-call",
    "look_at_order.after-commit",
    "start_machine.before-call",
    "start_machine.after-call",
    "start_machine.after-commit",
    "await_agents.before-commit",
    "await_agents.after-commit",
    "settle_purchase.after-commit",
    "clear_block.after-commit",
    "stop_machines.after-call",
    "stop_machines.after-commit",
    "close_block.before-commit",
    "close_block.after-commit",
]
"""Steps of a purchase and of a block."""

BlockEndPoint = Literal[
    "intend_sale.before-commit",
    "intend_sale.after-commit",
    "place_sale.before-call",
    "place_sale.after-call",
    "place_sale.after-commit",
    "look_at_sale.after-call",
    "settle_sale.after-commit",
    "extend_machines.before-commit",
    "extend_machines.after-commit",
    "hand_over.before-commit",
    "hand_over.after-commit",
]
"""Steps of the sale of a block's time, and of the block after it."""

_folder = os.environ.get(VARIABLE)


def wall_clock() -> datetime:
    """Return the time by this machine's clock.

    Where a test of faults names a folder, the clock of this process has jumped by as many seconds
    as the file `clock.PID` there says.
    """
    now = datetime.now(UTC)
    if _folder is None:
        return now
    try:
        return now + timedelta(seconds=float((Path(_folder) / f"clock.{os.getpid()}").read_text()))
    except (FileNotFoundError, ValueError):
        return now


def blocking_failpoint(point: CheckpointPoint | CodePoint | DataPoint) -> None:
    """Stop here while a test wants it: for code that runs in a thread."""
    if _folder is None:
        return
    reached = _reach(Path(_folder), point)
    deadline = boot_clock() + LONGEST_STOP
    while reached and reached.exists() and boot_clock() < deadline:
        time.sleep(0.01)


async def failpoint(
    point: Point
    | BuyingPoint
    | BlockEndPoint
    | DagPoint
    | ArrayPoint
    | ArtifactPoint
    | EnvironmentPoint
    | FundingPoint
    | HoldingPoint
    | ServicePoint,
) -> None:
    """Stop here while a test wants it."""
    if _folder is None:
        return
    reached = _reach(Path(_folder), point)
    deadline = boot_clock() + LONGEST_STOP
    while reached and reached.exists() and boot_clock() < deadline:  # noqa: ASYNC110 (another process answers by a file: no event here)
        await asyncio.sleep(0.01)


def _reach(folder: Path, point: str) -> Path | None:
    """Take the file of an armed point and say who has come; None where nobody wants a stop."""
    taken, reached = folder / f".{point}.{os.getpid()}", folder / f"{point}.reached"
    try:
        (folder / point).rename(taken)  # succeeds for one process alone
    except FileNotFoundError:
        return None
    taken.write_text(str(os.getpid()))
    taken.rename(reached)
    return reached
