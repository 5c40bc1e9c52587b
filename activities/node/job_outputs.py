"""Stores what a job gives back, once its process has ended."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

from longshore.activities.artifacts.outputs import OutputStore
from longshore.activities.failpoints import failpoint, wall_clock
from longshore.activities.node.preparing import in_thread
from longshore.activities.storage import GivenUp
from longshore.models.checkpoint import Manifest
from longshore.models.errors import DamagedError, StoreError
from longshore.models.node import Inventory
from longshore.models.node_messages import RunProcessRequest
from longshore.models.output_pattern import OutputPatterns
from longshore.models.text import listed
from longshore.models.visible import shown


async def store_outputs(
    store: OutputStore,
    request: RunProcessRequest,
    inventory: Inventory,
    folder: Path,
    within: timedelta,
) -> str:
    """Store the files that `outputs` of a job names; return what its user has to know: that they
    are not stored, which of the names no file has, what is left out. Empty where all is well.

    `within` so long: the job's GPUs are held meanwhile.
    """
    placement, now = request.placement, wall_clock()
    draft = Manifest(
        job_id=placement.job_id, attempt=placement.attempt, rank=placement.rank,
        ranks=max(len(placement.ranks), placement.rank + 1), number=1, prefix="", files=(),
        bytes=0, saved_at=now, published_at=now, node_id=placement.node_id,
        simulated=inventory.simulated,
    )  # fmt: skip
    given_up, left_out = threading.Event(), dict[str, list[str]]()

    def leave_out(path: str, why: str) -> None:
        left_out.setdefault(why, []).append(path)

    await failpoint("run_process.before-outputs")

    def keep() -> OutputPatterns:
        patterns = OutputPatterns(request.spec.outputs)  # which takes its time, too
        store.keep(folder, patterns, draft, given_up, leave_out)
        return patterns

    keeping = in_thread(keep)
    try:
        patterns = await asyncio.wait_for(keeping, within.total_seconds())
    except TimeoutError:
        return f"its outputs are not stored: that took longer than {within}"
    except (StoreError, DamagedError, GivenUp, OSError, UnicodeError) as error:
        return f"its outputs are not stored: {error}"
    finally:
        given_up.set()
    said: list[str] = []
    if patterns.unused and not placement.rank:  # of a gang often rank 0 alone writes them
        named = listed([shown(each) for each in patterns.unused], 5)
        said.append(f"`outputs` names {named}, and the job's folder has no such file")
    for why, paths in sorted(left_out.items()):
        named = listed([shown(each) for each in sorted(paths)], 5)
        said.append(f"not stored: {named} ({why})")
    return "; ".join(said)
