"""Compiled: buckets of similar classes of nodes, with bounds.

See `arrays.ClassBuckets`.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np

from longshore.scheduling.bulk.arrays import (
    AMOUNTS,
    BUCKETS,
    CHEAPEST,
    CLASSES,
    ELIGIBILITY,
    FEWEST_JOBS,
    FIRST,
    HEAD,
    LEAST_USED,
    MOST_USED,
    NODES,
    ORDER,
    RESERVED_NODES,
    RESIDUALS,
    SIGNATURE,
    STALE,
    THRESHOLDS,
)
from longshore.scheduling.bulk.compiling import entry, inner
from longshore.scheduling.bulk.questions import KEEP_ROOM
from longshore.scheduling.bulk.residuals import residual_of_class
from longshore.scheduling.placement.keep_room import EMPTIER
from longshore.scheduling.placement.slots import EPSILON

NO_POSITION = np.int32(2**31 - 1)


@entry
def index_buckets(rule, c, x, f, lay, r):
    """Put every class that has nodes into its bucket; return False if the arrays are full."""
    count = c.numbers
    x.hash_table[:] = -1
    x.eligibility_at[:] = 0
    x.eligibility_capacity[:] = 0
    x.eligibility_buckets[:] = 0
    count[BUCKETS] = 0
    count[ORDER] = 0
    for g in range(count[CLASSES]):
        c.bucket[g] = -1
    for g in range(count[CLASSES]):
        if c.size[g] == 0 or c.alone[g]:
            continue
        if not has_capacity(c, x, r):
            return False
        add_nodes(rule, c, x, f, lay, r, g, c.pool[c.heap_at[g]], c.size[g])
    return True


@entry
def has_capacity(c, x, r):
    """Return whether the arrays have capacity for another class, its residual and its bucket."""
    count = c.numbers
    if count[BUCKETS] + 1 >= len(x.key) or count[ORDER] + 2 * count[BUCKETS] + 4 >= len(x.order):
        return False
    return len(r.size) == 0 or count[RESIDUALS] + 4 < len(r.size)


@inner
def add_nodes(rule, c, x, f, lay, r, g, first, nodes):
    """Add nodes of a class to its bucket, the first of them at this position."""
    facts = x.facts
    bucket = c.bucket[g]
    if bucket < 0:
        bucket = find_bucket(c, x, f.of_traits[c.traits[g]], lay.signature[c.layout[g]], g)
        c.bucket[g] = bucket
        c.later[g] = facts[bucket, HEAD]
        facts[bucket, HEAD] = g
        if rule == KEEP_ROOM:
            residual_of_class(c, lay, r, g)
        widen(rule, c.free, c.amount, c.jobs, c.residual, r.worth, r.idle, r.gpus, facts, x.bounds,
              bucket, g)  # fmt: skip
    facts[bucket, NODES] += nodes
    facts[bucket, FIRST] = min(facts[bucket, FIRST], first)


@inner
def note_removed(c, x, g, position):
    """Update the bucket of a class that a node has left."""
    bucket = c.bucket[g]
    if bucket < 0:
        return
    x.facts[bucket, NODES] -= 1
    if c.size[g] == 0 or x.facts[bucket, FIRST] == position:
        x.facts[bucket, STALE] = 1


@inner
def mark_reserved(c, position):
    """Note that a node has reservations from now on."""
    for i in range(c.numbers[RESERVED_NODES]):
        if c.reserved_nodes[i] == position:
            return
    c.reserved_nodes[c.numbers[RESERVED_NODES]] = position
    c.numbers[RESERVED_NODES] += 1


@inner
def refresh(rule, c, x, r, bucket):
    """Drop the classes of a bucket that have no nodes, and recompute its bounds."""
    clear_bounds(x.facts, x.bounds, bucket)
    before, g = -1, x.facts[bucket, HEAD]
    while g >= 0:
        later = c.later[g]
        if c.size[g] == 0:
            c.bucket[g] = -1
            if before < 0:
                x.facts[bucket, HEAD] = later
            else:
                c.later[before] = later
        else:
            before = g
            widen(rule, c.free, c.amount, c.jobs, c.residual, r.worth, r.idle, r.gpus, x.facts,
                  x.bounds, bucket, g)  # fmt: skip
            x.facts[bucket, FIRST] = min(x.facts[bucket, FIRST], c.pool[c.heap_at[g]])
        g = later


@entry
def refresh_all(rule, c, x, r):
    """Recompute all bounds, since the value of headroom has changed."""
    for bucket in range(c.numbers[BUCKETS]):
        refresh(rule, c, x, r, bucket)


@inner
def widen(rule, free, amount, jobs, residuals, worth, idle, gpus, facts, bounds, bucket, g):
    """Widen the bounds of a bucket so that they hold for a class."""
    amounts = free.shape[1]
    bounds[bucket, LEAST_USED] = min(bounds[bucket, LEAST_USED], amount[g])
    bounds[bucket, MOST_USED] = max(bounds[bucket, MOST_USED], amount[g])
    for i in range(amounts):
        low, high = AMOUNTS + i, AMOUNTS + amounts + i
        bounds[bucket, low] = min(bounds[bucket, low], free[g, i])
        bounds[bucket, high] = max(bounds[bucket, high], free[g, i])
    facts[bucket, FEWEST_JOBS] = min(facts[bucket, FEWEST_JOBS], jobs[g])
    if rule == KEEP_ROOM:
        residual = residuals[g]
        emptier = EMPTIER[0] * idle[gpus[residual]] + EMPTIER[1] * (free[g, 0] + EPSILON)
        own = worth[residual] + emptier + EMPTIER[2] * (free[g, 1] + EPSILON)
        bounds[bucket, CHEAPEST] = min(bounds[bucket, CHEAPEST], own)


@inner
def clear_bounds(facts, bounds, bucket):
    facts[bucket, FIRST] = NO_POSITION
    facts[bucket, STALE] = 0
    facts[bucket, FEWEST_JOBS] = NO_POSITION
    amounts = (bounds.shape[1] - AMOUNTS) // 2
    bounds[bucket, :] = np.inf
    bounds[bucket, MOST_USED] = -np.inf
    bounds[bucket, AMOUNTS + amounts :] = -np.inf


@inner
def find_bucket(c, x, eligibility, signature, g):
    """Return the bucket for a class, a new one where there is none."""
    key = np.int64(eligibility) << 40 | np.int64(signature) << 16
    for i in range(c.free.shape[1]):
        key |= np.int64(threshold_of(x.thresholds[i], c.free[g, i])) << (4 * i)
    hashed = (key ^ (key >> 29)) * 0xBF58476D1CE4E5B
    most = len(x.hash_table) - 1
    at = (hashed ^ (hashed >> 32)) & most
    while x.hash_table[at] >= 0:
        if x.key[x.hash_table[at]] == key:
            return x.hash_table[at]
        at = (at + 1) & most
    bucket = c.numbers[BUCKETS]
    x.hash_table[at] = bucket
    c.numbers[BUCKETS] = bucket + 1
    x.key[bucket] = key
    x.facts[bucket, ELIGIBILITY], x.facts[bucket, SIGNATURE] = eligibility, signature
    x.facts[bucket, NODES], x.facts[bucket, HEAD] = 0, -1
    clear_bounds(x.facts, x.bounds, bucket)
    add_to_eligibility(
        c.numbers,
        x.order,
        x.eligibility_at,
        x.eligibility_capacity,
        x.eligibility_buckets,
        eligibility,
        bucket,
    )
    return bucket


@inner
def threshold_of(thresholds, amount):
    """Return how many of the thresholds an amount reaches."""
    threshold = 0
    while threshold < THRESHOLDS and amount + EPSILON >= thresholds[threshold]:
        threshold += 1
    return threshold


@inner
def add_to_eligibility(
    count, order, eligibility_at, eligibility_capacity, eligibility_buckets, eligibility, bucket
):
    buckets = eligibility_buckets[eligibility]
    if buckets == eligibility_capacity[eligibility]:
        at = count[ORDER]
        for i in range(buckets):
            order[at + i] = order[eligibility_at[eligibility] + i]
        eligibility_at[eligibility] = at
        eligibility_capacity[eligibility] = 2 * buckets + 4
        count[ORDER] += eligibility_capacity[eligibility]
    order[eligibility_at[eligibility] + buckets] = bucket
    eligibility_buckets[eligibility] = buckets + 1
