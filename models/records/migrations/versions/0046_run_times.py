"""How long jobs ran that succeeded, and what that said of those that wait or run.

One row for each run, the last ones of each tenant, name and shape: only inserted, so that jobs of
one name that end together do not wait for each other. `queue.learnt` is made of them when a job
comes into its queue and goes on to its placement: no cycle reads them. Jobs of before have no
shape, and say nothing.
"""

from alembic import op

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    op.execute("ALTER TABLE jobs ADD COLUMN shape text")
    op.execute("ALTER TABLE queue ADD COLUMN learnt jsonb")
    op.execute("ALTER TABLE placements ADD COLUMN learnt jsonb")
    op.execute(
        """
        CREATE TABLE run_times (
            job_id text PRIMARY KEY REFERENCES jobs,
            tenant text NOT NULL,
            name text NOT NULL,
            shape text NOT NULL,
            ended_at timestamptz NOT NULL,
            seconds double precision NOT NULL CHECK (seconds >= 0))
        """
    )
    op.execute(
        "CREATE INDEX run_times_by_key ON run_times (tenant, name, shape, ended_at DESC)"
        " INCLUDE (seconds)"
    )
    op.execute("CREATE INDEX run_times_by_end ON run_times (ended_at)")
