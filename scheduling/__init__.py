"""Every decision, pure: state and `now` in, a frozen decision out. No clock, no I/O, no chance."""
