"""What `pool set` says of a pool that is to buy no more."""

import pytest

from longshore.client import pool_commands, purchase_commands
from longshore.models.buying import BuyingPolicy
from longshore.models.pool import PoolSpec


@pytest.mark.parametrize(
    ("resell", "rest"), [(True, "is sold"), (False, "is kept to its end (`resell`)")]
)
def test_what_becomes_of_what_it_bought_before_is_said(
    monkeypatch: pytest.MonkeyPatch, resell: bool, rest: str
):
    spec = PoolSpec(name="red", buying=BuyingPolicy(resell=resell))
    monkeypatch.setattr(purchase_commands, "ask", lambda _: ("b-1", "b-2"))
    said = pool_commands.what_runs_on(spec)
    assert said.startswith("2 blocks that it bought before may run on, and will not be extended: ")
    assert "end when idle for 1m" in said
    assert f"idle time of windows {rest} (longshore blocks --pool red)" in said
    monkeypatch.setattr(purchase_commands, "ask", lambda _: ())
    assert pool_commands.what_runs_on(spec) == ""
