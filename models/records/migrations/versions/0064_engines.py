"""An engine that waits for its turn to load says for whom. One that goes on under another
registration of its node holds its placement under the epoch that it began in: a job that is alone
on its node is not beside that either.
"""

from alembic import op

revision = "0064"
down_revision = "0063"


def upgrade() -> None:
    op.execute("ALTER TABLE replicas ADD COLUMN waits text NOT NULL DEFAULT ''")
    op.execute(PLACEMENT_BEGINS)


PLACEMENT_BEGINS = """
    CREATE OR REPLACE FUNCTION placement_begins() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        own integer := CASE WHEN NEW.borrowed_from IS NULL THEN 1 ELSE 0 END;
    BEGIN
        IF EXISTS (SELECT FROM placements
                    WHERE job_id = NEW.job_id AND attempt <> NEW.attempt AND ended_at IS NULL) THEN
            RAISE EXCEPTION 'another attempt of job % is live', NEW.job_id
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE nodes
           SET cpu_milli_used = cpu_milli_used + own * NEW.cpu_milli,
               ram_mb_used = ram_mb_used + own * NEW.ram_mb,
               storage_mb_s_used = storage_mb_s_used + own * NEW.storage_mb_s,
               milliwatts_used = milliwatts_used + own * NEW.milliwatts,
               held_alone_by = CASE WHEN NEW.alone THEN NEW.job_id ELSE held_alone_by END
         WHERE id = NEW.node_id AND epoch = NEW.epoch AND state = 'READY'
           AND (held_alone_by IS NULL OR held_alone_by = NEW.job_id);
        IF NOT FOUND THEN
            IF EXISTS (SELECT FROM nodes WHERE id = NEW.node_id AND epoch = NEW.epoch
                          AND state = 'READY' AND held_alone_by <> NEW.job_id) THEN
                RAISE EXCEPTION 'node % is held alone by another job', NEW.node_id
                    USING ERRCODE = 'integrity_constraint_violation';
            END IF;
            RAISE EXCEPTION 'node % is not ready in epoch %', NEW.node_id, NEW.epoch
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF NEW.alone AND EXISTS (SELECT FROM placements
                                  WHERE node_id = NEW.node_id
                                    AND job_id <> NEW.job_id AND ended_at IS NULL) THEN
            RAISE EXCEPTION 'another job is on node %, which job % is to hold alone',
                NEW.node_id, NEW.job_id USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF NEW.kept_at IS NOT NULL THEN
            RAISE EXCEPTION 'placement %/% borrows before it keeps', NEW.job_id, NEW.attempt
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF NEW.borrowed_from IS NOT NULL THEN
            PERFORM placement_borrows(NEW);
        END IF;
        RETURN NEW;
    END $$"""
