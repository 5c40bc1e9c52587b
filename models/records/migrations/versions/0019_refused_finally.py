"""An order that its seller will not take later either is marked: its seller and image are left out
of decisions for a while."""

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE purchase_orders ADD COLUMN refused_finally boolean NOT NULL DEFAULT false"
    )
    op.execute(
        "CREATE INDEX purchase_orders_refused ON purchase_orders (closed_at) WHERE refused_finally"
    )
