"""Where each setting comes from, and what is wrong with it, in words."""

import difflib
import os
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from longshore.models.problems import describe
from longshore.models.settings_file import FILE_VARIABLE, SettingsFile, settings_file

PREFIX = "LONGSHORE_"
DEFAULT = "default"
_NOT_SETTINGS = {FILE_VARIABLE, "LONGSHORE_DEBUG"}


class FileSource(PydanticBaseSettingsSource):
    """What `longshore.toml` says, for pydantic."""

    def __init__(self, settings: type[BaseSettings]) -> None:
        super().__init__(settings)
        self._file = settings_file(settings.model_fields)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._file.values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(self._file.values)


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def origins(settings: BaseSettings) -> dict[str, str]:
    """Return where each setting comes from: a variable, ``FILE:LINE``, or ``default``."""
    fields = type(settings).model_fields
    file = settings_file(fields)
    return {name: _origin(name, file) or DEFAULT for name in fields}


def unknown_variables(names: Mapping[str, object]) -> tuple[str, ...]:
    """Return a remark for each variable of the environment that looks like a misspelt setting.

    Others may begin alike: jobs get some of their own.
    """
    known = {variable(name) for name in names} | _NOT_SETTINGS
    remarks: list[str] = []
    for given in sorted(os.environ):
        close = difflib.get_close_matches(given, known, n=1, cutoff=0.85)
        if given.startswith(PREFIX) and given not in known and close:
            remarks.append(f"{given} is no setting; did you mean {close[0]}?")
    return tuple(remarks)


def is_secret(field: FieldInfo) -> bool:
    """Return whether the value of a setting must not be shown."""
    return "SecretStr" in repr(field.annotation)


def problems_of(error: ValidationError, fields: Mapping[str, FieldInfo]) -> tuple[str, ...]:
    """Return a line per mistake, as ``longshore.toml:3: log.level: must be ...``."""
    file = settings_file(fields)
    problems: dict[str, int] = {}
    for mistake in error.errors(include_url=False):
        name = str(mistake["loc"][0])
        field = fields.get(name)
        if field is None:
            problem = f"no such setting{_did_you_mean(name, fields)}"
        else:
            problem = _describe(mistake, field)
        problems[f"{_place(name, file)}: {problem}"] = file.lines.get(name, 0)
    return tuple(sorted(problems, key=lambda problem: problems[problem]))


def _place(name: str, file: SettingsFile) -> str:
    origin = _origin(name, file)
    if origin is None:
        return name
    return f"{origin}: {file.written[name]}" if origin != variable(name) else origin


def _origin(name: str, file: SettingsFile) -> str | None:
    given = {key.upper(): value for key, value in os.environ.items()}
    if given.get(variable(name)):
        return variable(name)
    return file.place(name) if name in file.values else None


def _describe(mistake: ErrorDetails, field: FieldInfo) -> str:
    text = describe(mistake)
    return text.partition(", got ")[0] if is_secret(field) else text


def _did_you_mean(name: str, fields: Mapping[str, FieldInfo]) -> str:
    close = difflib.get_close_matches(name, list(fields), n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""
