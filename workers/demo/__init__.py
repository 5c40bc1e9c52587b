"""The demonstration: a market, a fleet and jobs on this machine, told as they happen."""
