"""Why the compiled pass stops, what it answers, and the rules that it knows: by number."""

DONE, OTHER, REWEIGH, ASK_SIGNATURE, ASK_LAYOUT, ASK_ALONE, FULL, NO_NODE, ALONE = range(9)
"""Why `run` stops: at its end; at a job that it cannot decide; when the outlook is due; to ask for
the answer of a signature, of one layout, or of a node with reservations; when arrays are full;
when the caller has to give a wait reason; when the best node has reservations."""
BY_CALLER, PLACED, NEVER, NO_START, RESERVED_ALL, MAY_START = range(6)
"""How a job is answered: by the caller; placed; or it waits: since no node can ever hold it, since
no start is known, or behind as many reservations as there may be. MAY_START is the outlook of a
need for which a start may be kept, BY_CALLER of one that was not looked at yet."""
SEED_SCORE, KEEP_ROOM = 0, 1
