"""Models that are served: their files, and what these say of the memory that they need."""
