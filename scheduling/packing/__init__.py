"""Where requests for GPUs go in a fleet of nodes: state, mixes learnt from the stream, policies."""
