"""Times that a job can set: those of its files, and what is written in the folder of its run."""

from datetime import UTC, datetime

from longshore.activities.failpoints import wall_clock


def clamped_time(seconds: float) -> datetime:
    """Return a time between 1970 and now, the nearest to `seconds` since 1970.

    A job may set any time (`touch -d`), also one that is no date.
    """
    # In this order: what is no number becomes 0.
    return datetime.fromtimestamp(min(max(0.0, seconds), wall_clock().timestamp()), UTC)
