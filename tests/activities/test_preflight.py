"""What a job is held against before it is submitted, and what is read for that."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from longshore.client.services import look_first
from longshore.client.submission import preflight
from longshore.models.errors import StoredError, UnsatisfiableError
from longshore.models.pool import Growth
from tests.support.control import a_spec
from tests.support.ledger import Ledger

OF_NODES, OF_PURCHASES = "FROM nodes n", "FROM purchases"


@contextmanager
def statements() -> Iterator[list[str]]:
    """Yields the statements that are sent to a database meanwhile."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("growth", list(Growth))
async def test_a_job_that_a_node_could_hold_is_held_against_one_reading_of_the_nodes(
    ledger: Ledger, growth: Growth
):
    await ledger.set_growth(growth)
    await ledger.register("n1")
    with statements() as sent:
        assert await preflight(lambda: ledger.database, a_spec(ledger.pool)) == ()
    assert sum(OF_NODES in each for each in sent) == 1
    assert not any(OF_PURCHASES in each for each in sent), "nothing has to come for it"


async def test_a_job_that_no_node_could_hold_is_held_against_one_reading_too(ledger: Ledger):
    await ledger.register("n1")
    spec = a_spec(ledger.pool, gpus=64)
    with statements() as sent:
        (warning,) = await preflight(lambda: ledger.database, spec)
        assert "even when empty" in warning
        assert sum(OF_NODES in each for each in sent) == 1
        await ledger.set_growth(Growth.FIXED)
        sent.clear()
        with pytest.raises(UnsatisfiableError, match="and the pool is fixed"):
            await preflight(lambda: ledger.database, spec)
    assert sum(OF_NODES in each for each in sent) == 1


async def test_a_pool_that_cannot_be_read_is_not_blamed_on_the_service(ledger: Ledger):
    async with ledger.database.transaction() as connection:
        spoil = """UPDATE pools SET spec = '{"interval": "soon"}' WHERE name = :pool"""
        await connection.execute(text(spoil), {"pool": ledger.pool})
    with pytest.raises(StoredError, match=f"^the settings of pool {ledger.pool}: interval"):
        await look_first(lambda: ledger.database, a_spec(ledger.pool))
