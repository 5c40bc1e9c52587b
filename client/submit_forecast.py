"""What a submit says, and asks, before it sends a job off."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from longshore.client.terminal import note, note_simulated, print_json, say, warn
from longshore.models.errors import RefusedError, SpecError
from longshore.models.forecast import ForecastKind
from longshore.models.job import JobSpec
from longshore.models.money import micro_of_text
from longshore.models.text import dollars
from longshore.models.visible import shown
from longshore.scheduling.arrays import too_many
from longshore.scheduling.deadline import deadlines_in_vain

if TYPE_CHECKING:
    from longshore.client.api import Longshore


def amount_of(text: str) -> int:
    """Return micro-dollars from ``20``, ``$20`` or ``19.99``. Raises BadParameter."""
    try:
        amount = micro_of_text(text)
    except ValueError as error:
        raise typer.BadParameter(f"--max-cost {shown(text)}: {error}") from None
    if amount < 0:
        raise typer.BadParameter(f"--max-cost {shown(text)}: must be at least 0")
    return amount


async def say_forecast(
    api: "Longshore",
    spec: JobSpec,
    most: int | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Say what would become of a job now; ask where something would be bought for it.

    Raises RefusedError where it may cost more than `most`, in micro-dollars, or nobody knows, and
    in a dry run where it would be refused; Abort where somebody says no.
    """
    if spec.array and (many := too_many(spec.array, api.settings.most_array_elements)):
        raise SpecError(f"job {spec.name}", (many,))
    if dry_run and (late := deadlines_in_vain(spec, datetime.now(UTC))):
        raise SpecError(f"job {spec.name}", late)
    found = await api.forecast(spec)
    if found is None:
        why = "it is an array" if spec.array else "the database does not answer"
        not_known = f"what it would cost is not known: {why}"
        if most is not None:
            raise RefusedError(f"{not_known}: nothing was submitted. Leave out --max-cost")
        note(not_known)
        return
    refused = found.kind is ForecastKind.REFUSED
    if dry_run and as_json:
        print_json(found)
    if dry_run and refused:
        raise RefusedError(f"it {found.says}")
    if dry_run and not as_json:
        note_simulated(found.simulated and not found.simulated_market)  # that is told beside
        say(f"It {found.told}.")
    elif not as_json:
        note(f"It {found.told}.")
    if most is not None and (found.most_micro_usd or 0) > most:
        raise RefusedError(
            f"it may cost {dollars(found.most_micro_usd)}, and --max-cost is {dollars(most)}: "
            "nothing was submitted"
        )
    if most is not None and found.not_known:
        raise RefusedError(
            f"what would be bought for it is not known: {found.not_known}: nothing was submitted. "
            "Leave out --max-cost"
        )
    if most is not None and found.buys_later:
        warn(
            f"--max-cost bounds nothing that pool {spec.pool} buys for it later: only the caps of "
            f"the pool do (longshore pool show {spec.pool})"
        )
    buys = found.kind is ForecastKind.BUYS
    if buys and not (dry_run or yes or as_json) and sys.stdin.isatty():
        typer.confirm("Submit it?", abort=True, default=True)
