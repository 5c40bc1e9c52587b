"""Nodes that a job holds alone, and the fingerprint that was accepted for each node.

What the database refuses besides: a placement on a node that another job holds alone, and one that
is to hold a node alone where another job is. Every placement locks the row of its node, so the
second of two that begin at the same time sees the first.

The fingerprint that a node has now counts as accepted: nobody could say otherwise before.
"""

from alembic import op

revision = "0049"
down_revision = "0048"


def upgrade() -> None:
    for statement in (*COLUMNS, *FUNCTIONS):
        op.execute(statement)


COLUMNS = (
    """
    ALTER TABLE nodes
        ADD COLUMN accepted text CHECK (length(accepted) <= 10000),
        ADD COLUMN held_alone_by text REFERENCES jobs""",
    "UPDATE nodes SET accepted = conformance WHERE conformance IS NOT NULL",
    """
    ALTER TABLE placements
        ADD COLUMN alone boolean NOT NULL DEFAULT false,
        ADD COLUMN idle integer[] NOT NULL DEFAULT '{}',
        ADD CONSTRAINT placements_idle_held CHECK (idle <@ gpu_indices),
        ADD CONSTRAINT placements_idle_alone CHECK (alone OR idle = '{}')""",
)

FUNCTIONS = (
    """
    CREATE OR REPLACE FUNCTION placement_begins() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT FROM placements
                    WHERE job_id = NEW.job_id AND attempt <> NEW.attempt AND ended_at IS NULL) THEN
            RAISE EXCEPTION 'another attempt of job % is live', NEW.job_id
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE nodes
           SET cpu_milli_used = cpu_milli_used + NEW.cpu_milli,
               ram_mb_used = ram_mb_used + NEW.ram_mb,
               storage_mb_s_used = storage_mb_s_used + NEW.storage_mb_s,
               milliwatts_used = milliwatts_used + NEW.milliwatts,
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
                                  WHERE node_id = NEW.node_id AND epoch = NEW.epoch
                                    AND job_id <> NEW.job_id AND ended_at IS NULL) THEN
            RAISE EXCEPTION 'another job is on node %, which job % is to hold alone',
                NEW.node_id, NEW.job_id USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE OR REPLACE FUNCTION placement_ends() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL
           OR (NEW.job_id, NEW.attempt, NEW.rank, NEW.cycle_id, NEW.node_id, NEW.epoch,
               NEW.gpu_indices, NEW.cpu_milli, NEW.ram_mb, NEW.storage_mb_s, NEW.milliwatts,
               NEW.vram_mb, NEW.milli, NEW.slices, NEW.mig_profile, NEW.expected_seconds,
               NEW.decision, NEW.placed_at, NEW.alone, NEW.idle)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.rank, OLD.cycle_id, OLD.node_id, OLD.epoch,
               OLD.gpu_indices, OLD.cpu_milli, OLD.ram_mb, OLD.storage_mb_s, OLD.milliwatts,
               OLD.vram_mb, OLD.milli, OLD.slices, OLD.mig_profile, OLD.expected_seconds,
               OLD.decision, OLD.placed_at, OLD.alone, OLD.idle)
        THEN
            RAISE EXCEPTION 'placement %/% is never rewritten, it ends once',
                OLD.job_id, OLD.attempt USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE nodes
           SET cpu_milli_used = cpu_milli_used - NEW.cpu_milli,
               ram_mb_used = ram_mb_used - NEW.ram_mb,
               storage_mb_s_used = storage_mb_s_used - NEW.storage_mb_s,
               milliwatts_used = milliwatts_used - NEW.milliwatts,
               held_alone_by = CASE WHEN NEW.alone THEN NULL ELSE held_alone_by END
         WHERE id = NEW.node_id;
        UPDATE leases SET ended_at = NEW.ended_at, end_reason = NEW.end_reason
         WHERE job_id = NEW.job_id AND attempt = NEW.attempt AND rank = NEW.rank
           AND ended_at IS NULL;
        RETURN NEW;
    END $$""",
)
