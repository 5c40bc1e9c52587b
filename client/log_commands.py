"""`longshore logs`: what a job wrote."""

import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call, known_job
from longshore.client.job_commands import REF
from longshore.client.past_times import past_time
from longshore.client.terminal import note
from longshore.models.errors import LongshoreError, RefusedError

if TYPE_CHECKING:
    from longshore.activities.log_order import Chunk
    from longshore.activities.logstore import Stream
    from longshore.client.api import Longshore


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Jobs")(logs)


def logs(
    ref: REF,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the attempt has ended.")
    ] = False,
    last: Annotated[
        int | None,
        typer.Option("--tail", "-n", min=0, metavar="LINES", help="Only the last lines."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only lines of the last 10m, or from 14:05 on."),
    ] = None,
    stdout: Annotated[bool, typer.Option("--stdout", help="Only its stdout.")] = False,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="Only its stderr, on stdout for a pipe.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Attempt to show (default: the latest).")
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="Rank to show of a job on several nodes (default: 0)."),
    ] = None,
    element: Annotated[
        int | None, typer.Option(min=0, metavar="INDEX", help="Element to show of an array.")
    ] = None,
) -> None:
    """Print what a job wrote, byte for byte: its stdout to stdout, its stderr to stderr.

    Both come in the order in which the job wrote them; lines of one tenth of a second may have
    changed places.

    longshore logs -f train

    longshore logs -n 50 --since 10m train

    longshore logs --stdout train | grep loss
    """
    if element is not None and rank is not None:
        raise typer.BadParameter("an element runs on one node: leave out --rank")
    if element is not None and since is not None:
        raise typer.BadParameter("--since is of a whole job: leave it out with --element")
    if stdout and stderr:
        stdout = stderr = False
    only = "stdout" if stdout else "stderr" if stderr else None
    from_time = None if since is None else past_time("--since", since)
    missing = ""

    async def copy(api: "Longshore") -> int:
        nonlocal missing
        if element is None:
            await _refuse_array(api, ref)
            written = await copy_output(
                api.ordered_logs(
                    ref, attempt=attempt, rank=rank, follow=follow, last=last, since=from_time,
                    only=only,
                ),
                only,
            )  # fmt: skip
            missing = await api.missing_logs(ref, attempt)
        else:
            output = api.element_logs(
                ref, element, attempt=attempt, follow=follow, last=last, only=only
            )
            written = await copy_output(output, only)
        if not written:
            await known_job(api, ref)  # a job that does not exist is another answer than no logs
        return written

    written = call(copy)
    if missing:
        note(f"This is not all that it wrote: the log store took no more ({missing}).")
    if not written and last != 0:
        of = f" of attempt {attempt}" if attempt else ""
        stream = f" of its {only}" if only else ""
        late = f" since {since}" if since else ""
        note(
            f"Nothing is stored{stream}{of}{late}. `longshore job {ref}` says whether it has run."
        )


async def copy_output(
    output: AsyncIterator["Chunk"],
    only: "Stream | None" = None,
    *,
    wrote: Callable[[], None] = lambda: None,
) -> int:
    """Copy what comes to our streams, one that is wanted alone to stdout; return the bytes."""
    written = 0
    async for chunk in output:
        wrote()
        target = sys.stderr if chunk.stream == "stderr" and only is None else sys.stdout
        target.buffer.write(chunk.data)
        target.buffer.flush()
        written += len(chunk.data)
    return written


async def _refuse_array(api: "Longshore", ref: str) -> None:
    """Raise RefusedError for an array, which writes nothing itself."""
    try:
        found = await api.job(ref)
        spec = await api.spec(found.id)
    except LongshoreError:
        return  # what is not on record yet is told of below
    if spec.array is not None:
        raise RefusedError(
            f"{found.id} is an array: --element INDEX says whose output (`longshore elements "
            f"{found.id}` lists them)"
        )
