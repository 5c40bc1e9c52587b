"""The split of a purchase may grow with what is committed: the longer time of a machine is paid by
the tenants whose jobs run there then, and they may be others than those it was bought for.

What each tenant has to pay never becomes less by that, and the sums of the caps count each part as
it is now. The rules are changed where they stand, so that whatever else they say stays.
"""

from alembic import op
from sqlalchemy import text

revision = "0073"
down_revision = "0071"


def upgrade() -> None:
    _change("purchase_charges()", STAYS, MAY_GROW)
    _change("purchase_charges()", ANEW, GROWN)
    _change("purchase_commits()", BEFORE, WAS)


def _change(function: str, old: str, new: str) -> None:
    connection = op.get_bind()
    named = {"function": function}
    definition = connection.scalar(
        text("SELECT pg_get_functiondef(CAST(:function AS regprocedure))"), named
    )
    assert definition.count(old) == 1, function
    connection.exec_driver_sql(definition.replace(old, new).replace("%", "%%"))


STAYS = "(OLD.pool, OLD.tier, OLD.tenant, OLD.day, OLD.split)"
MAY_GROW = """(OLD.pool, OLD.tier, OLD.tenant, OLD.day,
                CASE WHEN EXISTS (
                    SELECT FROM purchase_parts(OLD.committed, OLD.split, OLD.tenant) o
                      LEFT JOIN purchase_parts(NEW.committed, NEW.split, NEW.tenant) n
                          USING (tenant)
                     WHERE o.part > coalesce(n.part, 0))
                THEN OLD.split ELSE NEW.split END)"""

# Of a split that grows, too, shares of names that nobody knows are the purchase's own tenant's.
ANEW = "ELSIF is_split(NEW.split) THEN"
GROWN = """END IF;
        IF is_split(NEW.split)
           AND (TG_OP = 'INSERT' OR OLD.committed = 0
                OR NEW.split IS DISTINCT FROM OLD.split) THEN"""

BEFORE = "purchase_parts(before, NEW.split, NEW.tenant)"
WAS = """purchase_parts(before,
                         CASE WHEN TG_OP = 'UPDATE' AND before <> 0 THEN OLD.split
                              ELSE NEW.split END, NEW.tenant)"""
