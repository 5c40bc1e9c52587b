"""What the compiled pass works on: arrays, in groups by what has a row in them.

`K` needs, `C` classes of nodes, `X` cells of classes, `F` faces of makes, `L` layouts of GPUs, `W`
wishes for GPUs, `M` makes, `R` amounts of a host (cores, RAM and so on), `Q` kinds of jobs to
expect. Classes, cells and layouts have spare rows.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.scheduling.placement.layouts import FITS

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

UNKNOWN = 255
"""In place of an answer that was not asked for yet."""
VARIES = -2
"""In place of a number that is not the same for all layouts of a look."""
FAMILIES, FAMILY_SETS = 64, 1 << 10
"""Families of layouts that find each other by their free GPUs, and sets of GPUs in each."""
MOST_SHOWN = 4
"""Nodes that a decision names: the best, and three beside it."""
CLASSES, POOL, MOVES, RESTS, DUE, NEED, SUBJECT, CELLS, ORDER, KEPT = range(10)
"""Places in `Classes.numbers`: classes, used places of `pool`, moves, rests; at how many moves the
outlook is due; what a question to the caller is about; cells, used places of `Cells.order`, and
nodes with reservations."""
FACE, LOOK, NODES, HEAD, FIRST, STALE, FEWEST_JOBS = range(7)
"""What `Cells.facts` says of a cell: its face and its look, its nodes, its first class, the
position of its first node, whether a bound may be wider than it need be, and the fewest jobs on
one of its nodes."""
LEAST_USED, MOST_USED, CHEAPEST, AMOUNTS = 0, 1, 2, 3
"""What `Cells.bounds` says of the classes of a cell: the least and the most memory in use; the
least that the room of one is worth, with what it costs to take an emptier node; and from AMOUNTS
on the least of each amount of the host, then the most of each."""
RANKS = 15
"""Steps in which cells tell each amount of a host."""


class Classes(NamedTuple):
    """Nodes that answer alike."""

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
    cell: Ints
    """-1 while in none."""
    later: Ints
    """The next class of its cell, -1 after the last."""
    heap_at: Ints
    heap_room: Ints
    """Where in `pool` the positions of its nodes are, as a heap, and how many places it has."""
    pool: Ints
    buckets: Ints
    """Open hash of classes."""
    class_of: Ints
    """By node."""
    kept: Ints
    """The positions of nodes with reservations."""
    make_amount: Floats
    make_unnamed: Flags
    numbers: Longs


class Cells(NamedTuple):
    """Classes that lie near each other: one face, one look, like amounts left.

    What holds for the bounds of a cell holds for its classes: most are counted and passed over
    without a look at any of them. Nodes with reservations are in no cell.
    """

    key: Longs
    facts: Ints
    """X x 7: see FACE."""
    bounds: Floats
    """X x (3 + 2 R): see LEAST_USED."""
    buckets: Ints
    """Open hash of cells."""
    order: Ints
    face_at: Ints
    face_room: Ints
    face_cells: Ints
    """Where in `order` the cells of each face are, how many places it has, and cells."""
    steps: Floats
    """R x RANKS: amounts that are wanted, ascending; infinite where there are fewer."""
    best: Ints
    value: Floats
    """Scratch: the cells that could take a job, and the most that a node there may be worth."""
    front: Ints
    """Scratch: see `heaps.offer`."""


class Faces(NamedTuple):
    """Makes that differ in nothing that the needs in hand must have, and what needs find there."""

    of_make: Ints
    power: Ints
    """By face: the row of `Needs.wanted`."""
    amount: Floats
    unnamed: Flags
    size: Ints
    """By face, for `keep-room`: the number of what its nodes have when empty."""
    code: Bytes
    """By (row of lasting constraints) x M: the first failure among what no placement changes."""
    open_at: Ints
    open: Ints
    """The faces where none fails: those of a row are in `open` from its `open_at` to the next."""
    closed: Ints
    """By row x constraints: nodes by first failure."""
    expiry: Floats
    """By row of durations x M, before its weight, and"""
    most_expiry: Floats
    """the most of a face, with it."""
    provider: Floats
    most_provider: Floats
    """By row of sizes, in the same way."""
    held: Floats
    most_held: Floats
    """By row of data: what it adds that nodes of a make hold that, and the most of a face."""


class Layouts(NamedTuple):
    """What each wish finds in each layout: W x L."""

    code: Bytes
    mask: Longs
    gap: Floats
    link: Floats
    """What the slowest link between the GPUs adds, with its weight."""
    added: Floats
    """GB of a MIG instance there."""
    after: Ints
    """The layout once a job has its GPUs."""
    gpus_after: Ints
    """As `look_gpus`, where that varies."""
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
    look: Ints
    """By layout: its look. Layouts of one look answer every wish with the same constraint."""
    look_code: Bytes
    """W x looks."""
    look_gpus: Ints
    """W x looks, for `keep-room`: the number of what jobs find there once a job has its GPUs."""


class Needs(NamedTuple):
    """The needs in hand."""

    wish: Ints
    tier: Bytes
    vram: Floats
    amount: Floats
    gpus: Floats
    mig: Flags
    by_layout: Flags
    """Whether its value depends on which GPUs of a layout it gets."""
    most_link: Floats
    """The most that links between its GPUs may add; 0 where they add nothing anywhere."""
    outlook: Bytes
    """Why a job that finds no node waits, where that is known: see `kernel`."""
    lasting: Ints
    duration: Ints
    provider: Ints
    data: Ints
    """The rows of `Faces`."""
    wanted: Floats
    """K x powers x R."""
    beside_class: Ints
    """K x nodes with reservations: the class that was asked, and its answer."""
    beside_code: Bytes
    beside_gap: Floats
    beside_link: Floats
    beside_added: Floats
    beside_gpus: Ints


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
