"""Indexes for a page of a list of jobs, and for the newest job of a name."""

from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.execute("DROP INDEX jobs_by_submission")
    op.execute("CREATE INDEX jobs_by_submission ON jobs (submitted_at DESC, id)")
    op.execute("CREATE INDEX jobs_by_name ON jobs (name, submitted_at DESC, id)")
