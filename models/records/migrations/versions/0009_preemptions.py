"""Preemptions: which attempt is stopped for whom; and what was decided about saving.

What the database refuses, whatever the code does:

- an attempt that is stopped for two jobs (primary key);
- a job that gives way to one of its own class or a lower one (check).
"""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    for statement in TABLES:
        op.execute(statement)


TABLES = (
    """
    CREATE TABLE preemptions (
        job_id text NOT NULL REFERENCES jobs (id),
        attempt integer NOT NULL,
        pool text NOT NULL REFERENCES pools (name),
        cycle_id text NOT NULL,
        for_job text NOT NULL REFERENCES jobs (id),
        for_attempt integer NOT NULL,
        priority integer NOT NULL,
        for_priority integer NOT NULL,
        plan jsonb NOT NULL,
        frees_by timestamptz NOT NULL,
        decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        PRIMARY KEY (job_id, attempt),
        CONSTRAINT only_a_lower_class_gives_way CHECK (priority < for_priority)
    )""",
    "CREATE INDEX preemptions_by_cycle ON preemptions (cycle_id)",
    "CREATE INDEX preemptions_by_beneficiary ON preemptions (for_job)",
    """
    CREATE TABLE checkpoint_decisions (
        job_id text PRIMARY KEY REFERENCES jobs (id),
        attempt integer NOT NULL,
        decision jsonb NOT NULL,
        decided_at timestamptz NOT NULL
    )""",
)
