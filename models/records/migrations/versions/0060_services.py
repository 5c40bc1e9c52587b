"""Services: revisions that are never rewritten, and replicas, each the job that runs an engine.

The database refuses a replica beyond `wanted + surge` of its service's revision, a second live
attempt of an engine is the matter of its job, and a revision that changes.
"""

from alembic import op

revision = "0060"
down_revision = "0059"


def upgrade() -> None:
    for statement in (*TABLES, *RULES):
        op.execute(statement)


TABLES = (
    """
    CREATE TABLE services (
        name text PRIMARY KEY,
        state text NOT NULL DEFAULT 'RUNNING',
        revision integer NOT NULL,
        replicas integer NOT NULL,
        model text CONSTRAINT services_model_fkey REFERENCES models (name),
        message text NOT NULL DEFAULT '',
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT replicas_are_counted CHECK (replicas >= 0),
        CONSTRAINT services_have_a_state CHECK (state IN ('RUNNING', 'REMOVING', 'REMOVED'))
    )""",
    """
    CREATE TABLE service_revisions (
        service text NOT NULL REFERENCES services,
        number integer NOT NULL,
        spec jsonb NOT NULL,
        engine jsonb NOT NULL,
        model_revision integer NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        ready_at timestamptz,
        failures integer NOT NULL DEFAULT 0,
        undone text,
        PRIMARY KEY (service, number)
    )""",
    """
    ALTER TABLE services ADD CONSTRAINT services_have_their_revision
        FOREIGN KEY (name, revision) REFERENCES service_revisions (service, number)
        DEFERRABLE INITIALLY DEFERRED""",
    """
    CREATE TABLE replicas (
        job_id text PRIMARY KEY,
        service text NOT NULL,
        revision integer NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        started boolean NOT NULL DEFAULT false,
        stopping_at timestamptz,
        stop_reason text,
        cancel_sent boolean NOT NULL DEFAULT false,
        attempt integer NOT NULL DEFAULT 0,
        stage text,
        endpoint text NOT NULL DEFAULT '',
        memory bigint NOT NULL DEFAULT 0,
        load_seconds double precision NOT NULL DEFAULT 0,
        failures integer NOT NULL DEFAULT 0,
        message text NOT NULL DEFAULT '',
        ready_at timestamptz,
        ended_at timestamptz,
        FOREIGN KEY (service, revision) REFERENCES service_revisions (service, number),
        CONSTRAINT engines_have_a_stage
            CHECK (stage IN ('loading', 'ready', 'draining', 'failed')),
        CONSTRAINT memory_is_counted CHECK (memory >= 0)
    )""",
    "CREATE INDEX replicas_live ON replicas (service) WHERE ended_at IS NULL",
    "CREATE INDEX replicas_by_revision ON replicas (service, revision, ended_at)",
)

RULES = (
    """
    CREATE FUNCTION revision_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (NEW.service, NEW.number, NEW.spec, NEW.engine, NEW.model_revision, NEW.created_at)
           IS DISTINCT FROM
           (OLD.service, OLD.number, OLD.spec, OLD.engine, OLD.model_revision, OLD.created_at) THEN
            RAISE EXCEPTION 'revision % of service % is never rewritten', OLD.number, OLD.service
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$""",
    """CREATE TRIGGER revision_is_kept BEFORE UPDATE ON service_revisions
       FOR EACH ROW EXECUTE FUNCTION revision_is_kept()""",
    # The row of the service is locked: two that begin replicas come one after the other.
    """
    CREATE FUNCTION replica_begins() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        its services%ROWTYPE;
        surge integer;
        live integer;
    BEGIN
        SELECT * INTO its FROM services WHERE name = NEW.service FOR NO KEY UPDATE;
        IF its.state <> 'RUNNING' OR its.revision <> NEW.revision THEN
            RAISE EXCEPTION 'service % begins no replica of revision %', NEW.service, NEW.revision
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'replica_wanted';
        END IF;
        SELECT coalesce((spec ->> 'surge')::integer, 1) INTO surge
          FROM service_revisions WHERE service = NEW.service AND number = NEW.revision;
        SELECT count(*) INTO live FROM replicas
         WHERE service = NEW.service AND ended_at IS NULL;
        IF live >= its.replicas + surge THEN
            RAISE EXCEPTION 'service % has % replicas, and % are wanted', NEW.service, live,
                its.replicas
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'replica_wanted';
        END IF;
        RETURN NEW;
    END $$""",
    """CREATE TRIGGER replica_begins BEFORE INSERT ON replicas
       FOR EACH ROW EXECUTE FUNCTION replica_begins()""",
)
