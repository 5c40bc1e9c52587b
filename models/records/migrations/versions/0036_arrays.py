"""Arrays: one job, run once for each of many indices. Elements are rows, slots are jobs."""

from alembic import op

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    for statement in TABLES:
        op.execute(statement)


TABLES = (
    # What was asked, and how it ended, is on record in `jobs` under the same id.
    """
    CREATE TABLE arrays (
        id text PRIMARY KEY REFERENCES jobs (id),
        elements integer NOT NULL CHECK (elements > 0),
        first integer NOT NULL CHECK (first >= 0),
        last integer NOT NULL CHECK (last >= first),
        slots integer NOT NULL CHECK (slots > 0),
        generation integer NOT NULL DEFAULT 1 CHECK (generation > 0),
        held boolean NOT NULL DEFAULT false,
        cancelled text,
        poked boolean NOT NULL DEFAULT false
    )""",
    """
    CREATE TABLE array_slots (
        array_id text NOT NULL REFERENCES arrays (id),
        number integer NOT NULL CHECK (number > 0),
        job_id text NOT NULL UNIQUE,
        generation integer NOT NULL CHECK (generation > 0),
        state text NOT NULL DEFAULT 'SUBMITTING'
            CHECK (state IN ('SUBMITTING', 'SUBMITTED', 'LOST')),
        attempt integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
        batch integer NOT NULL DEFAULT 0 CHECK (batch >= 0),
        cancel_sent boolean NOT NULL DEFAULT false,
        reason text NOT NULL DEFAULT '',
        submitted_at timestamptz NOT NULL,
        PRIMARY KEY (array_id, number)
    )""",
    """
    CREATE TABLE elements (
        array_id text NOT NULL REFERENCES arrays (id),
        index integer NOT NULL CHECK (index >= 0),
        attempt integer NOT NULL DEFAULT 1 CHECK (attempt > 0),
        newest boolean NOT NULL DEFAULT true,
        generation integer NOT NULL DEFAULT 1 CHECK (generation > 0),
        state text NOT NULL DEFAULT 'WAITING'
            CHECK (state IN ('WAITING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
        variables jsonb,
        not_before timestamptz,
        cancel boolean NOT NULL DEFAULT false,
        job_id text,
        job_attempt integer,
        batch integer,
        failure text,
        exit_code integer,
        message text NOT NULL DEFAULT '',
        started_at timestamptz,
        ended_at timestamptz,
        stdout_offset bigint,
        stdout_length bigint,
        stderr_offset bigint,
        stderr_length bigint,
        PRIMARY KEY (array_id, index, attempt),
        CONSTRAINT a_claim_is_of_one_batch CHECK (
            num_nulls(job_id, job_attempt, batch) IN (0, 3)
            AND (state <> 'RUNNING' OR job_id IS NOT NULL)
            AND (state <> 'WAITING' OR job_id IS NULL)),
        CONSTRAINT an_end_has_a_time CHECK (
            (state IN ('WAITING', 'RUNNING')) = (ended_at IS NULL)),
        CONSTRAINT only_the_newest_goes_on CHECK (
            newest OR state IN ('FAILED', 'CANCELLED'))
    )""",
    "CREATE UNIQUE INDEX elements_newest ON elements (array_id, index) WHERE newest",
    "CREATE INDEX elements_waiting ON elements (array_id, index) WHERE state = 'WAITING'",
    "CREATE INDEX elements_claimed ON elements (job_id) WHERE state = 'RUNNING'",
)
