"""Where requests for GPUs go in a fleet: its state, mixes learnt from the stream, policies."""
