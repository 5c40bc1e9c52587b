"""Who pays for each GPU, from facts: `evaluate` for what runs, `cover` for a job that waits."""
