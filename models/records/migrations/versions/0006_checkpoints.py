"""What is known of checkpoints in the checkpoint store: the whole ones, once each."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE job_checkpoints (
            job_id text NOT NULL REFERENCES jobs (id),
            attempt integer NOT NULL CHECK (attempt > 0),
            number integer NOT NULL CHECK (number > 0),
            step bigint CHECK (step >= 0),
            ranks integer NOT NULL CHECK (ranks > 0),
            bytes bigint NOT NULL CHECK (bytes >= 0),
            write_seconds double precision CHECK (write_seconds >= 0),
            saved_at timestamptz NOT NULL,
            simulated boolean NOT NULL,
            PRIMARY KEY (job_id, attempt, number)
        )"""
    )
