"""A change that is stored is told as stored, also where Temporal does not hear of it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.database import Database
from longshore.activities.signals import Signals
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode
from tests.support.waiting import eventually

_FILE = """
models:
  - {{name: {model}, source: /models/tiny.gguf, memory: {memory}}}
services:
  - {{name: {service}, model: {model}, replicas: 1, pool: {pool}}}
"""


def go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no pool and no service hear anything."""

    async def refuse(*_: object) -> None:
        raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")

    for tells in ("poke_pool", "begin_service"):
        monkeypatch.setattr(Signals, tells, refuse)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporal is away for the whole test."""
    go_away(monkeypatch)


async def test_the_settings_of_a_pool_are_stored(longshore: Command, pool: str, away: None):
    warm = "--buying", "enabled=true", "--buying", "fast_warm_gpus=8"
    ran = await longshore("pool", "set", pool, *warm, "--json")
    assert ran.code == 0, ran.err
    assert f"warning: it is stored, but pool {pool} was not told, and will go by it" in ran.err
    assert "Temporal does not answer (connection refused)" in ran.err
    shown = await longshore("pool", "show", pool, "--json")
    assert json.loads(shown.out)["spec"]["buying"] == json.loads(ran.out)["buying"]
    quiet = await longshore("pool", "set", pool, "--buying", "fast_warm_gpus=0")
    assert (quiet.code, quiet.err) == (0, ""), "nobody is to be told"


async def test_a_fingerprint_is_accepted(
    longshore: Command, node: ScriptedNode, pool: str, control: Database, away: None
):
    async with control.transaction() as connection:
        query = "UPDATE nodes SET conformance = 'new', accepted = 'old' WHERE id = :id"
        await connection.execute(text(query), {"id": node.id})
    ran = await longshore("accept", node.id)
    assert ran.code == 0, ran.err
    assert ran.out == f"{node.id}: new is accepted (before: old)\n"
    assert ran.err.startswith(f"warning: it is stored, but pool {pool} was not told")
    again = await longshore("accept", node.id, "--json")
    assert json.loads(again.out)["notes"] == [], "its pool is not to be told"


@pytest.fixture
async def engine(longshore: Command, pool: str, tmp_path: Path) -> AsyncIterator[str]:
    """The engine of a service of two revisions, as the pool is named; it has no node."""
    file = tmp_path / "serve.yaml"
    for memory in ("1GB", "2GB"):
        file.write_text(_FILE.format(model=f"m-{pool}", service=pool, pool=pool, memory=memory))
        ran = await longshore("serve", str(file), "--no-wait")
        assert ran.code == 0, ran.err

    async def job_id() -> str:
        rows = json.loads((await longshore("slots", "--json")).out)
        mine = (each for each in rows if (each["service"], each["revision"]) == (pool, 2))
        return next((each["job_id"] for each in mine), "")

    yield await eventually(job_id)
    assert (await longshore("service", pool, "--remove")).code == 0


@pytest.mark.exhaustive
async def test_a_change_of_a_service_is_stored(
    longshore: Command, engine: str, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told = f"warning: it is stored, but service {pool} was not told, and will go by it"
    file = str(tmp_path / "serve.yaml")
    with monkeypatch.context() as patch:
        go_away(patch)
        evicted = await longshore("evict", engine)
        assert (evicted.code, evicted.err.startswith(told)) == (0, True), evicted.err
        assert evicted.out == f"{engine} of service {pool} is being stopped.\n"
        for command, wanted in (
            (("scale", pool, "3", "--no-wait"), {"revision": 2, "replicas": 3}),
            (("rollout", "undo", pool, "--to", "1", "--no-wait"), {"revision": 1, "replicas": 3}),
            (("serve", file, "--no-wait"), {"revision": 3, "replicas": 1}),
            (("service", pool, "--remove"), {"state": "REMOVING"}),
        ):
            ran = await longshore(*command, "--json")
            assert ran.code == 0, ran.err
            assert told in ran.err.replace(f"service {pool}: it is", "it is"), command
            shown = json.loads((await longshore("service", pool, "--json")).out)
            now = {**shown, **shown["spec"]}
            assert {name: now[name] for name in wanted} == wanted, command
