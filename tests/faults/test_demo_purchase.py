"""The control worker is killed at any moment of the demo's scene of buying: a job that no node can
hold, a purchase, the job on the bought node, what is left sold again, the end of the block.

In the end the ledger and the market's own lists agree, nothing is left there, and one machine was
bought. The moments follow from the seed that is printed with a failure: `LONGSHORE_SEED=...`.
"""

import os
import random

import pytest

from tests.faults.demo_scene import Ear, Moment, Played, moments_of, wrong_after
from tests.faults.fleet import PATIENCE, Fleet
from tests.support.market import RunningMarket
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(420)

UNANSWERED = (
    Moment("sfcompute POST /pools"),
    Moment("sfcompute POST /orders"),
    Moment("sfcompute GET /orders/{id}"),
    Moment("sfcompute POST /instances"),
    Moment("sfcompute GET /instances/{id}"),
    Moment("sfcompute POST /order_preview"),
    Moment("sfcompute POST /orders", 1),
    Moment("sfcompute POST /instances/{id}/terminate"),
)
"""Calls that were carried out, and whose answer the control worker never gets."""
ANY = 12
"""Moments that the seed chooses."""


@pytest.fixture(scope="module")
def at_first(market: RunningMarket) -> object:
    return market.state()


@pytest.fixture(scope="module")
def ear(buyers: Fleet, market: RunningMarket) -> Ear:
    return Ear(buyers, market)


@pytest.fixture(scope="module")
async def moments(buyers: Fleet, ear: Ear, at_first: object) -> list[Moment]:
    """Plays the scene once in peace, and returns moments spread over all of it; 20 s."""
    seed = int(os.environ.get("LONGSHORE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"the seed is LONGSHORE_SEED={seed}")
    scene = Played(buyers)
    await scene.to_its_end()
    course = ear.course()
    bought = await scene.report()
    assert bought
    assert bought.resold_micro_usd > 0, bought
    assert not bought.problems
    always = {each.call for each in UNANSWERED}
    return moments_of(course, always, random.Random(seed), ANY)


@pytest.mark.exhaustive  # tests/faults/test_buying_points.py kills at the same call
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(
            each,
            id=f"{each.call.partition(' ')[2].replace('/', '-')}-{each.number}",
        )
        for each in UNANSWERED
    ],
)
async def test_one_purchase_when_the_answer_never_comes(
    buyers: Fleet, market: RunningMarket, ear: Ear, at_first: object, moment: Moment
):
    await _killed_at(moment, buyers, market, ear, at_first)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(ANY))
async def test_one_purchase_whenever_the_control_worker_dies(
    buyers: Fleet, market: RunningMarket, ear: Ear, at_first: object, moments: list[Moment],
    number: int,
):  # fmt: skip
    await _killed_at(moments[number], buyers, market, ear, at_first)


async def _killed_at(
    moment: Moment, fleet: Fleet, market: RunningMarket, ear: Ear, at_first: object
) -> None:
    print(f"kill -9 {moment.wait:g} s after {moment.call}, number {moment.number}")
    before = market.state()
    ear.kill_at(moment)
    scene = Played(fleet)
    await scene.to_its_end()
    await eventually(ear.killed.is_set, timeout=PATIENCE)
    fleet.start_what_is_missing()
    bought = await scene.report()
    assert bought, "nothing was bought"
    wrong = [*bought.problems, *await wrong_after(fleet, market, at_first, before)]
    assert not wrong, "\n".join(wrong)
