"""A change that is stored is told as stored, also where Temporal does not hear of it."""

import json

import pytest
from sqlalchemy import text
from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.database import Database
from longshore.activities.signals import Signals
from tests.client.conftest import Command
from tests.support.scripted_node import ScriptedNode


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no pool hear anything."""

    async def refuse(*_: object) -> None:
        raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")

    monkeypatch.setattr(Signals, "poke_pool", refuse)


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
