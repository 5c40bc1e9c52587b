"""What `longshore doctor` says of the markets."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from longshore.models.settings import Settings
from longshore.workers.doctor.findings import Finding, Level
from longshore.workers.doctor.markets import checks
from tests.support.local_stack import free_ports, temporary_folder
from tests.support.market import running_market


@pytest.fixture
def nothing() -> Iterator[Settings]:
    with temporary_folder() as folder:
        yield Settings(state_dir=folder)


async def look(settings: Settings, **changes: Any) -> list[Finding]:
    return await checks(settings.model_copy(update=changes))["markets"]()


async def test_no_market_is_well_unless_real_ones_are_wanted(nothing: Settings):
    (off,) = await look(nothing, market="off")
    (simulated,) = await look(nothing)
    (real,) = await look(nothing, market="real")
    assert [each.level for each in (off, simulated, real)] == [Level.OK, Level.OK, Level.WARN]
    assert "`longshore market simulate`" in simulated.says
    assert "LONGSHORE_SFCOMPUTE_TOKEN" in real.mend


async def test_each_market_says_who_we_are_and_that_it_is_simulated():
    with running_market() as market:
        found = await look(market.settings())
    assert [each.level for each in found] == [Level.OK] * 2
    assert [each.says.split(" knows us as ")[0] for each in found] == [
        "prime (simulated)", "sfcompute (simulated)",
    ]  # fmt: skip
    assert all(each.says.endswith("the balance is $10,000.00") for each in found)


async def test_a_real_market_without_an_image_says_that_nothing_is_bought_there():
    with running_market() as market:
        prime, sfcompute = await look(market.settings(), market="real")
    assert (prime.level, sfcompute.level) == (Level.WARN, Level.WARN)
    assert "nothing is bought there" in prime.says
    assert prime.mend.startswith("Set LONGSHORE_PRIME_TEMPLATE to a template")
    assert sfcompute.mend.startswith("Set LONGSHORE_SFCOMPUTE_IMAGE to an image")


async def test_a_wrong_token_is_a_mistake_and_is_not_shown():
    with running_market() as market:
        found = await look(market.settings(), prime_token=SecretStr("of-nobody"))
    prime, sfcompute = found
    assert (prime.level, sfcompute.level) == (Level.FAIL, Level.OK)
    assert "of-nobody" not in prime.says + prime.mend


async def test_a_market_that_is_away_is_a_mistake():
    (port,) = free_ports(1)
    with running_market() as market:
        away, _ = await look(market.settings(), prime_url=f"http://127.0.0.1:{port}")
    assert away.level is Level.FAIL
    assert away.says.startswith("prime")


async def test_an_empty_account_is_a_warning():
    with running_market(balance=0) as market:
        found = await look(market.settings())
    assert {each.level for each in found} == {Level.WARN}
    assert "nothing can be bought" in found[0].mend
