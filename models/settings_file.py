"""Finds and reads `longshore.toml`: what it says, and on which line.

A table is a way to write the names that begin alike: ``[log] level = "DEBUG"`` says the same as
``log_level = "DEBUG"``.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from longshore.models.errors import SpecError

FILE_NAME = "longshore.toml"
FILE_VARIABLE = "LONGSHORE_CONFIG"
"""Names another file, which must be there."""

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True)
class SettingsFile:
    """What one file says, by the names of the settings."""

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    written: Mapping[str, str] = field(default_factory=dict[str, str])
    """Each name as it stands in the file: ``log.level``."""
    lines: Mapping[str, int] = field(default_factory=dict[str, int])

    def place(self, name: str) -> str:
        """Return where a setting is written, as ``/etc/longshore.toml:3``."""
        return f"{self.path}:{self.lines[name]}"


def settings_file(names: Collection[str]) -> SettingsFile:
    """Return what the file says that holds here; an empty one where there is none.

    `names` are the settings that there are: they say where a table ends and a value begins.
    Raises SpecError when the file cannot be read, is not TOML, or says the same thing twice.
    """
    path = find_settings_file()
    if path is None:
        return SettingsFile()
    text = _text_of(path)
    document = _parse(path, text)
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    lines = _lines(text)
    for dotted, name, value in _flat(document, names):
        if name in values:
            raise SpecError(
                str(path),
                (f"{path}:{lines[dotted]}: {dotted}: is given twice, see {written[name]}",),
            )
        values[name], written[name] = value, dotted
    places = {name: lines[dotted] for name, dotted in written.items()}
    return SettingsFile(path, values, written, places)


def find_settings_file() -> Path | None:
    """Return the file that LONGSHORE_CONFIG names, else the first of `searched` that is there."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named).expanduser()
    return next((path for path in searched() if path.is_file()), None)


def searched() -> tuple[Path, ...]:
    """Return where the file is looked for: the working folder, the checkout, the home folder."""
    checkout = source_checkout()
    folders = [Path.cwd(), *([checkout] if checkout else []), Path.home() / ".config/longshore"]
    return tuple(dict.fromkeys(folder / FILE_NAME for folder in folders))


def source_checkout() -> Path | None:
    """Return the checkout that this code runs from; None where it is installed."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "pyproject.toml").exists() else None


def _text_of(path: Path) -> str:
    where = FILE_VARIABLE if os.environ.get(FILE_VARIABLE) else str(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        problem = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise SpecError(where, (f"{where}: {path} cannot be read: {problem}",)) from None
    except UnicodeDecodeError:
        raise SpecError(where, (f"{path}: is not UTF-8 text; save it as UTF-8",)) from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _PLACE.search(message)
        what = _PLACE.sub("", message)
        line = place[1] if place and place[1] else str(text.count("\n") + 1)
        column = f"column {place[2]}: " if place and place[2] else ""
        raise SpecError(
            str(path), (f"{path}:{line}: {column}is not valid TOML: {what[:1].lower()}{what[1:]}",)
        ) from None


def _flat(
    table: Mapping[str, Any], names: Collection[str], dotted: str = "", flat: str = ""
) -> Iterator[tuple[str, str, Any]]:
    """Yield (name as written, name of the setting, value) of each entry."""
    for key, value in table.items():
        name, as_written = f"{flat}{key}", f"{dotted}{key}"
        if isinstance(value, dict) and name not in names:
            yield from _flat(cast(dict[str, Any], value), names, f"{as_written}.", f"{name}_")
        else:
            yield as_written, name, value


def _lines(text: str) -> dict[str, int]:
    """Return the line on which each dotted key of a valid document begins.

    The parser says no lines. What stands at its beginning is a valid document too, up to the end
    of any entry: so the first one that has a key ends with that key's entry.
    """
    found: dict[str, int] = {}
    lines = text.split("\n")
    begins = 0
    for end in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # in the middle of an entry that takes several lines
        for key in _keys(document):
            found.setdefault(key, begins + 1)
        begins = end
    return found


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _keys(cast(dict[str, Any], value), f"{prefix}{key}.")
