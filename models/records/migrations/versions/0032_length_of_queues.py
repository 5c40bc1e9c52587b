"""How long a long queue is, without counting all of it.

A cycle notes with the pool how many rows its snapshot showed, and which snapshot that was. Rows
say in which transaction they came, those that left say both: so who counts adds what came since,
and takes off what left of what was there. No row is written more often for that.
"""

from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    for statement in (*TABLES, *FUNCTIONS):
        op.execute(statement)


TABLES = (
    "ALTER TABLE queue ADD COLUMN came_in bigint NOT NULL DEFAULT this_transaction()",
    "ALTER TABLE queue_left ADD COLUMN came_in bigint NOT NULL DEFAULT 0",
    "ALTER TABLE pools ADD COLUMN counted bigint, ADD COLUMN counted_in text,"
    " ADD COLUMN counted_on text",
)

FUNCTIONS = (
    """
    CREATE OR REPLACE FUNCTION queue_leaves() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO queue_left (job_id, pool, changed_in, came_in)
        VALUES (OLD.job_id, OLD.pool, this_transaction(), OLD.came_in);
        RETURN NULL;
    END $$""",
    """
    CREATE FUNCTION this_server() RETURNS text LANGUAGE sql STABLE AS $$
        SELECT concat(pg_postmaster_start_time(), ' ',
                      (SELECT oid FROM pg_database WHERE datname = current_database()))
    $$""",
    # Counts all where nobody has, where another run of the server did, whose numbers say nothing,
    # and where rows that left since then are there no more.
    """
    CREATE FUNCTION queue_length(named text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
    DECLARE
        length bigint;
        seen pg_snapshot;
        since bigint;
        trimmed bigint;
    BEGIN
        SELECT counted, counted_in, left_trimmed INTO length, seen, trimmed
          FROM pools WHERE name = named AND counted_on = this_server();
        since := pg_snapshot_xmin(seen)::text;
        IF since IS NULL OR trimmed >= since THEN
            RETURN (SELECT count(*) FROM queue WHERE pool = named);
        END IF;
        RETURN length
             + (SELECT count(*) FROM queue
                 WHERE pool = named AND written_in >= since
                   AND NOT pg_visible_in_snapshot(came_in::text::xid8, seen))
             - (SELECT count(*) FROM queue_left
                 WHERE pool = named AND changed_in >= since
                   AND NOT pg_visible_in_snapshot(changed_in::text::xid8, seen)
                   AND pg_visible_in_snapshot(came_in::text::xid8, seen));
    END $$""",
)
