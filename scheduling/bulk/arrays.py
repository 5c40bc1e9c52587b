"""The arrays of the compiled pass, in groups by what has a row in them.

`K` needs, `C` classes of nodes, `X` buckets of classes, `F` eligibility classes of trait sets, `L`
layouts of GPUs, `W` requests for GPUs, `M` trait sets, `R` amounts of a host (cores, RAM and so
on), `Q` kinds of expected jobs. Classes, buckets and layouts have spare rows.
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
"""In place of a number that is not the same for all layouts of a signature."""
FAMILIES, FAMILY_SETS = 64, 1 << 10
"""Families of layouts that find each other by their free GPUs, and sets of GPUs in each."""
MOST_SHOWN = 4
"""Nodes that a decision names: the best one, and three others."""
CLASSES, POOL, MOVES, RESIDUALS, DUE, NEED, SUBJECT, BUCKETS, ORDER, RESERVED_NODES = range(10)
"""Places in `Classes.numbers`: classes, used places of `pool`, moves, residuals; the move at
which the outlook is due; the need and subject of a question to the caller; buckets, used places
of `ClassBuckets.order`, and nodes with reservations."""
ELIGIBILITY, SIGNATURE, NODES, HEAD, FIRST, STALE, FEWEST_JOBS = range(7)
"""Columns of `ClassBuckets.facts`: eligibility class, layout signature, nodes, first class,
position of the first node, whether a bound may be too wide, and the fewest jobs on one node."""
LEAST_USED, MOST_USED, CHEAPEST, AMOUNTS = 0, 1, 2, 3
"""Columns of `ClassBuckets.bounds`: the least and the most memory in use; the least value of a
class's headroom, with the cost of taking an emptier node; and from AMOUNTS on the least of each
amount of the host, then the most of each."""
THRESHOLDS = 15
"""Thresholds by which buckets quantise each amount of a host."""


class Classes(NamedTuple):
    """Nodes that answer alike."""

    traits: Ints
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
    residual: Ints
    bucket: Ints
    """-1 while in none."""
    later: Ints
    """The next class of its bucket, -1 after the last."""
    heap_at: Ints
    heap_capacity: Ints
    """Where in `pool` the positions of its nodes are, as a heap, and how many places it has."""
    pool: Ints
    hash_table: Ints
    """Open hash of classes."""
    class_of: Ints
    """By node."""
    reserved_nodes: Ints
    """The positions of nodes with reservations."""
    traits_amount: Floats
    traits_unnamed: Flags
    numbers: Longs


class ClassBuckets(NamedTuple):
    """Similar classes: same eligibility class, same layout signature, near amounts left.

    What holds for the bounds of a bucket holds for its classes: most are counted and passed over
    without a signature at any of them. Nodes with reservations are in no bucket.
    """

    key: Longs
    facts: Ints
    """X x 7: see ELIGIBILITY."""
    bounds: Floats
    """X x (3 + 2 R): see LEAST_USED."""
    hash_table: Ints
    """Open hash of buckets."""
    order: Ints
    eligibility_at: Ints
    eligibility_capacity: Ints
    eligibility_buckets: Ints
    """By eligibility class: where its buckets begin in `order`, its places there, its buckets."""
    thresholds: Floats
    """R x THRESHOLDS: amounts that are wanted, ascending; infinite where there are fewer."""
    best: Ints
    value: Floats
    """Scratch: the buckets that could take a job, and the most that a node there may be worth."""
    front: Ints
    """Scratch: see `node_heap.offer`."""


class EligibilityClasses(NamedTuple):
    """Traits that the current needs cannot tell apart, and the answers of these to the needs."""

    of_traits: Ints
    power: Ints
    """By eligibility class: the row of `Needs.wanted`."""
    amount: Floats
    unnamed: Flags
    size: Ints
    """By eligibility class, for `keep-room`: the number of what its nodes have when empty."""
    code: Bytes
    """By (row of lasting constraints) x M: the first failure among what no placement changes."""
    open_at: Ints
    open: Ints
    """Eligibility classes where none fails: those of row i are `open[open_at[i]:open_at[i+1]]`."""
    closed: Ints
    """By row x constraints: nodes by first failure."""
    expiry: Floats
    """By row of durations x M, without its weight."""
    most_expiry: Floats
    """The most in an eligibility class, weighted."""
    provider: Floats
    most_provider: Floats
    """By row of sizes, in the same way."""
    held: Floats
    most_held: Floats
    """By row of data: the locality bonus of a trait set, and the most of an eligibility class."""


class Layouts(NamedTuple):
    """The answer of each layout to each request: W x L."""

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
    """As `signature_gpus`, where that varies."""
    in_parts: Flags
    """By request: whether it is for a part of a GPU."""
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
    signature: Ints
    """By layout: its signature. Equal signatures answer every request with the same constraint."""
    signature_code: Bytes
    """W x signatures."""
    signature_gpus: Ints
    """W x signatures, for `keep-room`: as `gpus`, once a job has its GPUs."""


class Needs(NamedTuple):
    """The current needs."""

    request: Ints
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
    """The rows of `EligibilityClasses`."""
    wanted: Floats
    """K x powers x R."""
    beside_class: Ints
    """K x nodes with reservations: the class that was asked, and its answer."""
    beside_code: Bytes
    beside_gap: Floats
    beside_link: Floats
    beside_added: Floats
    beside_gpus: Ints


class Headroom(NamedTuple):
    """The value of residuals to the expected jobs; empty for other rules."""

    size: Ints
    gpus: Ints
    jobs: Ints
    left: Floats
    """Cores and RAM: residuals x 2."""
    left_bits: Longs
    now: Floats
    lasting: Floats
    """Residuals x Q."""
    stranded: Floats
    worth: Floats
    hash_table: Ints
    found: Longs
    """By number of what jobs find on GPUs, x Q x (free, usable, total)."""
    idle: Longs
    size_of_traits: Ints
    suits: Flags
    """Sizes x Q."""
    totals: Floats
    """Sizes x (cores, RAM)."""
    kinds: Floats
    """Q x (GPUs, cores, RAM)."""
    pressure: Floats
    demand: Floats
    name_of: Ints
    """By kind: the name of its headroom."""
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
    """Return empty rows for this many jobs, with this many names of what is lost."""
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
