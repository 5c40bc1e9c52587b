"""What was paid and what became of it, as every page shows it: one label is one number."""

from longshore.console.escaping import escape
from longshore.models.spending import Account
from longshore.models.text import amount


def money(account: Account) -> tuple[tuple[str, str], ...]:
    """Return each part of the sum with its label, and what is estimated beside it, if anything."""
    about = account.estimated_micro_usd
    return (
        ("Paid", amount(account.paid_micro_usd)),
        ("Resold", amount(account.resold_micro_usd)),
        ("Fees", amount(account.fees_micro_usd)),
        ("Used", amount(account.used_micro_usd)),
        ("Idle", amount(account.idle_micro_usd)),
        ("Open", amount(account.open_micro_usd)),
        *((("Not billed yet", f"about {amount(about)}"),) if about else ()),
    )


def account_html(account: Account) -> str:
    """Return the sum as it adds up, exact."""
    return f'<p class="reason account">{escape(account.sum_in_words)}</p>'
