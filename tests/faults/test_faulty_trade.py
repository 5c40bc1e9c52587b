"""Purchases through a proxy that fails in every way: market and ledger agree in the end.

The seed that is printed chooses everything again: `make faults SEED=n`. PURCHASES=30 in the
environment makes a shorter run, in which a trouble may not come.
"""

import os
import random

import pytest

from tests.faults.buyers import running_buyers
from tests.faults.faulty_trade import Trade
from tests.support.faulty_proxy import proxy_to
from tests.support.market import RunningMarket

ALL_TROUBLES = 200
"""Purchases in which every trouble comes."""
PURCHASES = int(os.environ.get("PURCHASES", ALL_TROUBLES))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
async def test_market_and_ledger_agree_whatever_fails(
    market: RunningMarket, capfd: pytest.CaptureFixture[str]
):
    given = os.environ.get("LONGSHORE_SEED")
    chosen = random.SystemRandom().randrange(10**6) if given is None else int(given)

    def say(line: str) -> None:
        with capfd.disabled():
            print(line, flush=True)

    print(f"the seed is LONGSHORE_SEED={chosen}")
    with proxy_to(market, chosen) as proxy:
        async with running_buyers(proxy) as fleet:
            trade = Trade(fleet, proxy, chosen, PURCHASES, say)
            try:
                await trade.run()
                print(trade.describe())
                wrong = await trade.wrong()
                assert not wrong, "\n".join(wrong)
                assert trade.stopped_as_too_dear() or PURCHASES < ALL_TROUBLES
            finally:
                await trade.close()
