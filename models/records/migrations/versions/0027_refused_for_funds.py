"""Whether a market refused an order because the account there has too little money."""

from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.execute("ALTER TABLE market_refusals ADD COLUMN for_funds boolean NOT NULL DEFAULT false")
