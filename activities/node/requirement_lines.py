"""What a line of a requirements file names, by the rules of uv, which reads it later.

Only packages of an index, and those of a URL, are the same for all who write the same line.
"""

import re
from collections.abc import Iterator

INCLUDES = frozenset(
    {"-r", "-c", "--requirement", "--requirements", "--constraint", "--constraints"}
)
_INDEXES = frozenset({"-f", "--find-links", "-i", "--index-url", "--extra-index-url"})
_EDITABLE = frozenset({"-e", "--editable"})
_WITHOUT_VALUE = frozenset({"--no-index", "--pre", "--prefer-binary", "--require-hashes"})
_OPTION = re.compile(r"(--[a-z-]+|-[a-z])\s*=?\s*")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_PACKAGE = re.compile(
    r"([a-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(?:$|[;,<>=!~(]|--hash\b|@\s*(.*))",
    re.ASCII | re.IGNORECASE,
)
_ARCHIVE = re.compile(r".*\.(?:whl|zip|tar(?:\.\w+)?|t[bglx]z)", re.IGNORECASE)
_URL = re.compile(r"(?:[a-z]+\+)?(?!file:)[a-z][a-z0-9]*://", re.IGNORECASE)
_FOLDER_OF_NODE = re.compile(r"file:///[^$]*", re.IGNORECASE)
"""An index in a folder that every job of a node sees alike. uv puts the folder of the code in the
place of `${PROJECT_ROOT}`."""


def statements(line: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a line, each with its value, and a requirement with no option."""
    rest = _COMMENT.sub("", line).strip()
    while found := _OPTION.match(rest):
        option, rest = found[1], rest[found.end() :]
        if option in _WITHOUT_VALUE:
            yield option, ""
        elif option in INCLUDES | _EDITABLE:
            yield option, rest
            return
        else:
            value, rest = [*rest.split(None, 1), "", ""][:2]
            yield option, value
    if rest:
        yield "", rest


def is_local(option: str, value: str) -> bool:
    """Return whether a statement names what is in a file or folder, which may change without a
    change of the line: `-e .`, `./lib`, `foo.whl`, `foo @ file:./foo`, `--find-links wheels`."""
    if option in _INDEXES:
        address = value.strip("\"'")
        return not (_URL.match(address) or _FOLDER_OF_NODE.fullmatch(address))
    if option or _URL.match(value):
        return option in _EDITABLE
    package = _PACKAGE.match(value)
    if package is None or _ARCHIVE.fullmatch(package[1]):
        return True
    return package[2] is not None and not _URL.match(package[2])
