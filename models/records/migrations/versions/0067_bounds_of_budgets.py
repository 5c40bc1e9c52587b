"""Labels of an envelope are texts, and money of a budget has the bound that files have: a list in
labels, written by hand, ended the cycles of all pools, and too much money the list of budgets.

`NOT VALID`: what is there already is not looked at, so that no such row keeps from the upgrade.
"""

from alembic import op

revision = "0067"
down_revision = "0066"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE envelopes ADD CONSTRAINT envelopes_labels_are_texts CHECK"
        " (jsonb_typeof(labels) = 'object' AND NOT"
        """ jsonb_path_exists(labels, 'strict $.* ? (@.type() != "string")')) NOT VALID"""
    )
    op.execute(
        "ALTER TABLE tenants ADD CONSTRAINT tenants_money_in_bounds CHECK"
        " (money_per_day <= 1000000000000000 AND money_per_month <= 1000000000000000) NOT VALID"
    )
