"""What `longshore pool set` changes of a pool's score, from its options."""

import json
from pathlib import Path

import typer

from longshore.models.document import Override, read_document
from longshore.models.packing import QueueOrder
from longshore.models.score import TERMS, ScoreProfile, TermWeights
from longshore.models.visible import brief

NO_SCORE = "none"


def score_changes(
    profile: str | None, weights: str | None, order: QueueOrder | None
) -> list[Override]:
    """Return the changes that give a pool a profile, or weights of its own; `none` takes the score
    away. With a profile comes the order that it is for, unless one is named."""
    if profile is not None and weights is not None:
        raise typer.BadParameter("--profile and --term-weights: give one of the two")
    if weights is not None:
        said = f"--term-weights {brief(weights)}"
        own = json.dumps(_weights(weights))
        return [
            Override("packing.score.weights", own, said),
            Override("packing.score.profile", "null", said),
        ]
    if profile is None:
        return []
    said = f"--profile {brief(profile)}"
    if profile == NO_SCORE:
        return [Override("packing.score", "null", said)]
    changes = [
        Override("packing.score.profile", json.dumps(profile), said),
        Override("packing.score.weights", "null", said),
    ]
    if order is None and profile in [each.value for each in ScoreProfile]:
        changes.append(Override("packing.order", "null", said))
    return changes


def _weights(text: str) -> dict[str, object]:
    """Return weights that are written as `waiting=0.5,data=0.5`, or in a file."""
    if "=" not in text:
        return read_document(Path(text), TermWeights).model_dump()
    found: dict[str, object] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        if not (name and equals):
            raise typer.BadParameter(
                f"--term-weights {brief(part.strip())}: give NAME=NUMBER, as in waiting=0.5; "
                f"names are {', '.join(TERMS)}"
            )
        if name in found:
            raise typer.BadParameter(f"--term-weights {brief(name)}: is given twice")
        try:
            found[name] = float(number)
        except ValueError:
            raise typer.BadParameter(
                f"--term-weights {brief(part.strip())}: give a number, as in {brief(name)}=0.5"
            ) from None
    return found
