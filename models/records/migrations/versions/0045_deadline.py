"""By when a job should have ended, and since when it is known that it will be late as it waits.

Jobs of an older version have no deadline.
"""

from alembic import op

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN deadline_at timestamptz")
    op.execute("ALTER TABLE jobs ADD COLUMN late_since timestamptz")
    # What is reckoned from them with the ten years of a duration stays in the calendar.
    checks = " AND ".join(
        f"{column} BETWEEN '0001-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'"
        for column in ("begins_at", "deadline_at", "late_since")
    )
    op.execute(f"ALTER TABLE jobs ADD CONSTRAINT jobs_deadline_in_reach CHECK ({checks})")
    # What a cycle asks of its pool: few jobs have a deadline.
    op.execute(
        "CREATE INDEX jobs_with_deadline ON jobs (pool) WHERE deadline_at IS NOT NULL"
        " AND late_since IS NULL AND ended_at IS NULL"
    )
