"""The command `longshore checkpoints`: what the checkpoint store has of a job."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from longshore.client.calls import call
from longshore.client.job_commands import REF
from longshore.client.terminal import JSON, a_table, note, now, print_json, show
from longshore.client.words import SIMULATED
from longshore.models.checkpoint import CheckpointInfo
from longshore.models.text import ago
from longshore.models.units import format_bytes

if TYPE_CHECKING:  # it loads the database, and every command loads this module
    from longshore.activities.checkpoints.rows import StoredCheckpoints
    from longshore.client.api import Longshore


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Jobs")(checkpoints)


def checkpoints(ref: REF, as_json: JSON = False) -> None:
    """List the stored checkpoints of a job, newest first."""
    found: StoredCheckpoints
    found, trouble = call(lambda api: _look(api, ref))
    if as_json:
        return print_json(found)
    if trouble:
        note(f"The process of {found.job_id} says: {trouble}")
    for damaged in found.damaged:
        note(f"warning: {damaged}")
    if not found.checkpoints:
        return note(
            f"Nothing of {found.job_id} is stored. `longshore job {found.job_id}` shows what its "
            "process says; docs/checkpoints.md says what a job has to do."
        )
    show(checkpoints_table(found.checkpoints, now()))
    return None


async def _look(api: "Longshore", ref: str) -> "tuple[StoredCheckpoints, str]":
    """Return what is stored of a job, and what its process says is wrong with that."""
    from longshore.client.holds import told_of

    found = await api.checkpoints(ref)
    said = await told_of(api.temporal, found.job_id)
    return found, said.checkpoint_error if said else ""


def checkpoints_table(checkpoints: Sequence[CheckpointInfo], now: datetime) -> Table:
    table = a_table(
        ("attempt", "#", "step", "size", "saved", "took", "whole"),
        right=("attempt", "#", "step", "size", "took"),
        fold=("whole",),
    )
    for each in checkpoints:
        table.add_row(
            str(each.attempt),
            str(each.number),
            "" if each.step is None else str(each.step),
            format_bytes(each.bytes),
            ago(each.saved_at, now),
            "" if each.write_seconds is None else f"{each.write_seconds:.1f}s",
            _whole(each),
        )
    return table


def _whole(each: CheckpointInfo) -> str:
    mark = f" ({SIMULATED})" if each.simulated else ""
    if each.whole:
        return f"yes{mark}"
    return f"no: not all {each.ranks} ranks have stored it{mark}"
