"""What a job that waits was told first of its start, to be held against what then happened.

One row for each attempt that waited and had an estimate. Jobs of before have none. And an index by
which the placements that ended lately are found: the history of a queue counts those of a day.
"""

from alembic import op

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE start_estimates (
            job_id text NOT NULL REFERENCES jobs,
            attempt integer NOT NULL,
            pool text NOT NULL REFERENCES pools,
            made_at timestamptz NOT NULL,
            starts_at timestamptz NOT NULL,
            PRIMARY KEY (job_id, attempt))
        """
    )
    op.execute("CREATE INDEX start_estimates_by_pool ON start_estimates (pool, made_at)")
    op.execute(
        "CREATE INDEX placements_by_end ON placements (ended_at) WHERE ended_at IS NOT NULL"
    )
