"""How each node answers a need: whether it can take the job, on which GPUs, and how well."""
