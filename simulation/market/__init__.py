"""A simulated market on this machine: it speaks the APIs of two providers, and no money moves."""
