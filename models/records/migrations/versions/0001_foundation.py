"""The foundation: pools, nodes, jobs, queue, cycles, placements and leases.

What the database refuses, whatever the code does:

- a second live lease on one GPU (unique index), a lease on a GPU that is not there or has less
  memory free than it takes (check), a second live placement of one job (unique index);
- a placement on a node that is not READY, or of another epoch than the node's (trigger): fencing;
- cores or memory of a node over their size (check);
- any change of a lease or placement but its one end (trigger), and its removal.

A placement's end ends its leases, and gives back what they took, in the same statement.
"""

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    for statement in (*TABLES, *FUNCTIONS, *TRIGGERS):
        op.execute(statement)


TABLES = (
    """
    CREATE TABLE pools (
        name text PRIMARY KEY,
        spec jsonb NOT NULL,
        poked boolean NOT NULL DEFAULT false,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )""",
    """
    CREATE TABLE blocks (
        id text PRIMARY KEY,
        provider text NOT NULL,
        instance_type text NOT NULL,
        tier text NOT NULL CHECK (tier IN ('FAST', 'FLEX')),
        starts_at timestamptz,
        ends_at timestamptz CHECK (ends_at > starts_at),
        price_micro_per_gpu_hour bigint NOT NULL CHECK (price_micro_per_gpu_hour >= 0),
        created_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )""",
    """
    CREATE TABLE nodes (
        id text PRIMARY KEY,
        pool text NOT NULL REFERENCES pools (name),
        block_id text REFERENCES blocks (id),
        provider text NOT NULL,
        tier text NOT NULL CHECK (tier IN ('FAST', 'FLEX')),
        state text NOT NULL CHECK (state IN ('READY', 'DRAINING', 'LOST', 'GONE')),
        state_reason text NOT NULL,
        state_since timestamptz NOT NULL DEFAULT clock_timestamp(),
        drain_reason text,
        epoch integer NOT NULL CHECK (epoch > 0),
        agent_id text NOT NULL,
        boot_id text NOT NULL,
        hostname text NOT NULL,
        agent_version text NOT NULL,
        simulated boolean NOT NULL,
        gpu_type text NOT NULL,
        container_runtime text,
        cpu_milli bigint NOT NULL CHECK (cpu_milli >= 0),
        cpu_milli_used bigint NOT NULL DEFAULT 0
            CONSTRAINT nodes_cpu_within_size CHECK (cpu_milli_used BETWEEN 0 AND cpu_milli),
        ram_mb bigint NOT NULL CHECK (ram_mb >= 0),
        ram_mb_used bigint NOT NULL DEFAULT 0
            CONSTRAINT nodes_ram_within_size CHECK (ram_mb_used BETWEEN 0 AND ram_mb),
        labels jsonb NOT NULL,
        expires_at timestamptz,
        registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )""",
    "CREATE INDEX nodes_by_pool ON nodes (pool)",
    """
    CREATE TABLE gpus (
        node_id text NOT NULL REFERENCES nodes (id),
        index integer NOT NULL CHECK (index >= 0),
        model text NOT NULL,
        uuid text NOT NULL,
        vram_mb bigint NOT NULL CHECK (vram_mb >= 0),
        vram_mb_used bigint NOT NULL DEFAULT 0
            CONSTRAINT gpus_vram_within_size CHECK (vram_mb_used BETWEEN 0 AND vram_mb),
        PRIMARY KEY (node_id, index)
    )""",
    """
    CREATE TABLE jobs (
        id text PRIMARY KEY,
        name text NOT NULL,
        tenant text NOT NULL,
        pool text NOT NULL REFERENCES pools (name),
        key text,
        spec jsonb NOT NULL,
        submitted_at timestamptz NOT NULL,
        ended_at timestamptz,
        end_state text CHECK (end_state IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
        failure text,
        exit_code integer,
        message text NOT NULL,
        attempts integer NOT NULL DEFAULT 0,
        CONSTRAINT jobs_end_is_whole CHECK ((ended_at IS NULL) = (end_state IS NULL))
    )""",
    "CREATE INDEX jobs_by_submission ON jobs (submitted_at)",
    "CREATE UNIQUE INDEX jobs_by_key ON jobs (tenant, name, key) WHERE key IS NOT NULL",
    """
    CREATE TABLE queue (
        job_id text PRIMARY KEY REFERENCES jobs (id),
        attempt integer NOT NULL CHECK (attempt > 0),
        pool text NOT NULL REFERENCES pools (name),
        held boolean NOT NULL,
        priority integer NOT NULL CHECK (priority BETWEEN 0 AND 10),
        request jsonb NOT NULL,
        submitted_at timestamptz NOT NULL,
        queued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        decision jsonb,
        decided_at timestamptz,
        told_at timestamptz,
        told_reason text
    )""",
    "CREATE INDEX queue_order ON queue (pool, priority DESC, submitted_at)",
    """
    CREATE TABLE cycles (
        id text PRIMARY KEY,
        pool text NOT NULL REFERENCES pools (name),
        committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        queued integer NOT NULL,
        placed integer NOT NULL,
        refused integer NOT NULL,
        took_ms double precision NOT NULL
    )""",
    "CREATE INDEX cycles_by_time ON cycles (pool, committed_at)",
    """
    CREATE TABLE placements (
        job_id text NOT NULL REFERENCES jobs (id),
        attempt integer NOT NULL CHECK (attempt > 0),
        cycle_id text NOT NULL REFERENCES cycles (id),
        node_id text NOT NULL REFERENCES nodes (id),
        epoch integer NOT NULL,
        gpu_indices integer[] NOT NULL CHECK (cardinality(gpu_indices) > 0),
        cpu_milli bigint NOT NULL CHECK (cpu_milli >= 0),
        ram_mb bigint NOT NULL CHECK (ram_mb >= 0),
        vram_mb bigint NOT NULL CHECK (vram_mb >= 0),
        expected_seconds double precision NOT NULL,
        decision jsonb NOT NULL,
        placed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended_at timestamptz,
        end_reason text,
        end_message text NOT NULL DEFAULT '',
        PRIMARY KEY (job_id, attempt),
        CONSTRAINT placements_end_has_reason CHECK ((ended_at IS NULL) = (end_reason IS NULL))
    )""",
    "CREATE INDEX placements_by_cycle ON placements (cycle_id)",
    "CREATE INDEX placements_by_node ON placements (node_id, epoch)",
    "CREATE UNIQUE INDEX placements_live ON placements (job_id) WHERE ended_at IS NULL",
    """
    CREATE TABLE leases (
        id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        job_id text NOT NULL,
        attempt integer NOT NULL,
        node_id text NOT NULL REFERENCES nodes (id),
        epoch integer NOT NULL,
        gpu_index integer NOT NULL,
        vram_mb bigint NOT NULL CHECK (vram_mb >= 0),
        tenant text NOT NULL,
        started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended_at timestamptz,
        end_reason text,
        CONSTRAINT leases_end_has_reason CHECK ((ended_at IS NULL) = (end_reason IS NULL)),
        FOREIGN KEY (job_id, attempt) REFERENCES placements (job_id, attempt)
    )""",
    """
    CREATE UNIQUE INDEX leases_one_per_gpu ON leases (node_id, gpu_index)
        WHERE ended_at IS NULL""",
    "CREATE INDEX leases_by_job ON leases (job_id, attempt)",
)

FUNCTIONS = (
    """
    CREATE FUNCTION placement_begins() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
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
    CREATE FUNCTION placement_ends() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL
           OR (NEW.job_id, NEW.attempt, NEW.cycle_id, NEW.node_id, NEW.epoch, NEW.gpu_indices,
               NEW.cpu_milli, NEW.ram_mb, NEW.vram_mb, NEW.expected_seconds, NEW.decision,
               NEW.placed_at)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.cycle_id, OLD.node_id, OLD.epoch, OLD.gpu_indices,
               OLD.cpu_milli, OLD.ram_mb, OLD.vram_mb, OLD.expected_seconds, OLD.decision,
               OLD.placed_at)
        THEN
            RAISE EXCEPTION 'placement %/% is never rewritten, it ends once',
                OLD.job_id, OLD.attempt USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE nodes
           SET cpu_milli_used = cpu_milli_used - NEW.cpu_milli,
               ram_mb_used = ram_mb_used - NEW.ram_mb
         WHERE id = NEW.node_id;
        UPDATE leases SET ended_at = NEW.ended_at, end_reason = NEW.end_reason
         WHERE job_id = NEW.job_id AND attempt = NEW.attempt AND ended_at IS NULL;
        RETURN NEW;
    END $$""",
    """
    CREATE FUNCTION lease_begins() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE gpus SET vram_mb_used = vram_mb_used + NEW.vram_mb
         WHERE node_id = NEW.node_id AND index = NEW.gpu_index;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'node % has no GPU %', NEW.node_id, NEW.gpu_index
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE FUNCTION lease_ends() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF OLD.ended_at IS NOT NULL OR NEW.ended_at IS NULL
           OR (NEW.job_id, NEW.attempt, NEW.node_id, NEW.epoch, NEW.gpu_index, NEW.vram_mb,
               NEW.tenant, NEW.started_at)
              IS DISTINCT FROM
              (OLD.job_id, OLD.attempt, OLD.node_id, OLD.epoch, OLD.gpu_index, OLD.vram_mb,
               OLD.tenant, OLD.started_at)
        THEN
            RAISE EXCEPTION 'lease % is never rewritten, it ends once', OLD.id
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        UPDATE gpus SET vram_mb_used = vram_mb_used - NEW.vram_mb
         WHERE node_id = NEW.node_id AND index = NEW.gpu_index;
        RETURN NEW;
    END $$""",
    """
    CREATE FUNCTION kept_for_ever() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'rows of % are never removed', TG_TABLE_NAME
            USING ERRCODE = 'integrity_constraint_violation';
    END $$""",
)

TRIGGERS = (
    """CREATE TRIGGER placement_begins AFTER INSERT ON placements
       FOR EACH ROW EXECUTE FUNCTION placement_begins()""",
    """CREATE TRIGGER placement_ends AFTER UPDATE ON placements
       FOR EACH ROW EXECUTE FUNCTION placement_ends()""",
    """CREATE TRIGGER lease_begins AFTER INSERT ON leases
       FOR EACH ROW EXECUTE FUNCTION lease_begins()""",
    """CREATE TRIGGER lease_ends AFTER UPDATE ON leases
       FOR EACH ROW EXECUTE FUNCTION lease_ends()""",
    """CREATE TRIGGER placements_kept BEFORE DELETE ON placements
       FOR EACH ROW EXECUTE FUNCTION kept_for_ever()""",
    """CREATE TRIGGER leases_kept BEFORE DELETE ON leases
       FOR EACH ROW EXECUTE FUNCTION kept_for_ever()""",
    """CREATE TRIGGER placements_kept_whole BEFORE TRUNCATE ON placements
       FOR EACH STATEMENT EXECUTE FUNCTION kept_for_ever()""",
    """CREATE TRIGGER leases_kept_whole BEFORE TRUNCATE ON leases
       FOR EACH STATEMENT EXECUTE FUNCTION kept_for_ever()""",
)
