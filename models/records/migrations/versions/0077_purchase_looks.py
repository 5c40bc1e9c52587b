"""Whether a job was kept back by who pays is on record for each purchase that was made for it.

One moment for a job (`queue.kept_back_at`) held for its last purchase alone. That column stays for
workers of the version before, which write it, and for what they have forgiven.
"""

from alembic import op

revision = "0077"
down_revision = "0076"


def upgrade() -> None:
    op.execute("""
        CREATE TABLE purchase_looks (
            purchase_id text NOT NULL REFERENCES purchases (id) ON DELETE CASCADE,
            job_id text NOT NULL,
            kept_back boolean NOT NULL,
            PRIMARY KEY (purchase_id, job_id)
        )
    """)
