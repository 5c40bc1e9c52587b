"""What a purchase has cost above what was committed for it counts against the caps while it runs,
and no cap refuses to book it: the money is spent.

The rule of `purchase_commits` is changed where it stands, so that whatever else it says stays.
"""

from alembic import op
from sqlalchemy import text

revision = "0071"
down_revision = "0070"

RULE = "NEW.committed <= NEW.spent"
SPENT = f"({RULE} OR TG_OP = 'UPDATE' AND NEW.committed - OLD.committed <= NEW.spent - OLD.spent)"
"""No more is committed than is spent, or than was spent since."""


def upgrade() -> None:
    connection = op.get_bind()
    function = connection.scalar(
        text("SELECT pg_get_functiondef('purchase_commits()'::regprocedure)")
    )
    assert function.count(RULE) == 1
    # What was spent before is counted once, and no cap refuses that.
    connection.exec_driver_sql(function.replace(RULE, "true").replace("%", "%%"))
    connection.execute(text(COUNT))
    connection.exec_driver_sql(function.replace(RULE, SPENT).replace("%", "%%"))


COUNT = """
    UPDATE purchases p
       SET committed = CASE WHEN p.buying THEN greatest(p.planned, o.committed)
                            ELSE o.committed END
      FROM (SELECT purchase_id, sum(greatest(committed, spent)) AS committed
              FROM orders GROUP BY purchase_id HAVING bool_or(spent > committed)) AS o
     WHERE o.purchase_id = p.id AND p.state <> 'REFUSED'"""
"""As `purchase_rows.recount` counts from now on."""
