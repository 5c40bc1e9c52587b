"""What was decided of a job, as it is stored: a newer version, or somebody by hand, wrote it."""

from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError

from longshore.models.preemption import Spared

M = TypeVar("M", bound=BaseModel)


def stored_decision(model: type[M], stored: object) -> M | None:
    """Return what was decided; None where nothing was, or it cannot be read. It is for people to
    read: a cycle decides anew."""
    try:
        return None if stored is None else model.model_validate(stored)
    except ValidationError:
        return None


def stored_reason(stored: object) -> str:
    """Return why it was decided so; nothing where that cannot be read."""
    said = cast(dict[str, object], stored).get("reason") if isinstance(stored, dict) else None
    return said if isinstance(said, str) else ""


def stored_spared(stored: object) -> list[Spared]:
    """Return the jobs that a plan left alone; without what cannot be read."""
    found = (stored_decision(Spared, each) for each in stored) if isinstance(stored, list) else ()
    return [each for each in found if each is not None]
