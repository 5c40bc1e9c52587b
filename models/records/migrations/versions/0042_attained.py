"""For how long earlier attempts of a job held its GPUs, as far as the next one goes on from that.

`queue.attained` goes on to the placement, and from there, with what that attempt saved, to the
queue again. Rows of an older version count from nothing.

An end hands what its job has had to one successor at most, `jobs.handed_to`, which takes over from
one job at most.
"""

from alembic import op

revision = "0042"
down_revision = "0041"


def upgrade() -> None:
    for table in ("queue", "placements"):
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN attained interval NOT NULL DEFAULT '0',"
            f" ADD CONSTRAINT {table}_attained_ten_years"
            " CHECK (attained BETWEEN interval '0' AND interval '3653 days')"
        )
    # Of rows of before nobody knows it: `models.job_request.JobRequest` says what counts then.
    op.execute("ALTER TABLE queue ADD COLUMN can_stop boolean, ADD COLUMN duration_known boolean")
    op.execute("DROP TRIGGER queue_changes ON queue")
    op.execute(
        "CREATE TRIGGER queue_changes BEFORE INSERT OR UPDATE OF"
        " request, attempt, held, priority, submitted_at, queued_at, waited, attained"
        " ON queue FOR EACH ROW EXECUTE FUNCTION row_changes()"
    )
    op.execute("ALTER TABLE jobs ADD COLUMN handed_to text")
    op.execute(
        "CREATE UNIQUE INDEX jobs_handed_to ON jobs (handed_to) WHERE handed_to IS NOT NULL"
    )
    op.execute(
        "CREATE INDEX jobs_to_hand_on ON jobs (tenant, name, ended_at)"
        " WHERE ended_at IS NOT NULL AND handed_to IS NULL"
    )
    # Jobs of one class are stopped for each other where their pool says so.
    op.execute("ALTER TABLE preemptions DROP CONSTRAINT only_a_lower_class_gives_way")
    op.execute(
        "ALTER TABLE preemptions ADD CONSTRAINT no_higher_class_gives_way"
        " CHECK (priority <= for_priority)"
    )
