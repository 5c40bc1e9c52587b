"""A uv.lock that no node of the pool can follow is refused before anything is stored."""

from pathlib import Path

import pytest
from sqlalchemy import text

from longshore.activities.database import Database
from longshore.client.lock_check import NodePython, pythons_of, why_unfit
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode

OLD, NEW = NodePython("a", "3.9.2", "linux-x86_64"), NodePython("b", "3.12.1", "linux-aarch64")
X86 = NodePython("c", "3.12.1", "linux-x86_64")
LOCK = 'version = 1\nrequires-python = ">=3.11"\n'
FOR_MACS = LOCK + "supported-markers = [\"sys_platform == 'darwin'\"]\n"
FOR_ARM = LOCK + "supported-markers = [\"platform_machine == 'aarch64'\"]\n"


@pytest.mark.parametrize(
    ("lock", "asked", "nodes", "why"),
    [
        (LOCK, None, [OLD], "wants Python >=3.11, and that of jobs is 3.9.2 on linux-x86_64 (a)"),
        (LOCK, None, [OLD, NEW], ""),
        (LOCK, None, [], ""),
        (LOCK, "3.10", [NEW], "wants Python >=3.11, and `python` says 3.10"),
        (LOCK, "3.11", [OLD], ""),  # the nodes may have it too
        (LOCK, "3.11.4", [OLD], ""),
        ('requires-python = "==3.12.*"', "3.12", [], ""),
        (FOR_MACS, None, [], "is for sys_platform == 'darwin', and nodes are Linux"),
        (FOR_MACS, "3.12", [], "is for sys_platform == 'darwin', and nodes are Linux"),
        (FOR_ARM, None, [X86],
         "is for platform_machine == 'aarch64', and that of jobs is 3.12.1 on linux-x86_64 (c)"),
        (FOR_ARM, None, [X86, NEW], ""),
        ("no toml", None, [OLD], ""),
        ('requires-python = "soon"\nsupported-markers = ["?"]', None, [OLD], ""),
        ("", None, [OLD], ""),
    ],
)  # fmt: skip
def test_a_lock_is_refused_that_fits_none_of_the_nodes(
    lock: str, asked: str | None, nodes: list[NodePython], why: str
) -> None:
    assert why_unfit(lock, asked, nodes) == why


async def test_it_is_said_at_the_submit_and_nothing_is_submitted(
    longshore: Command, node: ScriptedNode, pool: str, control: Database, tmp_path: Path
) -> None:
    (tmp_path / "uv.lock").write_text(LOCK)
    (tmp_path / "pyproject.toml").write_text("")
    given = ("submit", "--pool", pool, "--upload", str(tmp_path), "--environment", "uv.lock")

    async def says(python: str) -> None:
        async with control.transaction() as connection:
            await connection.execute(text("DELETE FROM node_data WHERE node_id = :id"), values)
            await connection.execute(
                text("INSERT INTO node_data (node_id, name, tenant, source, bytes, total, used_at,"
                     " held) VALUES (:id, :name, '', '', 0, 0, now(), true)"),
                {**values, "name": f"python3 {python} linux-x86_64"},
            )  # fmt: skip

    values = {"id": node.id}
    assert await pythons_of(control, pool) == (), "it has not said"
    await says("of an agent that says something else")
    assert await pythons_of(control, pool) == ()
    await says("3.9.2")
    refused = await longshore(*given, "--", "true")
    assert refused.code == 65
    why = "wants Python >=3.11, and that of jobs is 3.9.2 on linux-x86_64"
    said = " ".join(refused.err.split())
    assert f"environment: uv.lock {why} ({node.id}): lock it for that one" in said
    assert "Code:" not in refused.err
    await says("3.11.4")
    assert (await longshore(*given, "--", "true")).code == 0
