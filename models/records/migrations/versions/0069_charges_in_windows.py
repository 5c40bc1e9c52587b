"""A charge that ends with its placement ends within the window of its envelope also where the end
of that is set at this moment: its end was reckoned before the lock was waited for.
"""

from alembic import op

revision = "0069"
down_revision = "0068"


def upgrade() -> None:
    op.execute(CHARGES_END)


# Charges before envelopes, and these by their ids, as all lock them.
CHARGES_END = """
    CREATE OR REPLACE FUNCTION placements_end_charges() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        over bigint[];
    BEGIN
        SELECT array_agg(id) INTO over
          FROM (SELECT c.id
                  FROM changed p JOIN charges c USING (job_id, attempt, rank)
                 WHERE c.ended_at IS NULL AND p.ended_at IS NOT NULL
                 ORDER BY c.id FOR NO KEY UPDATE OF c) AS locked;
        IF over IS NOT NULL THEN
            PERFORM FROM envelopes
              WHERE id IN (SELECT envelope_id FROM charges WHERE id = ANY (over))
              ORDER BY id FOR NO KEY UPDATE;
            UPDATE charges c
               SET ended_at = greatest(c.started_at, least(p.ended_at, e.ends_at)),
                   end_reason = p.end_reason
              FROM placements p, envelopes e
             WHERE c.id = ANY (over) AND c.ended_at IS NULL AND e.id = c.envelope_id
               AND (p.job_id, p.attempt, p.rank) = (c.job_id, c.attempt, c.rank);
        END IF;
        RETURN NULL;
    END $$"""
