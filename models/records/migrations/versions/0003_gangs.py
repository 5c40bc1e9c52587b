"""Gangs: an attempt holds one placement on each of its nodes, told apart by rank.

What the database refuses besides: two ranks of one attempt on one node (unique index), and a
placement of another attempt while any rank of an attempt is live (trigger).
"""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for statement in (*COLUMNS, *FUNCTIONS):
        op.execute(statement)


COLUMNS = (
    """
    ALTER TABLE nodes
        ADD COLUMN address text NOT NULL DEFAULT '',
        ADD COLUMN topology jsonb,
        ADD COLUMN conformance text""",
    """
    ALTER TABLE placements
        ADD COLUMN rank integer NOT NULL DEFAULT 0 CHECK (rank >= 0)""",
    """
    ALTER TABLE leases
        ADD COLUMN rank integer NOT NULL DEFAULT 0,
        DROP CONSTRAINT leases_job_id_attempt_fkey""",
    """
    ALTER TABLE placements
        DROP CONSTRAINT placements_pkey,
        ADD PRIMARY KEY (job_id, attempt, rank)""",
    """
    ALTER TABLE leases
        ADD FOREIGN KEY (job_id, attempt, rank) REFERENCES placements (job_id, attempt, rank)""",
    "DROP INDEX placements_live",
    "CREATE UNIQUE INDEX placements_live ON placements (job_id, rank) WHERE ended_at IS NULL",
    """
    CREATE UNIQUE INDEX placements_one_rank_per_node ON placements (job_id, attempt, node_id)""",
    "DROP INDEX leases_by_job",
    "CREATE INDEX leases_by_job ON leases (job_id, attempt, rank)",
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
               ram_mb_used = ram_mb_used + NEW.ram_mb
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
               NEW.gpu_indices, NEW.cpu_milli, NEW.ram_mb, NEW.vram_mb, NEW.expected_seconds,
               NEW.decision, NEW.placed_at)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.rank, OLD.cycle_id, OLD.node_id, OLD.epoch,
               OLD.gpu_indices, OLD.cpu_milli, OLD.ram_mb, OLD.vram_mb, OLD.expected_seconds,
               OLD.decision, OLD.placed_at)
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
    """
    CREATE OR REPLACE FUNCTION lease_ends() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL
           OR (NEW.job_id, NEW.attempt, NEW.rank, NEW.node_id, NEW.epoch, NEW.gpu_index,
               NEW.vram_mb, NEW.tenant, NEW.started_at)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.rank, OLD.node_id, OLD.epoch, OLD.gpu_index,
               OLD.vram_mb, OLD.tenant, OLD.started_at)
        THEN
            RAISE EXCEPTION 'lease % is never rewritten, it ends once', OLD.id
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE gpus SET vram_mb_used = vram_mb_used - NEW.vram_mb
         WHERE node_id = NEW.node_id AND index = NEW.gpu_index;
        RETURN NEW;
    END $$""",
)
