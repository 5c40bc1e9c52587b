"""An agent and a control worker of the version before, which knows the older proof alone."""

from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.client import Client

from activities.node.fence import Fence
from models import proof
from models.errors import TokenError
from models.messages import Registered
from models.node import Liveness
from tests.support.ledger import TOKEN, registration
from workers.registration import Registrar, Sign

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
