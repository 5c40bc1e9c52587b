"""In which fields something is another than before, in words: ``context 2048 to 4096``."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from longshore.models.text import format_duration
from longshore.models.units import format_gb, plain
from longshore.models.visible import brief

_SIZES = frozenset({"memory", "overhead", "ram"})
"""Fields in GB."""


def differences(before: BaseModel, after: BaseModel, but: Collection[str] = ()) -> list[str]:
    """Return each field that is another, with what it was and what it is to be, without those in
    `but`. Of a field with fields of its own only those are named that are others."""
    names = [name for name in type(after).model_fields if name not in but]
    values = [(name, *_apart(getattr(before, name), getattr(after, name))) for name in names]
    return [
        f"{name} {brief(_said(name, was))} to {brief(_said(name, now))}"
        for name, was, now in values
        if was != now
    ]


def _apart(was: Any, now: Any) -> tuple[Any, Any]:
    """Return both, of two of one model only the fields that are others."""
    if not isinstance(was, BaseModel) or type(was) is not type(now):
        return was, now
    others = [name for name in type(was).model_fields if getattr(was, name) != getattr(now, name)]
    return {each: getattr(was, each) for each in others}, {
        each: getattr(now, each) for each in others
    }


def _said(name: str, value: Any) -> str:
    if isinstance(value, BaseModel):
        # What was stored has all fields set: those that say nothing are left out.
        value = {
            each: getattr(value, each)
            for each, field in type(value).model_fields.items()
            if getattr(value, each) != field.get_default(call_default_factory=True)
        } or "defaults"
    if value is None or value in ((), {}, ""):
        return "none"
    if isinstance(value, float):
        return format_gb(value) if name in _SIZES else plain(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{key}={_said(key, each)}" for key, each in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return " ".join(map(str, value)) if type(value) is tuple else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
