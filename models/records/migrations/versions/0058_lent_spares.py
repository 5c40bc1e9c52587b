"""Spares that a gang lends: what borrows one stands on the GPUs that the gang holds and pays.

A placement that borrows has leases of its own, which say from whom (`borrowed_from`). They count
for nothing that is held: the GPU has its one live lease still, that of the spare, and the node the
cores and the RAM of the spare. So what borrows lives within one spare, and a node has the same
free, whether or not a spare of it is lent.

What the database refuses besides:

- to borrow where the named job holds no lendable spare live with all of these GPUs, or where what
  borrows there comes to more cores, RAM, storage bandwidth or power than the spare has;
- a second borrower of a GPU (unique index), and one while the gang takes its spares back;
- to borrow for a tenant without a budget, or for a job that may not be stopped;
- a charge on a placement that borrows;
- any other lease on a GPU that is lent: a spare takes no place while somebody runs on it.

The spare of the gang's next attempt goes on lending. Where the gang has none on these GPUs any
more as the transaction ends, what borrows keeps them as its own in that transaction (`kept_at`):
the leases that borrowed end as `kept`, and others begin with them.
"""

from alembic import op

revision = "0058"
down_revision = "0057"


def upgrade() -> None:
    for statement in (*COLUMNS, *PLACEMENTS, *LEASES, *LOANS, *TRIGGERS):
        op.execute(statement)


COLUMNS = (
    """
    ALTER TABLE placements
        ADD COLUMN lendable boolean NOT NULL DEFAULT false,
        ADD COLUMN borrowed_from text REFERENCES jobs,
        ADD COLUMN kept_at timestamptz,
        ADD CONSTRAINT placements_lend_spares CHECK (spare OR NOT lendable),
        ADD CONSTRAINT placements_kept_once_borrowed
            CHECK (kept_at IS NULL OR borrowed_from IS NOT NULL),
        ADD CONSTRAINT placements_kept_in_reach CHECK (in_reach(kept_at)),
        ADD CONSTRAINT placements_borrow_whole_gpus
            CHECK (borrowed_from IS NULL
                   OR rank = 0 AND NOT spare AND NOT alone AND milli = 1000 AND slices = 0)""",
    "ALTER TABLE leases ADD COLUMN borrowed_from text REFERENCES jobs",
    "ALTER TABLE gpus ADD COLUMN borrowed_by text REFERENCES jobs",
    """
    CREATE INDEX placements_borrowing ON placements (borrowed_from)
        WHERE borrowed_from IS NOT NULL AND ended_at IS NULL""",
    """
    CREATE INDEX placements_lendable ON placements (node_id)
        WHERE lendable AND ended_at IS NULL""",
    "DROP INDEX leases_one_per_gpu",
    """
    CREATE UNIQUE INDEX leases_one_per_gpu ON leases (node_id, gpu_index)
        WHERE ended_at IS NULL AND milli = 1000 AND borrowed_from IS NULL""",
    """
    CREATE UNIQUE INDEX leases_one_borrower_per_gpu ON leases (node_id, gpu_index)
        WHERE ended_at IS NULL AND borrowed_from IS NOT NULL""",
)

PLACEMENTS = (
    # Whoever is ending the spare is not waited for: it has locked what this one holds in another
    # order.
    """
    CREATE FUNCTION placement_borrows(its placements) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        lent placements%ROWTYPE;
        job record;
        wanted record;
    BEGIN
        SELECT * INTO lent FROM placements
         WHERE job_id = its.borrowed_from AND node_id = its.node_id AND epoch = its.epoch
           AND ended_at IS NULL AND lendable AND gpu_indices @> its.gpu_indices
         FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'job % lends no spare with GPUs % of node %', its.borrowed_from,
                its.gpu_indices, its.node_id
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'lent_spare';
        END IF;
        IF EXISTS (SELECT FROM preemptions
                    WHERE for_job = lent.job_id AND for_attempt = lent.attempt) THEN
            RAISE EXCEPTION 'job % is taking its spares back', lent.job_id
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'lent_spare';
        END IF;
        SELECT j.spec -> 'preemptible' IS DISTINCT FROM 'false'::jsonb AS may_stop, j.tenant,
               t.budget_since INTO job
          FROM jobs j LEFT JOIN tenants t ON t.name = j.tenant WHERE j.id = its.job_id;
        IF job.budget_since IS NULL OR NOT job.may_stop THEN
            RAISE EXCEPTION 'job % borrows no spare: %', its.job_id,
                CASE WHEN job.may_stop THEN format('tenant %s has no budget', job.tenant)
                     ELSE 'it may not be stopped' END
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'lent_to_unfunded';
        END IF;
        SELECT sum(cpu_milli) AS cpu, sum(ram_mb) AS ram, sum(storage_mb_s) AS storage,
               sum(milliwatts) AS power INTO wanted
          FROM placements
         WHERE borrowed_from = lent.job_id AND node_id = lent.node_id AND ended_at IS NULL
           AND kept_at IS NULL;
        IF wanted.cpu > lent.cpu_milli OR wanted.ram > lent.ram_mb
           OR EXISTS (SELECT FROM nodes
                       WHERE id = lent.node_id
                         AND (storage_mb_s IS NOT NULL AND wanted.storage > lent.storage_mb_s
                              OR milliwatts IS NOT NULL AND wanted.power > lent.milliwatts)) THEN
            RAISE EXCEPTION 'the spare of job % on node % has less than job % would use there',
                lent.job_id, lent.node_id, its.job_id
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'lent_room';
        END IF;
    END $$""",
    """
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
                                  WHERE node_id = NEW.node_id AND epoch = NEW.epoch
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
    END $$""",
    """
    CREATE OR REPLACE FUNCTION placement_ends() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        keeps boolean := OLD.kept_at IS NULL AND NEW.kept_at IS NOT NULL;
        sign integer := CASE WHEN OLD.kept_at IS NULL AND NEW.kept_at IS NOT NULL THEN 1
                             WHEN OLD.borrowed_from IS NULL OR OLD.kept_at IS NOT NULL THEN -1
                             ELSE 0 END;
    BEGIN
        IF OLD.ended_at IS NOT NULL OR (NEW.ended_at IS NULL) <> keeps
           OR (NEW.job_id, NEW.attempt, NEW.rank, NEW.cycle_id, NEW.node_id, NEW.epoch,
               NEW.gpu_indices, NEW.cpu_milli, NEW.ram_mb, NEW.storage_mb_s, NEW.milliwatts,
               NEW.vram_mb, NEW.milli, NEW.slices, NEW.mig_profile, NEW.expected_seconds,
               NEW.decision, NEW.placed_at, NEW.alone, NEW.idle, NEW.lendable, NEW.borrowed_from)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.rank, OLD.cycle_id, OLD.node_id, OLD.epoch,
               OLD.gpu_indices, OLD.cpu_milli, OLD.ram_mb, OLD.storage_mb_s, OLD.milliwatts,
               OLD.vram_mb, OLD.milli, OLD.slices, OLD.mig_profile, OLD.expected_seconds,
               OLD.decision, OLD.placed_at, OLD.alone, OLD.idle, OLD.lendable, OLD.borrowed_from)
           OR (NOT keeps AND NEW.kept_at IS DISTINCT FROM OLD.kept_at)
        THEN
            RAISE EXCEPTION 'placement %/% is never rewritten, it ends once',
                OLD.job_id, OLD.attempt USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE nodes
           SET cpu_milli_used = cpu_milli_used + sign * NEW.cpu_milli,
               ram_mb_used = ram_mb_used + sign * NEW.ram_mb,
               storage_mb_s_used = storage_mb_s_used + sign * NEW.storage_mb_s,
               milliwatts_used = milliwatts_used + sign * NEW.milliwatts,
               held_alone_by = CASE WHEN NEW.alone THEN NULL ELSE held_alone_by END
         WHERE id = NEW.node_id;
        UPDATE leases SET ended_at = CASE WHEN keeps THEN NEW.kept_at ELSE NEW.ended_at END,
               end_reason = CASE WHEN keeps THEN 'kept' ELSE NEW.end_reason END
         WHERE job_id = NEW.job_id AND attempt = NEW.attempt AND rank = NEW.rank
           AND ended_at IS NULL;
        IF keeps THEN
            INSERT INTO leases (job_id, attempt, rank, node_id, epoch, gpu_index, vram_mb, milli,
                                slices, mig_profile, tenant, started_at)
            SELECT job_id, attempt, rank, node_id, epoch, gpu_index, vram_mb, milli, slices,
                   mig_profile, tenant, NEW.kept_at
              FROM leases
             WHERE job_id = NEW.job_id AND attempt = NEW.attempt AND rank = NEW.rank
               AND borrowed_from IS NOT NULL;
        END IF;
        RETURN NEW;
    END $$""",
)

LEASES = (
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
        IF NEW.borrowed_from IS NOT NULL THEN
            IF NEW.vram_mb > gpu.vram_mb OR NOT EXISTS (
                   SELECT FROM placements
                    WHERE (job_id, attempt, rank) = (NEW.job_id, NEW.attempt, NEW.rank)
                      AND borrowed_from = NEW.borrowed_from AND kept_at IS NULL
                      AND NEW.gpu_index = ANY (gpu_indices)) THEN
                RAISE EXCEPTION 'placement %/% does not borrow GPU % of node %', NEW.job_id,
                    NEW.attempt, NEW.gpu_index, NEW.node_id
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'lent_spare';
            END IF;
            UPDATE gpus SET borrowed_by = NEW.job_id
             WHERE node_id = NEW.node_id AND index = NEW.gpu_index;
            RETURN NEW;
        END IF;
        IF gpu.borrowed_by IS NOT NULL AND NOT EXISTS (
               SELECT FROM placements s
                 JOIN placements b ON b.borrowed_from = s.job_id AND b.node_id = s.node_id
                WHERE (s.job_id, s.attempt, s.rank) = (NEW.job_id, NEW.attempt, NEW.rank)
                  AND s.lendable AND b.job_id = gpu.borrowed_by AND b.ended_at IS NULL) THEN
            RAISE EXCEPTION 'GPU % of node % is lent to job %', NEW.gpu_index, NEW.node_id,
                gpu.borrowed_by
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'lent_once';
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
               NEW.vram_mb, NEW.milli, NEW.slices, NEW.mig_profile, NEW.tenant, NEW.started_at,
               NEW.borrowed_from)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.rank, OLD.node_id, OLD.epoch, OLD.gpu_index,
               OLD.vram_mb, OLD.milli, OLD.slices, OLD.mig_profile, OLD.tenant, OLD.started_at,
               OLD.borrowed_from)
        THEN
            RAISE EXCEPTION 'lease % is never rewritten, it ends once', OLD.id
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        IF NEW.borrowed_from IS NOT NULL THEN
            UPDATE gpus SET borrowed_by = NULL
             WHERE node_id = NEW.node_id AND index = NEW.gpu_index;
            RETURN NEW;
        END IF;
        UPDATE gpus
           SET vram_mb_used = vram_mb_used - NEW.vram_mb, milli_used = milli_used - NEW.milli,
               slices_used = slices_used & ~NEW.slices,
               kind = CASE WHEN milli_used > NEW.milli OR slices_used & ~NEW.slices <> 0
                           THEN kind END
         WHERE node_id = NEW.node_id AND index = NEW.gpu_index;
        RETURN NEW;
    END $$""",
)

LOANS = (
    # As the transaction ends: a swap ends the spare, and begins it anew in the next attempt.
    """
    CREATE FUNCTION loans_end() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE placements b
           SET kept_at = greatest(NEW.ended_at, b.placed_at)
         WHERE b.borrowed_from = NEW.job_id AND b.node_id = NEW.node_id AND b.epoch = NEW.epoch
           AND b.ended_at IS NULL AND b.kept_at IS NULL AND b.gpu_indices <@ NEW.gpu_indices
           AND NOT EXISTS (SELECT FROM placements s
                            WHERE s.job_id = NEW.job_id AND s.node_id = NEW.node_id
                              AND s.epoch = NEW.epoch AND s.ended_at IS NULL AND s.lendable
                              AND s.gpu_indices @> b.gpu_indices);
        RETURN NULL;
    END $$""",
    """
    CREATE FUNCTION nobody_pays_for_loans() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        wrong record;
    BEGIN
        SELECT p.job_id, p.attempt INTO wrong
          FROM opened o JOIN placements p USING (job_id, attempt, rank)
         WHERE p.borrowed_from IS NOT NULL AND p.kept_at IS NULL LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'placement %/% is on a spare that another job pays for',
                wrong.job_id, wrong.attempt
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'charges_spare';
        END IF;
        RETURN NULL;
    END $$""",
)

TRIGGERS = (
    """CREATE CONSTRAINT TRIGGER loans_end AFTER UPDATE ON placements
       DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
       WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.lendable)
       EXECUTE FUNCTION loans_end()""",
    """CREATE TRIGGER nobody_pays_for_loans AFTER INSERT ON charges
       REFERENCING NEW TABLE AS opened
       FOR EACH STATEMENT EXECUTE FUNCTION nobody_pays_for_loans()""",
)
