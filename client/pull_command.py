"""`longshore pull`: the outputs of a job."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call
from longshore.client.job_commands import REF
from longshore.client.terminal import JSON, note, out, print_json, say
from longshore.models.text import count, listed
from longshore.models.units import format_bytes

if TYPE_CHECKING:
    from longshore.client.api import Longshore
    from longshore.client.pull import Pulled


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Jobs")(pull)


def pull(
    ref: REF,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="Folder to write to (default: one named by the job's id)."
        ),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Attempt to take (default: the last with outputs).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be fetched; fetch nothing.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Fetch the outputs of a job: the files that its `outputs` names.

    longshore pull train

    longshore pull train --to .

    Outputs exist after each attempt, also after a failed one. Files that are here already and do
    not differ are not sent again; files of the same name that differ are replaced.
    """
    quiet = as_json or dry_run or not out().is_terminal

    async def bring(api: "Longshore") -> "Pulled":
        return await api.pull(
            ref, to, attempt=attempt, dry_run=dry_run,
            told=(lambda path: None) if quiet else (lambda path: note(f"  {path}")),
        )  # fmt: skip

    found = call(bring)
    if as_json:
        return print_json(found)
    would = "would be brought" if dry_run else "brought"
    brought = f"{count(len(found.fetched), 'file')}, {format_bytes(found.fetched_bytes)} {would}"
    if not found.fetched:
        brought = "nothing differs" if found.files else "the job made no file that `outputs` names"
    say(
        f"{found.folder}: {count(found.files, 'file')}, {format_bytes(found.bytes)} of attempt "
        f"{found.attempt}: {brought}"
    )
    if found.left_out:
        why = (
            "links that lead out of the folder, files of a Git repository (.git), or of a name "
            "that is there already"
        )
        note(f"Left out, {why}: {listed(found.left_out, 5)}")
    return None
