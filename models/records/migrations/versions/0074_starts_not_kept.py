"""Starts are told for which no place is kept. Those on record all had one.

When a start is due (`activities.preemption_inputs`) goes by those that were kept alone.
"""

from alembic import op

revision = "0074"
down_revision = "0073"


def upgrade() -> None:
    op.execute("ALTER TABLE start_estimates ADD COLUMN kept_until timestamptz")
    op.execute("UPDATE start_estimates SET kept_until = coalesce(latest, starts_at)")
