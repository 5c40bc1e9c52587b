"""What nodes say that they hold, beside what jobs used there; and whom a cycle told to prepare."""

from alembic import op

revision = "0041"
down_revision = "0040"


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


STATEMENTS = (
    """
    ALTER TABLE node_data
        ADD COLUMN tenant text NOT NULL DEFAULT '',
        ADD COLUMN source text NOT NULL DEFAULT '',
        ADD COLUMN bytes bigint NOT NULL DEFAULT 0,
        ADD COLUMN total bigint NOT NULL DEFAULT 0,
        ADD COLUMN held boolean NOT NULL DEFAULT false,
        ADD CONSTRAINT node_data_part_of_all CHECK (bytes >= 0 AND bytes <= total),
        ADD CONSTRAINT node_data_used_is_a_name
            CHECK (held OR tenant = '' AND source = '' AND total = 0),
        DROP CONSTRAINT node_data_pkey,
        ADD PRIMARY KEY (node_id, name, tenant, source)""",
    "DELETE FROM node_data WHERE name LIKE '% %'",
    "ALTER TABLE queue ADD COLUMN preparing jsonb",
)
"""Images were guessed too: agents say them now."""
