"""Storage bandwidth and power: amounts of a node like its cores and RAM.

A node that names no size of one is not limited in it, so its check holds for any use; what is used
is counted all the same.
"""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    for statement in (*COLUMNS, *FUNCTIONS):
        op.execute(statement)


COLUMNS = (
    """
    ALTER TABLE nodes
        ADD COLUMN storage_mb_s bigint CHECK (storage_mb_s >= 0),
        ADD COLUMN storage_mb_s_used bigint NOT NULL DEFAULT 0,
        ADD COLUMN milliwatts bigint CHECK (milliwatts >= 0),
        ADD COLUMN milliwatts_used bigint NOT NULL DEFAULT 0,
        ADD COLUMN gpu_milliwatts bigint NOT NULL DEFAULT 0 CHECK (gpu_milliwatts >= 0),
        ADD CONSTRAINT nodes_storage_within_size
            CHECK (storage_mb_s_used >= 0 AND storage_mb_s_used <= storage_mb_s),
        ADD CONSTRAINT nodes_power_within_size
            CHECK (milliwatts_used >= 0 AND milliwatts_used <= milliwatts)""",
    """
    ALTER TABLE placements
        ADD COLUMN storage_mb_s bigint NOT NULL DEFAULT 0 CHECK (storage_mb_s >= 0),
        ADD COLUMN milliwatts bigint NOT NULL DEFAULT 0 CHECK (milliwatts >= 0)""",
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
               milliwatts_used = milliwatts_used + NEW.milliwatts
         WHERE id = NEW.node_id AND epoch = NEW.epoch AND state = 'READY';
        IF NOT FOUND THEN
            RAISE EXCEPTION 'node % is not ready in epoch %', NEW.node_id, NEW.epoch
                USING ERRCODE = 'integrity_constraint_violation';
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
               NEW.decision, NEW.placed_at)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.rank, OLD.cycle_id, OLD.node_id, OLD.epoch,
               OLD.gpu_indices, OLD.cpu_milli, OLD.ram_mb, OLD.storage_mb_s, OLD.milliwatts,
               OLD.vram_mb, OLD.milli, OLD.slices, OLD.mig_profile, OLD.expected_seconds,
               OLD.decision, OLD.placed_at)
        THEN
            RAISE EXCEPTION 'placement %/% is never rewritten, it ends once',
                OLD.job_id, OLD.attempt USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE nodes
           SET cpu_milli_used = cpu_milli_used - NEW.cpu_milli,
               ram_mb_used = ram_mb_used - NEW.ram_mb,
               storage_mb_s_used = storage_mb_s_used - NEW.storage_mb_s,
               milliwatts_used = milliwatts_used - NEW.milliwatts
         WHERE id = NEW.node_id;
        UPDATE leases SET ended_at = NEW.ended_at, end_reason = NEW.end_reason
         WHERE job_id = NEW.job_id AND attempt = NEW.attempt AND rank = NEW.rank
           AND ended_at IS NULL;
        RETURN NEW;
    END $$""",
)
