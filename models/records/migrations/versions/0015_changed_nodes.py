"""Which transaction changed a node last, so that a reader can ask for what is new to it.

`nodes.changed_in` covers all that a cycle reads of a node: its row, its GPUs, and who holds them.
Placements, when they begin and end, write the node's row; leases write the row of their GPU, and
whatever writes that marks the node. A preemption changes when its attempt's GPUs come free: it
carries a mark of its own, since marking nodes would lock them in another order than a cycle does.

What the database refuses besides: to remove a node or a preemption, or to give one another key; a
reader would never hear of it.
"""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    for statement in (*COLUMNS, *FUNCTIONS, *TRIGGERS):
        op.execute(statement)


COLUMNS = (
    "ALTER TABLE nodes ADD COLUMN changed_in bigint NOT NULL DEFAULT 0",
    "ALTER TABLE preemptions ADD COLUMN changed_in bigint NOT NULL DEFAULT 0",
    "CREATE INDEX nodes_by_change ON nodes (changed_in)",
    "CREATE INDEX preemptions_by_change ON preemptions (changed_in)",
)

FUNCTIONS = (
    """
    CREATE FUNCTION this_transaction() RETURNS bigint LANGUAGE sql STABLE AS $$
        SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)
    $$""",
    """
    CREATE FUNCTION row_changes() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.changed_in := this_transaction();
        RETURN NEW;
    END $$""",
    """
    CREATE FUNCTION gpu_changes() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE nodes SET changed_in = this_transaction()
         WHERE id IN (OLD.node_id, NEW.node_id) AND changed_in <> this_transaction();
        RETURN NULL;
    END $$""",
)
"""What has changed a node's row in this transaction has marked it already."""

TRIGGERS = (
    """CREATE TRIGGER node_changes BEFORE INSERT OR UPDATE ON nodes
       FOR EACH ROW EXECUTE FUNCTION row_changes()""",
    """CREATE TRIGGER gpu_changes AFTER INSERT OR UPDATE OR DELETE ON gpus
       FOR EACH ROW EXECUTE FUNCTION gpu_changes()""",
    """CREATE TRIGGER preemption_changes BEFORE INSERT OR UPDATE ON preemptions
       FOR EACH ROW EXECUTE FUNCTION row_changes()""",
    """CREATE TRIGGER nodes_kept BEFORE DELETE OR UPDATE OF id ON nodes
       FOR EACH ROW EXECUTE FUNCTION kept_for_ever()""",
    """CREATE TRIGGER preemptions_kept BEFORE DELETE OR UPDATE OF job_id, attempt ON preemptions
       FOR EACH ROW EXECUTE FUNCTION kept_for_ever()""",
    """CREATE TRIGGER nodes_kept_whole BEFORE TRUNCATE ON nodes
       FOR EACH STATEMENT EXECUTE FUNCTION kept_for_ever()""",
    """CREATE TRIGGER gpus_kept_whole BEFORE TRUNCATE ON gpus
       FOR EACH STATEMENT EXECUTE FUNCTION kept_for_ever()""",
    """CREATE TRIGGER preemptions_kept_whole BEFORE TRUNCATE ON preemptions
       FOR EACH STATEMENT EXECUTE FUNCTION kept_for_ever()""",
)
