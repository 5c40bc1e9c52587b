"""Models that are served, and the runtimes that serve them.

What the database refuses, whatever the code does:

- a model of a runtime that is neither built in nor in the table, and the removal of a runtime
  that models have (foreign key);
- a change or the removal of the row of a runtime that is built in;
- another name; another memory rule or way to split of a runtime that models have: what is stored
  of them was checked by those.

A revision rises by 1 with each change of what is stored, and with nothing else.
"""

from alembic import op

revision = "0059"
down_revision = "0058"


def upgrade() -> None:
    for statement in (*TABLES, *FUNCTIONS, *TRIGGERS):
        op.execute(statement)


TABLES = (
    """
    CREATE TABLE runtimes (
        name text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 63),
        spec jsonb,
        revision integer NOT NULL DEFAULT 1 CHECK (revision > 0),
        changed_by text NOT NULL DEFAULT '',
        changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT runtimes_spec
            CHECK (spec IS NULL
                   OR jsonb_typeof(spec) = 'object'
                      AND (spec ->> 'name') IS NOT DISTINCT FROM name),
        CONSTRAINT runtimes_times_in_reach CHECK (in_reach(changed_at) AND in_reach(created_at))
    )""",
    "INSERT INTO runtimes (name) VALUES ('llama.cpp'), ('ollama'), ('vllm')",
    """
    CREATE TABLE models (
        name text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 63),
        runtime text NOT NULL CONSTRAINT models_runtime_fkey REFERENCES runtimes (name),
        spec jsonb NOT NULL,
        facts jsonb,
        revision integer NOT NULL DEFAULT 1 CHECK (revision > 0),
        changed_by text NOT NULL DEFAULT '',
        changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT models_spec
            CHECK (jsonb_typeof(spec) = 'object' AND (spec ->> 'name') IS NOT DISTINCT FROM name
                   AND (spec ->> 'runtime') IS NOT DISTINCT FROM runtime),
        CONSTRAINT models_facts CHECK (jsonb_typeof(facts) = 'object'),
        CONSTRAINT models_times_in_reach CHECK (in_reach(changed_at) AND in_reach(created_at))
    )""",
    "CREATE INDEX models_by_runtime ON models (runtime)",
)

FUNCTIONS = (
    """
    CREATE FUNCTION registered_changes() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (NEW.name, NEW.created_at) IS DISTINCT FROM (OLD.name, OLD.created_at) THEN
            RAISE EXCEPTION '% keeps its name', OLD.name
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
        NEW.revision := OLD.revision;
        IF to_jsonb(NEW) - 'changed_by' - 'changed_at'
           IS DISTINCT FROM to_jsonb(OLD) - 'changed_by' - 'changed_at' THEN
            NEW.revision := OLD.revision + 1;
            NEW.changed_at := clock_timestamp();
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE FUNCTION runtime_changes() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        its text;
    BEGIN
        IF OLD.spec IS NULL THEN
            RAISE EXCEPTION '% is built in: it is neither changed nor removed', OLD.name
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'runtimes_built_in';
        END IF;
        IF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        IF (NEW.spec -> 'memory', NEW.spec -> 'split')
           IS DISTINCT FROM (OLD.spec -> 'memory', OLD.spec -> 'split') THEN
            SELECT min(name) INTO its FROM models WHERE runtime = OLD.name;
            IF its IS NOT NULL THEN
                RAISE EXCEPTION
                    '% keeps memory and split while models have it, such as %: add it with '
                    'another name, and the models with that', OLD.name, its
                    USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'runtimes_used';
            END IF;
        END IF;
        RETURN NEW;
    END $$""",
)

TRIGGERS = (
    """CREATE TRIGGER runtime_changes BEFORE UPDATE OR DELETE ON runtimes
       FOR EACH ROW EXECUTE FUNCTION runtime_changes()""",
    # After the one before it: triggers of a row go by their names.
    *(
        f"""CREATE TRIGGER {table}_revisions BEFORE UPDATE ON {table}
            FOR EACH ROW EXECUTE FUNCTION registered_changes()"""
        for table in ("models", "runtimes")
    ),
)
