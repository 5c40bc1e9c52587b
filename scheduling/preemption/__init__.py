"""Who gives way to a job that waits, and what it costs."""
