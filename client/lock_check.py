"""Whether a uv.lock fits the Pythons of a pool's nodes, before anything is submitted."""

import tomllib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from sqlalchemy import text

from longshore.activities.database import Database
from longshore.models.data import PYTHON, python_of_name
from longshore.models.text import listed
from longshore.models.visible import brief


class NodePython(NamedTuple):
    """The Python that jobs of a node have where they name none."""

    node_id: str
    version: str
    platform: str
    """As `sysconfig.get_platform` says it: ``linux-x86_64``."""


_ANY_NODE = tuple(
    NodePython("", f"3.{minor}.0", f"linux-{machine}")
    for minor in range(8, 20) for machine in ("x86_64", "aarch64")
)  # fmt: skip
"""Whatever node there may be."""


class Wants(NamedTuple):
    """What a lock is for."""

    python: str
    """As `requires-python`: ``>=3.11``; empty for any."""
    markers: tuple[str, ...]
    """Environments, one of which it has to be; none for any."""


def wants(lock: str) -> Wants:
    """Return what a uv.lock is for. What cannot be read is left to uv, which says why."""
    try:
        document = tomllib.loads(lock)
    except tomllib.TOMLDecodeError:
        return Wants("", ())
    python, markers = document.get("requires-python"), document.get("supported-markers")
    return Wants(
        python if isinstance(python, str) else "",
        tuple(map(str, markers)) if isinstance(markers, list) else (),  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    )


def why_unfit(lock: str, asked: str | None, nodes: Sequence[NodePython]) -> str:
    """Return why a lock fits none of these nodes; empty where it fits one, or there is none.

    `asked` is the Python that the job names, of which nodes say nothing but its version.
    """
    of = wants(lock)
    if not any(_fits(Wants("", of.markers), node) for node in _ANY_NODE):
        return f"is for {brief(' or '.join(of.markers))}, and nodes are Linux"
    if asked is not None:
        if _allows(of.python, asked):
            return ""
        return f"wants Python {brief(of.python)}, and `python` says {asked}"
    if not nodes or any(_fits(of, node) for node in nodes):
        return ""
    if not any(_allows(of.python, node.version) for node in nodes):
        return f"wants Python {brief(of.python)}, and that of jobs is {_told(nodes)}"
    where = brief(" or ".join(of.markers))
    return f"is for {where}, and that of jobs is {_told(nodes)}"


async def pythons_of(database: Database, pool: str) -> tuple[NodePython, ...]:
    """Return the Pythons of a pool's nodes; none where a node has not said, or others may be
    bought. Raises UnavailableError."""
    async with database.transaction() as connection:
        rows = (await connection.execute(text(_PYTHONS), {"pool": pool, "kind": PYTHON})).all()
    found = {row.id: python_of_name(row.name or "") for row in rows}
    if any(row.buys for row in rows):
        return ()
    pythons = [NodePython(node_id, *each) for node_id, each in found.items() if each is not None]
    return tuple(pythons) if len(pythons) == len(found) else ()


def _fits(of: Wants, node: NodePython) -> bool:
    if not _allows(of.python, node.version):
        return False
    system, _, machine = node.platform.partition("-")
    about = {
        "sys_platform": system, "platform_system": system.capitalize(),
        "platform_machine": machine, "python_full_version": node.version,
        "python_version": ".".join(node.version.split(".")[:2]), "os_name": "posix",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    }  # fmt: skip
    try:
        return not of.markers or any(Marker(each).evaluate(about) for each in of.markers)
    except InvalidMarker:
        return True


def _allows(specifiers: str, version: str) -> bool:
    """Return whether a Python is allowed; of a short version, such as 3.11, whether any is."""
    try:
        allowed = SpecifierSet(specifiers)
        any_of = [version] if version.count(".") > 1 else [f"{version}.{n}" for n in (0, 99)]
        return any(allowed.contains(Version(each), prereleases=True) for each in any_of)
    except (InvalidSpecifier, InvalidVersion):
        return True


def _told(nodes: Iterable[NodePython]) -> str:
    return listed([f"{each.version} on {each.platform} ({each.node_id})" for each in nodes], 3)


_PYTHONS = """
    SELECT n.id, d.name, coalesce(p.spec #> '{buying,enabled}' = 'true', false) AS buys
      FROM nodes n
      JOIN pools p ON p.name = n.pool
      LEFT JOIN node_data d ON d.node_id = n.id AND d.held AND d.name LIKE :kind || ' %'
     WHERE n.pool = :pool AND n.state IN ('READY', 'DRAINING')
     ORDER BY n.id
"""
