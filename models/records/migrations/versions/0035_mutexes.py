"""Mutexes, and outputs, of jobs of DAGs.

A mutex has one row from the first job that asks for it on, and a job's id in it while one has it.
No job takes it from another: it is given back first.
"""

from alembic import op

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    for statement in (*MUTEXES, *OUTPUTS):
        op.execute(statement)


MUTEXES = (
    """
    ALTER TABLE dag_jobs
        ADD COLUMN mutexes text[] NOT NULL DEFAULT '{}',
        ADD COLUMN priority integer NOT NULL DEFAULT 0,
        ADD COLUMN ready_at timestamptz""",
    """
    CREATE INDEX dag_jobs_that_wait_for_mutexes ON dag_jobs USING gin (mutexes)
     WHERE state = 'WAITING' AND ready_at IS NOT NULL""",
    """
    CREATE TABLE mutexes (
        tenant text NOT NULL,
        name text NOT NULL,
        job_id text,
        since timestamptz,
        PRIMARY KEY (tenant, name),
        CONSTRAINT a_holder_has_it_since CHECK ((job_id IS NULL) = (since IS NULL))
    )""",
    "CREATE INDEX mutexes_by_job ON mutexes (job_id) WHERE job_id IS NOT NULL",
    """
    CREATE FUNCTION mutex_changes() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'mutex % of tenant % is held by job %', OLD.name, OLD.tenant, OLD.job_id
            USING ERRCODE = 'integrity_constraint_violation';
    END $$""",
    """
    CREATE TRIGGER mutex_changes BEFORE UPDATE ON mutexes FOR EACH ROW
      WHEN (OLD.job_id IS NOT NULL AND NEW.job_id IS NOT NULL)
      EXECUTE FUNCTION mutex_changes()""",
)

# Some 64 KB of text each, which is read by itself alone: out of the rows of jobs.
OUTPUTS = (
    """
    CREATE TABLE outputs (
        job_id text PRIMARY KEY REFERENCES jobs (id),
        content text NOT NULL,
        digest text NOT NULL,
        bytes integer NOT NULL,
        CONSTRAINT an_output_is_small CHECK (octet_length(content) = bytes AND bytes <= 65536)
    )""",
)
