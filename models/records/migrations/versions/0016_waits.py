"""How long a job has waited in all, over its attempts and without its holds, and which running
jobs keep their GPUs from it for a time.

`queue.waited` is what it waited before `queued_at`; what a placement has is handed on to the next
attempt. Rows of an older version count from when they were queued.
"""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


STATEMENTS = (
    "ALTER TABLE queue ADD COLUMN waited interval NOT NULL DEFAULT '0', ADD COLUMN spared jsonb",
    "ALTER TABLE placements ADD COLUMN waited interval NOT NULL DEFAULT '0'",
)
