"""When a job was last kept back by who pays, as by a quota of its tenant, is on record: what was
bought for it and stood idle meanwhile was not bought in vain."""

from alembic import op

revision = "0075"
down_revision = "0074"


def upgrade() -> None:
    op.execute("ALTER TABLE queue ADD COLUMN kept_back_at timestamptz")
