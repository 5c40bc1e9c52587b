"""Times of charges: one begins when it is written, and ends by now at the latest.

What the database refuses beside what 0052 does: a start that is dated back, with which GPUs would
have been charged twice; one that is still to come; and an end that is still to come, with which a
charge outlives its placement while its envelope has the room back already.

Where a clock was set back, a placement that begins or ends then keeps the time that it has.
"""

from alembic import op

revision = "0056"
down_revision = "0055"


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


STATEMENTS = (
    """
    CREATE FUNCTION charge_ends_by_now() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.ended_at > greatest(clock_timestamp(), NEW.started_at)
           AND NOT EXISTS (SELECT FROM placements
                            WHERE (job_id, attempt, rank) = (NEW.job_id, NEW.attempt, NEW.rank)
                              AND ended_at >= NEW.ended_at) THEN
            RAISE EXCEPTION 'charge % would end at %, which is still to come', NEW.id,
                NEW.ended_at
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'charges_times';
        END IF;
        RETURN NEW;
    END $$""",
    # now() is when the transaction began.
    """
    CREATE FUNCTION charges_begin_now() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        wrong record;
    BEGIN
        SELECT o.* INTO wrong
          FROM opened o JOIN placements p USING (job_id, attempt, rank)
         WHERE o.started_at NOT BETWEEN now() AND greatest(clock_timestamp(), p.placed_at)
         ORDER BY o.id LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'charge % would begin at %: it begins now', wrong.id, wrong.started_at
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'charges_times';
        END IF;
        RETURN NULL;
    END $$""",
    """CREATE TRIGGER charge_ends_by_now BEFORE UPDATE ON charges
       FOR EACH ROW EXECUTE FUNCTION charge_ends_by_now()""",
    """CREATE TRIGGER charges_begin_now AFTER INSERT ON charges REFERENCING NEW TABLE AS opened
       FOR EACH STATEMENT EXECUTE FUNCTION charges_begin_now()""",
)
