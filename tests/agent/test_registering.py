"""Registering: with a control worker of the version before, which knows the older proof alone;
what is refused, and clocks that are wrong."""

import asyncio
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy import text
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from longshore.activities.database import Database
from longshore.activities.node.fence import Fence
from longshore.models import proof
from longshore.models.errors import ClockError, NotFoundError, RefusedError, TokenError
from longshore.models.node import Liveness
from longshore.models.node_messages import Registered
from longshore.models.settings import Settings
from longshore.workers import registration as registering
from longshore.workers.registration import Registrar, Sign
from tests.support.ledger import TOKEN, registration

MINUTE = timedelta(minutes=1)


class OfControl(Registrar):
    """Asks no server: answers as a control worker does that takes these proofs."""

    takes: tuple[Sign, ...] = ()
    asked: tuple[Sign, ...] = ()

    async def _call(self, identity: Any, sign: Sign, *, cut_off: bool) -> Registered:
        self.asked += (sign,)
        if sign not in self.takes:
            raise TokenError("wrong join token")
        return Registered(node_id="node-a", epoch=1, liveness=Liveness.within(MINUTE))


class Refusing:
    """A server on which the database refuses each registration."""

    async def execute_update_with_start_workflow(self, *_: object, **__: object) -> Registered:
        refusal = ApplicationError("bigint out of range", type="DataError")
        raise WorkflowUpdateFailedError(refusal)


@pytest.fixture
def registrar() -> OfControl:
    claim = registration("pool", "node-a")
    nobody = cast("Client", None)
    return OfControl(nobody, claim.identity, claim.inventory, TOKEN)


async def test_the_newer_proof_comes_first_each_time(registrar: OfControl) -> None:
    """Also after a time in which a control worker of the version before was at work."""
    registrar.takes = (proof.sign_as_before,)
    await registrar.register(Fence())
    assert registrar.asked == (proof.sign, proof.sign_as_before)
    registrar.takes, registrar.asked = (proof.sign,), ()
    await registrar.register(Fence(), cut_off=True)
    assert registrar.asked == (proof.sign,)


async def test_a_token_that_neither_proof_helps_is_refused(registrar: OfControl) -> None:
    with pytest.raises(TokenError):
        await registrar.register(Fence())
    assert registrar.asked == (proof.sign, proof.sign_as_before)


async def test_what_the_database_does_not_take_as_data_ends_the_agent() -> None:
    """Sent again, it would be refused again, for ever."""
    claim = registration("pool", "node-a")
    server = cast("Client", Refusing())
    registrar = Registrar(server, claim.identity, claim.inventory, TOKEN)
    with pytest.raises(RefusedError, match="bigint out of range"):
        await asyncio.wait_for(registrar.register(Fence()), 5)


_GPU = {"vram": "gpus[0].vram", "power": "gpus[0].power"}
_HOST = {"ram": "ram", "storage_bandwidth": "storage_bandwidth", "power": "power", "cpus": "cpus"}


@pytest.mark.parametrize("much", [2e9, 1e300, -1.0])
@pytest.mark.parametrize(
    ("of_gpu", "field", "place"),
    [*((True, *each) for each in _GPU.items()), *((False, *each) for each in _HOST.items())],
    ids=[*_GPU.values(), *_HOST.values()],
)
async def test_amounts_that_no_machine_has_end_the_agent(
    temporal: Client, control: Database, settings: Settings, pool: str,
    of_gpu: bool, field: str, place: str, much: float,
) -> None:  # fmt: skip
    """Of an agent that does not look at them itself. It would try again, for ever."""
    said = registration(pool, f"odd-{uuid.uuid4().hex[:8]}")
    inventory, odd = said.inventory, {field: much}
    if of_gpu:
        odd = {"gpus": (inventory.gpus[0].model_copy(update=odd), *inventory.gpus[1:])}
    inventory = inventory.model_copy(update=odd)
    registrar = Registrar(temporal, said.identity, inventory, settings.resolve_agent_token())
    with pytest.raises(RefusedError) as refused:
        await asyncio.wait_for(registrar.register(Fence()), 20)
    assert f"{place}: " in str(refused.value)


async def test_an_agent_of_a_block_that_is_not_there_ends_with_a_sentence(
    temporal: Client, control: Database, settings: Settings, pool: str
) -> None:
    said = registration(pool, f"odd-{uuid.uuid4().hex[:8]}", block="nosuch")
    registrar = Registrar(temporal, said.identity, said.inventory, settings.resolve_agent_token())
    with pytest.raises(NotFoundError, match="there is no block nosuch: "):
        await asyncio.wait_for(registrar.register(Fence()), 20)


@pytest.mark.parametrize("minutes", [11, -11])
async def test_an_agent_whose_clock_is_too_far_off_ends_and_says_so(
    temporal: Client, control: Database, settings: Settings, pool: str,
    monkeypatch: pytest.MonkeyPatch, minutes: int,
) -> None:  # fmt: skip
    """So that whoever starts it sees it. Within ten minutes it is admitted."""

    def off_by(minutes: int) -> None:
        at = timedelta(minutes=minutes)
        monkeypatch.setattr(registering, "wall_clock", lambda: datetime.now(UTC) + at)

    said = registration(pool, f"odd-{uuid.uuid4().hex[:8]}")
    registrar = Registrar(temporal, said.identity, said.inventory, settings.resolve_agent_token())
    off_by(minutes)
    with pytest.raises(ClockError) as refused:
        await asyncio.wait_for(registrar.register(Fence()), 20)
    says = str(refused.value)
    far = r"1[01]m( \d+s)? " + ("ahead of" if minutes > 0 else "behind")
    whose = f"node {registrar.node_id}: the clock of its machine"
    assert re.match(f"{whose} is {far} that of the Temporal server; at most 10m are taken", says)
    assert refused.value.exit_code == 77
    async with control.transaction() as connection:
        known = await connection.scalar(
            text("SELECT count(*) FROM nodes WHERE id = :id"), {"id": registrar.node_id}
        )
    assert known == 0
    off_by(minutes - minutes // 11 * 2)
    assert (await asyncio.wait_for(registrar.register(Fence()), 20)).epoch == 1
