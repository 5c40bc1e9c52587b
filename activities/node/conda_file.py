"""What an environment.yml of conda asks for: channels, packages, and what pip is to install.

The format is that of `conda env create -f`; keys that this Longshore does not follow are refused.
"""

import re
from dataclasses import dataclass
from typing import Any

import yaml

from longshore.models.visible import brief

_IGNORED = frozenset({"name", "prefix"})
"""What names the environment, or says where it lies: here it has a place of its own."""
_READ = frozenset({"channels", "dependencies"})
_LOCAL = re.compile(
    r"(?:^|\b(?:channel|url)\s*=)\s*[\"']?(?:[./~\\]|file:(?!///)|file:.*\.(?:conda|tar\.bz2)\b)"
    r"|^(?!.*://).*\.(?:conda|tar\.bz2)\b"
)
"""What lies in the folder of the code, `./channel` or `./foo.conda`, or is a file of a node. A
channel that every node has, `file:///srv/channel`, is an index like others."""


class CondaFileError(ValueError):
    """A file that cannot be followed; the text says why."""


@dataclass(frozen=True)
class CondaFile:
    """The content of an environment.yml."""

    channels: tuple[str, ...]
    """Names or URLs; the first that has a package is asked for it."""
    packages: tuple[str, ...]
    """Match specs, such as `numpy=2.1`."""
    pip: tuple[str, ...]
    """Lines of a requirements file, seen from the folder of the environment.yml."""


def read_conda_file(text: str) -> CondaFile:
    """Return what a file asks for. Raises CondaFileError."""
    try:
        content: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also 2026-13-13, or [[[[...
        raise CondaFileError(f"it is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise CondaFileError("it has no `channels` and `dependencies`")
    if unknown := sorted(str(key) for key in content.keys() - _IGNORED - _READ):
        why = ": name variables in `env` of the job" if "variables" in unknown else ""
        raise CondaFileError(f"{brief(unknown[0])} is not followed{why}")
    channels = [each for each in _texts(content, "channels") if each != "nodefaults"]
    if not channels:
        raise CondaFileError("it names no `channels`")
    if "defaults" in channels:
        raise CondaFileError(
            "the channel `defaults` is a setting of a conda installation, which a node has not: "
            "name the channels themselves"
        )
    asked = content.get("dependencies")
    if not isinstance(asked, list) or not asked:
        raise CondaFileError("it has no list of `dependencies`")
    packages: list[str] = []
    pip: list[str] = []
    for each in asked:
        if isinstance(each, dict) and each.keys() == {"pip"}:
            pip += _texts(each, "pip")
        elif isinstance(each, str):
            packages.append(each)
        else:
            # Not what it is: of aliases within aliases that may be without an end.
            what = brief(str(each)) if not isinstance(each, list | dict) else "a mapping or list"
            raise CondaFileError(f"dependencies: {what} is no package")
    for each in (*channels, *packages):
        if _LOCAL.search(each):
            raise CondaFileError(
                f"it names {brief(each)}, which may change without a change of this file: name a "
                "package of a channel, and a channel by its name or URL, such as "
                "file:///srv/channel for one that all nodes have"
            )
    return CondaFile(tuple(channels), tuple(packages), tuple(pip))


def _texts(content: dict[Any, Any], key: str) -> list[str]:
    found = content.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise CondaFileError(f"`{key}` is no list of texts")
    if any("\n" in each for each in found):
        raise CondaFileError(f"`{key}` has an entry of several lines")
    return found
