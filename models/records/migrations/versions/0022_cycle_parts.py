"""What the parts of a cycle took, and how many jobs it looked at; null for those before."""

from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE cycles ADD COLUMN looked_at integer,"
        " ADD COLUMN read_ms double precision, ADD COLUMN plan_ms double precision,"
        " ADD COLUMN commit_ms double precision, ADD COLUMN explain_ms double precision"
    )
