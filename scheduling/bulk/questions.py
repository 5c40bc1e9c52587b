"""Why the compiled pass stops, what it answers, and the rules that it knows: by number."""

DONE, OTHER, LOOK_ANEW, ASK_LOOK, ASK_LAYOUT, ASK_ALONE, FULL, NO_NODE, ALONE = range(9)
"""`run` stops at its end; at a job that is not for it; where the outlook is due; to ask what a
wish finds in layouts of a look, in one layout, or on a node with reservations; where arrays are
full; where the caller has to say what a job waits for; where the best node has reservations."""
BY_CALLER, PLACED, NEVER, NO_START, RESERVED_ALL, MAY_START = range(6)
"""How a job is answered: by the caller; placed; or it waits: since no node can ever hold it, since
no start is known, or behind as many reservations as there may be. MAY_START is the outlook of a
need for which a start may be kept, BY_CALLER of one that was not looked at yet."""
SEED_SCORE, KEEP_ROOM = 0, 1
