"""Which jobs are preempted for a waiting job, and what it costs."""
