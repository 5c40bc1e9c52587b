"""DAGs: jobs that wait for the ends of others."""

from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    for statement in TABLES:
        op.execute(statement)


TABLES = (
    """
    CREATE TABLE dags (
        id text PRIMARY KEY,
        name text NOT NULL,
        tenant text NOT NULL,
        spec json NOT NULL, -- jsonb would forget the order of the jobs
        generation integer NOT NULL DEFAULT 1 CHECK (generation > 0),
        state text NOT NULL DEFAULT 'RUNNING'
            CHECK (state IN ('RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
        held boolean NOT NULL DEFAULT false,
        cancelled text,
        stopped_by text,
        poked boolean NOT NULL DEFAULT false,
        message text NOT NULL DEFAULT '',
        submitted_at timestamptz NOT NULL,
        ended_at timestamptz,
        CONSTRAINT an_end_has_a_time CHECK ((state = 'RUNNING') = (ended_at IS NULL))
    )""",
    "CREATE INDEX dags_by_time ON dags (submitted_at DESC, id)",
    "CREATE INDEX dags_by_name ON dags (name, submitted_at)",
    # A job id is of one job of one DAG; a retry gives the job another.
    """
    CREATE TABLE dag_jobs (
        dag_id text NOT NULL REFERENCES dags (id),
        name text NOT NULL,
        state text NOT NULL DEFAULT 'WAITING'
            CHECK (state IN ('WAITING', 'SUBMITTING', 'SUBMITTED', 'SKIPPED', 'WITHDRAWN',
                             'LOST')),
        generation integer NOT NULL DEFAULT 1 CHECK (generation > 0),
        job_id text UNIQUE,
        reason text NOT NULL DEFAULT '',
        cancel_sent boolean NOT NULL DEFAULT false,
        submitted_at timestamptz,
        ended_at timestamptz,
        PRIMARY KEY (dag_id, name),
        CONSTRAINT a_submitted_job_has_an_id
            CHECK (state NOT IN ('SUBMITTING', 'SUBMITTED') OR job_id IS NOT NULL)
    )""",
)
