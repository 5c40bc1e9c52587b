"""What is written about the settings, made from the model: an example file, and docs/settings.md.

`python -m longshore.workers.settings_page` writes the page; a test holds page and model equal.
"""

import json
import textwrap
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from longshore.models.settings import Settings
from longshore.models.settings_sources import variable
from longshore.models.text import format_duration

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
_WIDTH = 99


def example_file() -> str:
    """Return a `longshore.toml` with every setting, explained and commented out."""
    parts = [_EXAMPLE_HEAD]
    for name, field in Settings.model_fields.items():
        lines = [
            *_wrapped(description(field)),
            *_wrapped(_choices(field)),
            f"# {_entry(field, name)}",
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def page() -> str:
    """Return docs/settings.md."""
    parts = [_PAGE_HEAD]
    for name, field in Settings.model_fields.items():
        text = f"{description(field)} {_choices(field)}".strip()
        parts.append(f"### {name}\n\n{textwrap.fill(text, _WIDTH)}\n")
        default = _default(field)
        parts.append(f"`{variable(name)}`" + (f", default `{default}`\n" if default else "\n"))
    parts.append(f"{_PAGE_EXAMPLE}\n```toml\n{example_file()}```\n")
    return "\n".join(parts)


def description(field: FieldInfo) -> str:
    """Return what a setting is for, on one line."""
    return " ".join((field.description or "").split())


def _entry(field: FieldInfo, name: str) -> str:
    default = _default(field)
    given: Any = field.default if default else (field.examples or ["..."])[0]
    if isinstance(given, timedelta):
        given = format_duration(given)
    return f"{name} = {json.dumps(given)}"


def _default(field: FieldInfo) -> str:
    if field.default is None or field.default is PydanticUndefined:
        return ""
    if isinstance(field.default, timedelta):
        return format_duration(field.default)
    return json.dumps(field.default) if isinstance(field.default, tuple) else str(field.default)


def _choices(field: FieldInfo) -> str:
    """Return what a setting may be, where it is one of a few."""
    if get_origin(field.annotation) is not Literal:
        return ""
    *first, last = map(str, get_args(field.annotation))
    return f"One of {', '.join(first)} and {last}."


def _wrapped(text: str) -> Iterable[str]:
    return (f"# {line}" for line in textwrap.wrap(text, _WIDTH - 2))


_EXAMPLE_HEAD = """\
# Settings of Longshore. What is commented out has the value that it would have anyway, or an
# example. A table is a way to write names that begin alike: [log] with level = "DEBUG" in it says
# the same as log_level = "DEBUG".
"""

_PAGE_HEAD = """\
# Settings

A setting comes from the first of these that has it:

1. the environment variable `LONGSHORE_` + its name in capitals; an empty one counts as not set;
2. `longshore.toml`: the file that `LONGSHORE_CONFIG` names, else the first that is there of the
   one in the working folder, the one in the checkout that Longshore runs from, and
   `~/.config/longshore/longshore.toml`;
3. its default.

`longshore config` shows every setting with its value and where that comes from, secrets masked. A
name in the file that is no setting and a value that does not fit are errors, with file, line and
name. `longshore doctor` tells of variables that look like a misspelt setting.

Where Temporal is comes from Temporal's own variables and profiles (`TEMPORAL_ADDRESS`,
`TEMPORAL_NAMESPACE`, `TEMPORAL_API_KEY`, `TEMPORAL_TLS_*`, `TEMPORAL_PROFILE`,
`TEMPORAL_CONFIG_FILE`), as all of its SDKs read them; without any, from the local stack.

This page is made from the settings by `make docs`.

## All settings
"""

_PAGE_EXAMPLE = """\
## Example

`longshore config --example` prints this file:
"""


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
