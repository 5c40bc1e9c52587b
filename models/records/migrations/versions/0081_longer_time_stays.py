"""While a purchase buys, the longer times of its machines stay committed beside what was planned.

Workers from before 0076 recount without that at each look at a machine: they gave it back, and
another purchase could take it. Nothing is raised by this: what was given back before is asked for
by the next order. The rule is changed where it stands, so that whatever else it says stays.
"""

from alembic import op
from sqlalchemy import text

revision = "0081"
down_revision = "0079"


def upgrade() -> None:
    connection = op.get_bind()
    definition = connection.scalar(
        text("SELECT pg_get_functiondef('purchase_charges()'::regprocedure)")
    )
    assert definition.count(PARTS) == 1
    connection.exec_driver_sql(definition.replace(PARTS, PARTS + STAYS).replace("%", "%%"))


PARTS = "FROM longer_parts(NEW.id) parts;"
STAYS = """
        IF TG_OP = 'UPDATE' AND NEW.buying AND NEW.committed > 0 AND NEW.longer IS NOT NULL THEN
            NEW.committed := greatest(NEW.committed, least(OLD.committed, NEW.planned + (
                SELECT sum(value::numeric)::bigint FROM jsonb_each_text(NEW.longer))));
        END IF;"""
