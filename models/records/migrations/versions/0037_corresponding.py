"""Edges from array to array, element to element: elements wait for the one with their index."""

from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    for statement in (*ELEMENTS, *EDGES):
        op.execute(statement)


ELEMENTS = (
    """
    ALTER TABLE elements
        DROP CONSTRAINT elements_state_check,
        DROP CONSTRAINT an_end_has_a_time,
        DROP CONSTRAINT a_claim_is_of_one_batch,
        ADD CONSTRAINT elements_state_check
            CHECK (state IN ('BLOCKED', 'WAITING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED',
                             'SKIPPED')),
        ADD CONSTRAINT an_end_has_a_time CHECK (
            (state IN ('BLOCKED', 'WAITING', 'RUNNING')) = (ended_at IS NULL)),
        ADD CONSTRAINT a_claim_is_of_one_batch CHECK (
            num_nulls(job_id, job_attempt, batch) IN (0, 3)
            AND (state <> 'RUNNING' OR job_id IS NOT NULL)
            AND (state NOT IN ('WAITING', 'BLOCKED', 'SKIPPED') OR job_id IS NULL))""",
    "CREATE INDEX elements_blocked ON elements (array_id, index) WHERE state = 'BLOCKED'",
)

EDGES = (
    """
    ALTER TABLE dag_jobs
        ADD COLUMN element_join text CHECK (element_join IN ('all', 'any')),
        ADD COLUMN others text CHECK (others IN ('OPEN', 'SATISFIED', 'DEAD')),
        ADD COLUMN kept_from text""",
    # By names: a job of a DAG has no id before it is submitted, and another after a retry.
    """
    CREATE TABLE element_edges (
        dag_id text NOT NULL,
        name text NOT NULL,
        upstream text NOT NULL,
        extra_waits boolean NOT NULL,
        firsts integer[] NOT NULL,
        lasts integer[] NOT NULL,
        steps integer[] NOT NULL,
        whole text NOT NULL DEFAULT 'OPEN',
        PRIMARY KEY (dag_id, name, upstream),
        FOREIGN KEY (dag_id, name) REFERENCES dag_jobs (dag_id, name),
        CONSTRAINT whole_is_an_edge_state CHECK (whole IN ('OPEN', 'SATISFIED', 'DEAD'))
    )""",
    "CREATE INDEX element_edges_by_upstream ON element_edges (dag_id, upstream)",
)
