"""Shared GPUs: a lease is of a whole GPU, of thousandths of it, or of slices of one in MIG mode.

What the database refuses besides, for each GPU by itself:

- a whole lease where anything is leased, and anything where a whole lease is (trigger);
- more than 1000 thousandths (check), and memory over its size as before;
- slices that overlap, or that are no position of the profile on that GPU, or a MIG lease on a GPU
  that is not in MIG mode (trigger);
- two kinds of lease on one GPU at one time (trigger).
"""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for statement in (*COLUMNS, *FUNCTIONS):
        op.execute(statement)


COLUMNS = (
    """
    ALTER TABLE gpus
        ADD COLUMN kind text CHECK (kind IN ('whole', 'share', 'mig')),
        ADD COLUMN milli_used integer NOT NULL DEFAULT 0
            CONSTRAINT gpus_milli_within_size CHECK (milli_used BETWEEN 0 AND 1000),
        ADD COLUMN mig jsonb,
        ADD COLUMN mig_instances jsonb,
        ADD COLUMN slices_used integer NOT NULL DEFAULT 0 CHECK (slices_used BETWEEN 0 AND 255),
        ADD CONSTRAINT gpus_kind_is_of_use
            CHECK ((kind IS NULL) = (milli_used = 0 AND slices_used = 0))""",
    """
    ALTER TABLE placements
        ADD COLUMN milli integer NOT NULL DEFAULT 1000,
        ADD COLUMN slices integer NOT NULL DEFAULT 0,
        ADD COLUMN mig_profile text""",
    """
    ALTER TABLE leases
        ADD COLUMN milli integer NOT NULL DEFAULT 1000 CHECK (milli BETWEEN 0 AND 1000),
        ADD COLUMN slices integer NOT NULL DEFAULT 0 CHECK (slices BETWEEN 0 AND 255),
        ADD COLUMN mig_profile text,
        ADD CONSTRAINT leases_are_of_one_kind
            CHECK ((mig_profile IS NOT NULL) = (slices > 0)
                   AND (mig_profile IS NOT NULL) = (milli = 0))""",
    "DROP INDEX leases_one_per_gpu",
    """
    CREATE UNIQUE INDEX leases_one_per_gpu ON leases (node_id, gpu_index)
        WHERE ended_at IS NULL AND milli = 1000""",
    "CREATE INDEX leases_by_gpu ON leases (node_id, gpu_index) WHERE ended_at IS NULL",
    """
    UPDATE gpus g SET kind = 'whole', milli_used = 1000
      FROM leases l
     WHERE l.node_id = g.node_id AND l.gpu_index = g.index AND l.ended_at IS NULL""",
)

FUNCTIONS = (
    """
    CREATE FUNCTION lease_kind(milli integer, mig_profile text) RETURNS text
    LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE WHEN mig_profile IS NOT NULL THEN 'mig'
                    WHEN milli = 1000 THEN 'whole' ELSE 'share' END
    $$""",
    """
    CREATE OR REPLACE FUNCTION lease_begins() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        wanted text := lease_kind(NEW.milli, NEW.mig_profile);
        gpu gpus%ROWTYPE;
    BEGIN
        SELECT * INTO gpu FROM gpus
         WHERE node_id = NEW.node_id AND index = NEW.gpu_index FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'node % has no GPU %', NEW.node_id, NEW.gpu_index
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF gpu.kind IS NOT NULL AND (gpu.kind <> wanted OR wanted = 'whole') THEN
            RAISE EXCEPTION 'GPU % of node % is leased as %, not free for a lease as %',
                NEW.gpu_index, NEW.node_id, gpu.kind, wanted
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF (gpu.mig IS NOT NULL) <> (wanted = 'mig') THEN
            RAISE EXCEPTION 'GPU % of node % is % MIG mode: no lease as % there',
                NEW.gpu_index, NEW.node_id,
                CASE WHEN gpu.mig IS NULL THEN 'not in' ELSE 'in' END, wanted
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF gpu.slices_used & NEW.slices <> 0 THEN
            RAISE EXCEPTION 'slices % of GPU % of node % are leased already',
                NEW.slices, NEW.gpu_index, NEW.node_id
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF wanted = 'mig'
           AND NOT coalesce(gpu.mig -> NEW.mig_profile @> to_jsonb(NEW.slices), false) THEN
            RAISE EXCEPTION 'slices % of GPU % of node % are no position of %',
                NEW.slices, NEW.gpu_index, NEW.node_id, NEW.mig_profile
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE gpus
           SET vram_mb_used = vram_mb_used + NEW.vram_mb, milli_used = milli_used + NEW.milli,
               slices_used = slices_used | NEW.slices, kind = wanted
         WHERE node_id = NEW.node_id AND index = NEW.gpu_index;
        RETURN NEW;
    END $$""",
    """
    CREATE OR REPLACE FUNCTION lease_ends() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL
           OR (NEW.job_id, NEW.attempt, NEW.rank, NEW.node_id, NEW.epoch, NEW.gpu_index,
               NEW.vram_mb, NEW.milli, NEW.slices, NEW.mig_profile, NEW.tenant, NEW.started_at)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.rank, OLD.node_id, OLD.epoch, OLD.gpu_index,
               OLD.vram_mb, OLD.milli, OLD.slices, OLD.mig_profile, OLD.tenant, OLD.started_at)
        THEN
            RAISE EXCEPTION 'lease % is never rewritten, it ends once', OLD.id
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE gpus
           SET vram_mb_used = vram_mb_used - NEW.vram_mb, milli_used = milli_used - NEW.milli,
               slices_used = slices_used & ~NEW.slices,
               kind = CASE WHEN milli_used > NEW.milli OR slices_used & ~NEW.slices <> 0
                           THEN kind END
         WHERE node_id = NEW.node_id AND index = NEW.gpu_index;
        RETURN NEW;
    END $$""",
    """
    CREATE OR REPLACE FUNCTION placement_ends() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL
           OR (NEW.job_id, NEW.attempt, NEW.rank, NEW.cycle_id, NEW.node_id, NEW.epoch,
               NEW.gpu_indices, NEW.cpu_milli, NEW.ram_mb, NEW.vram_mb, NEW.milli, NEW.slices,
               NEW.mig_profile, NEW.expected_seconds, NEW.decision, NEW.placed_at)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.rank, OLD.cycle_id, OLD.node_id, OLD.epoch,
               OLD.gpu_indices, OLD.cpu_milli, OLD.ram_mb, OLD.vram_mb, OLD.milli, OLD.slices,
               OLD.mig_profile, OLD.expected_seconds, OLD.decision, OLD.placed_at)
        THEN
            RAISE EXCEPTION 'placement %/% is never rewritten, it ends once',
                OLD.job_id, OLD.attempt USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE nodes
           SET cpu_milli_used = cpu_milli_used - NEW.cpu_milli,
               ram_mb_used = ram_mb_used - NEW.ram_mb
         WHERE id = NEW.node_id;
        UPDATE leases SET ended_at = NEW.ended_at, end_reason = NEW.end_reason
         WHERE job_id = NEW.job_id AND attempt = NEW.attempt AND rank = NEW.rank
           AND ended_at IS NULL;
        RETURN NEW;
    END $$""",
)
