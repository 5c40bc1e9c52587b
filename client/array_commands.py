"""Commands on arrays: the elements one by one, and those that are to run again."""

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.client.calls import call, known_job
from longshore.client.job_commands import REF
from longshore.client.terminal import JSON, LIMIT, note, now, print_json, say, show
from longshore.models.array_view import ElementView
from longshore.models.elements import ElementState
from longshore.models.text import count

if TYPE_CHECKING:
    from longshore.client.api import Longshore


def register(app: typer.Typer) -> None:
    for command in (elements, retry):
        app.command(rich_help_panel="Jobs")(command)


def elements(
    ref: REF,
    state: Annotated[
        list[ElementState] | None,
        typer.Option(help="Only in this state. Repeatable.", case_sensitive=False),
    ] = None,
    indices: Annotated[
        str | None, typer.Option("--elements", metavar="3-9,12", help="Only these elements.")
    ] = None,
    attempts: Annotated[
        bool, typer.Option("--attempts", help="Show all attempts of each, not only the last.")
    ] = False,
    limit: LIMIT = 50,
    as_json: JSON = False,
) -> None:
    """List the elements of an array by index: state, attempt, exit code, error."""

    async def ask(api: "Longshore") -> tuple[ElementView, ...]:
        await known_job(api, ref)
        return await api.elements(
            ref, states=frozenset(state or ()), indices=indices, all_attempts=attempts,
            limit=limit,
        )  # fmt: skip

    found = call(ask)
    if as_json:
        return print_json(found)
    if not found:
        return note(f"No such elements. `longshore elements {ref}` lists all.")
    from longshore.client.array_view import elements_table

    show(elements_table(found, now()))
    if len(found) == limit:
        note(f"\nThese are the first {limit}; --limit shows more.")
    return None


def retry(
    ref: REF,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only failed elements, not cancelled ones.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Rerun the failed and cancelled elements of an array; the others stay as they are.

    The array must have ended. Their retries count anew, and all attempts stay on record.
    """
    array_id, again = call(
        lambda api: (
            api.retry_array(ref, (ElementState.FAILED,)) if failed else api.retry_array(ref)
        )
    )
    if as_json:
        return print_json({"array_id": array_id, "elements": again})
    say(f"{array_id} runs {count(again, 'element')} again" if again else f"{array_id} goes on")
    return None
