"""What the page of purchases says of caps, for fixed states."""

from datetime import UTC, datetime

from longshore.activities.buying.switch import Cap, SwitchState
from longshore.console.purchases_view import switch_html

MICRO = 1_000_000


def a_cap(name: str, committed: int, most: int | None) -> Cap:
    return Cap(
        scope="pool", name=name, of_policy=True, committed_micro_usd=committed * MICRO,
        most_micro_usd=None if most is None else most * MICRO,
    )  # fmt: skip


def shown(*caps: Cap, stopped: bool = False) -> str:
    return switch_html(
        SwitchState(stopped=stopped, reason="", changed_at=datetime.now(UTC), caps=caps)
    )


def test_caps_are_one_table_and_what_is_nearly_reached_is_marked():
    html = shown(a_cap("a", 10, 100), a_cap("b", 95, 100), Cap(scope="order", name="*",
                                                                most_micro_usd=1))  # fmt: skip
    assert html.count("<table") == 1
    assert html.count("<tbody>") == 1
    assert html.count("$100.00") == 2
    assert html.count("nearly reached") == 1
    assert html.count('data-head="Set by"') == 2, "a phone has no room for the row of heads"
    assert "notes" not in html


def test_a_pool_without_a_cap_and_a_stop_are_warned_of():
    html = shown(a_cap("a&b", 10, None), stopped=True)
    assert "<b>No cap of pool a&amp;b.</b>" in html
    assert "Buying is stopped." in html
    assert "no limit" in html


def test_nothing_is_said_where_nothing_holds():
    assert shown() == ""
