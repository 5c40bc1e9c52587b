"""Whether a pool could ever hold a job, as who submits it learns: few nodes are read for that."""

from collections.abc import Collection

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities import ever_held
from longshore.activities.database import clock
from longshore.activities.ever_held import nodes_if_none_could_hold
from longshore.activities.snapshot import load_nodes
from longshore.models.job_request import JobRequest
from longshore.models.node import Node
from longshore.scheduling.packer import could_ever_place
from tests.support.ledger import SUBMITTED_AT, Ledger

GANG = {"unlabelled_nodes": True}
GPUS = {"a": 1, "b": 2, "c": 1, "d": 4}
"""Nodes, by id: the first two are read at first."""


@pytest.fixture
async def reads(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids that are read, a text for each time; at first two are."""
    for node, gpus in GPUS.items():
        await ledger.register(node, gpus=gpus)
    taken: list[str] = []

    async def recorded(
        connection: AsyncConnection, pool: str, only: Collection[str] | None = None
    ) -> tuple[Node, ...]:
        taken.append("all" if only is None else "".join(only))
        return await load_nodes(connection, pool, only)

    monkeypatch.setattr(ever_held, "_FIRST", 2)
    monkeypatch.setattr(ever_held, "load_nodes", recorded)
    return taken


@pytest.mark.parametrize(
    ("asks", "read", "fits"),
    [
        ({"gpus": 1}, ["ab"], True),
        ({"gpus": 2}, ["ab"], True),
        ({"gpus": 4}, ["ab", "all"], True),
        ({"gpus": 5}, ["ab", "all"], False),
        ({"gpus": 1, "gpu_type": "B200"}, ["ab", "all"], False),
        ({"gpus": 8, "gang": GANG}, ["all"], True),
        ({"gpus": 9, "gang": GANG}, ["all"], False),
    ],
)
async def test_few_nodes_are_read_where_one_of_them_could_hold_the_job(
    ledger: Ledger, reads: list[str], asks: dict[str, object], read: list[str], fits: bool
) -> None:
    async with ledger.database.transaction() as connection:
        now = await clock(connection)
        job = JobRequest.of("job", ledger.spec(**asks), SUBMITTED_AT, 1)
        nodes = await load_nodes(connection, ledger.pool)
        found = await nodes_if_none_could_hold(connection, ledger.pool, job, now)
    assert could_ever_place(job, nodes, now) == fits
    assert found == (None if fits else nodes)
    assert reads == read


@pytest.mark.parametrize(("first", "read"), [(4, ["abcd", "all"]), (5, ["abcd"])])
async def test_a_pool_of_few_nodes_is_read_once(
    ledger: Ledger, reads: list[str], monkeypatch: pytest.MonkeyPatch, first: int, read: list[str]
) -> None:
    monkeypatch.setattr(ever_held, "_FIRST", first)
    async with ledger.database.transaction() as connection:
        job = JobRequest.of("job", ledger.spec(gpus=5), SUBMITTED_AT, 1)
        now = await clock(connection)
        found = await nodes_if_none_could_hold(connection, ledger.pool, job, now)
        assert found == await load_nodes(connection, ledger.pool)
    assert reads == read


async def test_nodes_that_have_gone_are_not_read(ledger: Ledger, reads: list[str]) -> None:
    await ledger.rows("UPDATE nodes SET state = 'GONE' WHERE id = 'a'")
    async with ledger.database.transaction() as connection:
        job = JobRequest.of("job", ledger.spec(gpus=1), SUBMITTED_AT, 1)
        now = await clock(connection)
        assert await nodes_if_none_could_hold(connection, ledger.pool, job, now) is None
    assert reads == ["bc"]
