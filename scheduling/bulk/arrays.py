"""What the compiled pass works on: arrays, in groups by what has a row in them.

`K` needs, `C` classes of nodes, `L` layouts of GPUs, `W` wishes for GPUs, `M` makes, `R` amounts
of a host (cores, RAM and so on), `Q` kinds of jobs to expect. Classes and layouts have spare rows.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.placement.layouts import FITS

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

UNKNOWN = 255
"""In place of the answer of a layout that was not asked yet."""
FAMILIES, FAMILY_SETS = 64, 1 << 10
"""Families of layouts that find each other by their free GPUs, and sets of GPUs in each."""
MOST_SHOWN = 4
"""Nodes that a decision names: the best, and three beside it."""
CLASSES, POOL, MOVES, RESTS, DUE, NEED, SUBJECT = range(7)
"""Places in `Classes.numbers`: classes, used cells of `pool`, moves, rests; at how many moves the
outlook is due; and what a question to the caller is about."""


class Classes(NamedTuple):
    """Nodes that answer alike, and the moves of nodes between classes."""

    make: Ints
    layout: Ints
    jobs: Ints
    alone: Ints
    """Not 0 of a node with reservations; no other node is like it."""
    size: Ints
    free: Floats
    """C x R: what is left of each amount of the host."""
    free_bits: Longs
    """The same memory as integers, to compare and to hash."""
    vram_used: Floats
    vram_bits: Longs
    amount: Floats
    """GB of GPU memory in use; GPUs on a node that names no memory."""
    rest: Ints
    heap_at: Ints
    heap_room: Ints
    """Where in `pool` the positions of its nodes are, as a heap, and how many cells it has."""
    pool: Ints
    buckets: Ints
    """Open hash of classes."""
    class_of: Ints
    """By node."""
    moved_from: Ints
    moved_to: Ints
    moved: Ints
    """The moves of nodes, in order, and the position of each."""
    make_amount: Floats
    make_unnamed: Flags
    numbers: Longs


class Layouts(NamedTuple):
    """What each wish finds in each layout: W x L."""

    code: Bytes
    mask: Longs
    gap: Floats
    added: Floats
    """GB of a MIG instance there."""
    after: Ints
    """The layout once a job has its GPUs."""
    in_parts: Flags
    """By wish: whether it is for a part of a GPU."""
    taken: Floats
    """By layout: GPUs that are held or shared."""
    gpus: Ints
    """By layout: the number of what jobs find there, for `keep-room`."""
    known: Ints
    """How many layouts there are."""
    family: Ints
    """By layout: the number of what it has beside its free GPUs, -1 with shared or many GPUs."""
    free: Ints
    """By layout: its free GPUs, where it has a family."""
    by_free: Ints
    """Families x sets of free GPUs: the layout, -1 where there is none."""


class Needs(NamedTuple):
    """The needs in hand, and how classes answer them."""

    wish: Ints
    tier: Bytes
    vram: Floats
    amount: Floats
    gpus: Floats
    mig: Flags
    outlook: Bytes
    """Why a job that finds no node waits, where that is known: see `kernel`."""
    built: Flags
    asked: Ints
    """Classes that have answered."""
    followed: Ints
    """Moves that are taken in."""
    heap_size: Ints
    counts: Ints
    """K x constraints: nodes by first constraint that fails, the options last."""
    lasting: Bytes
    """K x M: the first failure among what no placement changes."""
    expiry: Floats
    provider: Floats
    """K x M, before their weights."""
    wanted: Floats
    """K x M x R."""
    code: Bytes
    total: Floats
    used: Floats
    gap: Floats
    """K x C, as `ScoreTerms` has them where the job fits."""
    next: Ints
    """K x C: the class of a node once the job is there; -1 while not known."""
    rest_after: Ints
    heap: Ints
    """K x C: classes that could take it and have nodes, best first, as a heap."""
    place: Ints
    """K x C: where in `heap` each class is, -1 elsewhere."""
    first: Ints
    """K x C: the first node of a class, as the heap has it."""


class Room(NamedTuple):
    """What rests of nodes are worth to the jobs that are expected; empty for other rules."""

    size: Ints
    gpus: Ints
    jobs: Ints
    left: Floats
    """Cores and RAM: rests x 2."""
    left_bits: Longs
    now: Floats
    lasting: Floats
    """Rests x Q."""
    stranded: Floats
    worth: Floats
    buckets: Ints
    found: Longs
    """By number of what jobs find on GPUs, x Q x (free, usable, total)."""
    idle: Longs
    make_size: Ints
    suits: Flags
    """Sizes x Q."""
    totals: Floats
    """Sizes x (cores, RAM)."""
    kinds: Floats
    """Q x (GPUs, cores, RAM)."""
    pressure: Floats
    demand: Floats
    name_of: Ints
    """By kind: what its room is called."""
    scale: Floats
    """Churn, cores and RAM for each thousandth."""


class Answers(NamedTuple):
    """What was decided, a row for each job."""

    kind: Bytes
    """See `questions`."""
    counts: Ints
    """Nodes by the first constraint that failed; the last are those that could take it."""
    node: Ints
    group: Ints
    """The best nodes and their classes then; -1 where there is none."""
    total: Floats
    used: Floats
    gap: Floats
    expiry: Floats
    provider: Floats
    """Of each of them."""
    parts: Floats
    """What the best one loses, in thousandths, by name."""


def answers_for(jobs: int, names: int) -> Answers:
    """Return empty rows for so many jobs, with so many names of what is lost."""
    shown = jobs, MOST_SHOWN
    return Answers(
        np.zeros(jobs, np.uint8),
        np.zeros((jobs, FITS + 1), np.int32),
        np.full(shown, -1, np.int32),
        np.full(shown, -1, np.int32),
        np.zeros(shown),
        np.zeros(shown),
        np.zeros(shown),
        np.zeros(shown),
        np.zeros(shown),
        np.zeros((jobs, names)),
    )
