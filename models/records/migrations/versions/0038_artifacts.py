"""Artifacts: which snapshots and objects the artifact store holds, and what keeps them there."""

from alembic import op

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    for statement in (*TABLES, *RULES):
        op.execute(statement)


TABLES = (
    # `going`: its removal has begun. Nothing can count on it any more; there is no way back.
    """
    CREATE TABLE artifact_objects (
        tenant text NOT NULL,
        name text NOT NULL,
        bytes bigint NOT NULL CHECK (bytes > 0),
        leased_until timestamptz NOT NULL,
        going boolean NOT NULL DEFAULT false,
        PRIMARY KEY (tenant, name)
    )""",
    "CREATE INDEX artifact_objects_by_lease ON artifact_objects (leased_until)",
    """
    CREATE TABLE snapshots (
        tenant text NOT NULL,
        digest text NOT NULL,
        files integer NOT NULL CHECK (files >= 0),
        bytes bigint NOT NULL CHECK (bytes >= 0),
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        leased_until timestamptz NOT NULL,
        going boolean NOT NULL DEFAULT false,
        PRIMARY KEY (tenant, digest)
    )""",
    "CREATE INDEX snapshots_by_lease ON snapshots (leased_until)",
    """
    CREATE TABLE snapshot_objects (
        tenant text NOT NULL,
        digest text NOT NULL,
        object text NOT NULL,
        PRIMARY KEY (tenant, digest, object),
        FOREIGN KEY (tenant, digest) REFERENCES snapshots ON DELETE CASCADE,
        FOREIGN KEY (tenant, object) REFERENCES artifact_objects (tenant, name)
    )""",
    "CREATE INDEX snapshot_objects_by_object ON snapshot_objects (tenant, object)",
    # Of what has no row of its own in `jobs` or `dags`: a schedule.
    """
    CREATE TABLE snapshot_holders (
        tenant text NOT NULL,
        digest text NOT NULL,
        holder text NOT NULL,
        PRIMARY KEY (tenant, digest, holder),
        FOREIGN KEY (tenant, digest) REFERENCES snapshots
    )""",
    """
    CREATE INDEX jobs_by_snapshot ON jobs (tenant, (spec->'code'->>'snapshot'))
     WHERE spec->'code'->>'snapshot' IS NOT NULL""",
)

RULES = (
    # Whoever counts on something locks it, and finds it going or not: FOR SHARE waits for whoever
    # is about to remove it, and is waited for.
    """
    CREATE FUNCTION refuse_object_that_goes() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM FROM artifact_objects
          WHERE tenant = NEW.tenant AND name = NEW.object AND NOT going FOR SHARE;
        IF NOT FOUND THEN
            RAISE foreign_key_violation USING MESSAGE =
                format('the object %s of %s is not stored, or is being removed',
                       NEW.object, NEW.tenant);
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE TRIGGER a_snapshot_counts_on_objects_that_stay
    BEFORE INSERT ON snapshot_objects FOR EACH ROW EXECUTE FUNCTION refuse_object_that_goes()""",
    """
    CREATE FUNCTION refuse_snapshot_that_goes() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM FROM snapshots
          WHERE tenant = NEW.tenant AND digest = NEW.digest AND NOT going FOR SHARE;
        IF NOT FOUND THEN
            RAISE foreign_key_violation USING MESSAGE =
                format('the snapshot %s of %s is not stored, or is being removed',
                       NEW.digest, NEW.tenant);
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE TRIGGER a_holder_counts_on_a_snapshot_that_stays
    BEFORE INSERT ON snapshot_holders FOR EACH ROW EXECUTE FUNCTION refuse_snapshot_that_goes()""",
    """
    CREATE FUNCTION refuse_going_in_use() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_TABLE_NAME = 'artifact_objects' THEN
            IF EXISTS (SELECT FROM snapshot_objects
                        WHERE tenant = NEW.tenant AND object = to_jsonb(NEW)->>'name') THEN
                RAISE foreign_key_violation USING MESSAGE = 'a snapshot needs the object';
            END IF;
        ELSIF EXISTS (SELECT FROM snapshot_holders h
                       WHERE h.tenant = NEW.tenant AND h.digest = to_jsonb(NEW)->>'digest')
           OR EXISTS (SELECT FROM jobs j
                       WHERE j.tenant = NEW.tenant AND j.ended_at IS NULL
                         AND j.spec->'code'->>'snapshot' = to_jsonb(NEW)->>'digest')
           OR EXISTS (SELECT FROM dags d
                       WHERE d.tenant = NEW.tenant AND d.ended_at IS NULL
                         AND position(to_jsonb(NEW)->>'digest' IN d.spec::text) > 0) THEN
            RAISE foreign_key_violation USING MESSAGE = 'something needs the snapshot';
        END IF;
        RETURN NEW;
    END $$""",
    *(
        f"""
        CREATE TRIGGER what_is_needed_stays
        BEFORE UPDATE OF going ON {table} FOR EACH ROW WHEN (NEW.going)
        EXECUTE FUNCTION refuse_going_in_use()"""
        for table in ("artifact_objects", "snapshots")
    ),
)
