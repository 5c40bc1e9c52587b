"""Bounds of what a cycle computes with: it reads all rows of a pool at once, and a value that is
in no calendar, or out of the range of a type, would end it for all jobs.

What Longshore stores keeps to them; they are for what is written by hand. What jobs and nodes
have as JSON has no such bounds: who reads it leaves out what it cannot read.
"""

from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.execute(IN_CALENDAR)
    for table, columns in TIMES.items():
        checks = " AND ".join(f"in_calendar({column})" for column in columns)
        op.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT {table}_times_in_calendar CHECK ({checks})"
        )
    for statement in AMOUNTS:
        op.execute(statement)


IN_CALENDAR = """
    CREATE FUNCTION in_calendar(at timestamptz) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
        SELECT at >= '0001-01-01 00:00:00+00' AND at < '10000-01-01 00:00:00+00'
    $$"""

TIMES = {
    "blocks": ("starts_at", "ends_at"),
    "job_checkpoints": ("saved_at",),
    "jobs": ("submitted_at", "ended_at"),
    "node_data": ("used_at",),
    "nodes": ("expires_at", "state_since", "registered_at"),
    "placements": ("placed_at", "ended_at"),
    "preemptions": ("frees_by", "decided_at"),
    "queue": ("submitted_at", "queued_at", "decided_at", "told_at"),
}

AMOUNTS = (
    # A thousand million dollars, as of every amount of money.
    "ALTER TABLE blocks ADD CONSTRAINT blocks_price_in_bounds"
    " CHECK (price_micro_per_gpu_hour <= 1000000000000000)",
    # Ten years, as for a duration in a spec; below zero after a clock that was set back.
    "ALTER TABLE queue ADD CONSTRAINT queue_waited_ten_years"
    " CHECK (waited BETWEEN interval '-3653 days' AND interval '3653 days')",
    # `queued_at - waited` stays in the calendar.
    "ALTER TABLE queue ADD CONSTRAINT queue_queued_at_in_reach"
    " CHECK (queued_at BETWEEN '1000-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00')",
    # And what is reckoned from these with the ten years of a duration.
    "ALTER TABLE preemptions ADD CONSTRAINT preemptions_free_in_reach"
    " CHECK (frees_by <= '9000-01-01 00:00:00+00')",
    """
    ALTER TABLE placements
        ADD CONSTRAINT placements_expected_ten_years
            CHECK (expected_seconds BETWEEN 0 AND 3653 * 86400),
        ADD CONSTRAINT placements_end_in_calendar
            CHECK (placed_at <= '9000-01-01 00:00:00+00'),
        ADD CONSTRAINT placements_part_of_gpu
            CHECK (milli BETWEEN 0 AND 1000 AND slices BETWEEN 0 AND 255),
        ADD CONSTRAINT placements_gpus_are_there
            CHECK (0 <= ALL (gpu_indices) AND array_position(gpu_indices, NULL) IS NULL),
        ADD CONSTRAINT placements_amounts
            CHECK (greatest(ram_mb, storage_mb_s, vram_mb) <= 1000000000000
                   AND least(storage_mb_s, milliwatts) >= 0)""",
)
