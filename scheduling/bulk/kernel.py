"""The compiled pass over a queue. Import it through `scheduling.bulk`: numba loads slowly.

`run` answers job after job, and stops with a question where it needs what only Python knows: the
answer of a layout to a request, what is open next to reservations, a job that it cannot decide.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np

from longshore.scheduling.bulk.arrays import CLASSES, DUE, MOVES, RESERVED_NODES, UNKNOWN, VARIES
from longshore.scheduling.bulk.class_buckets import (
    add_nodes,
    has_capacity,
    mark_reserved,
    note_removed,
)
from longshore.scheduling.bulk.compiling import entry, inner
from longshore.scheduling.bulk.node_heap import heap_has_capacity, push, remove
from longshore.scheduling.bulk.questions import (
    ALONE,
    ASK_LAYOUT,
    DONE,
    FULL,
    KEEP_ROOM,
    MAY_START,
    NEVER,
    NO_NODE,
    NO_START,
    OTHER,
    PLACED,
    RESERVED_ALL,
    REWEIGH,
)
from longshore.scheduling.bulk.residuals import explain_headroom
from longshore.scheduling.bulk.search import search
from longshore.scheduling.bulk.values import ask, residual_with, used_with


@entry
def run(rule, weights, host_codes, c, x, f, lay, n, r, a, slots, exhausted, begin, end):
    """Answer the jobs from `begin` to before `end`; `slots` has the row of each one's need.

    Returns the job that is next and why it stopped. A job that is not answered changed nothing.
    """
    count = c.numbers
    for j in range(begin, end):
        k = slots[j]
        if k < 0:
            return j, OTHER
        if rule == KEEP_ROOM and count[MOVES] >= count[DUE]:
            return j, REWEIGH
        if count[CLASSES] + 1 >= len(c.traits) or not has_capacity(c, x, r):
            return j, FULL
        nodes, groups = a.node[j], a.group[j]
        found, stopped = search(
            rule, weights, host_codes, c, x, f, lay, n, r, k, a.counts[j], nodes, groups,
            a.total[j],
        )  # fmt: skip
        if stopped != DONE:
            return j, stopped
        if found == 0:
            outlook = n.outlook[k]
            if exhausted[n.tier[k]] and outlook in (MAY_START, NO_START):
                outlook = RESERVED_ALL
            if outlook not in (NEVER, NO_START, RESERVED_ALL):
                return j, NO_NODE
            a.kind[j] = outlook
            continue
        g = groups[0]
        if c.alone[g]:
            return j, ALONE
        to = class_with(c, f, lay, n, k, g)
        if to < 0:
            return j, ask(count, ASK_LAYOUT, k, c.layout[g])
        layout = unasked(c, lay, n, k, found, groups)
        if layout >= 0:
            return j, ask(count, ASK_LAYOUT, k, layout)
        if not heap_has_capacity(c.heap_capacity, c.size, c.pool, count, to):
            return j, FULL
        a.kind[j] = PLACED
        note(c, f, lay, n, k, found, groups, a.used[j], a.gap[j], a.expiry[j], a.provider[j])
        if rule == KEEP_ROOM:
            residual = residual_with(c, f, n, r, k, g, gpus_with(c, lay, n, k, g))
            explain_headroom(c, r, g, c.residual[g], residual, a.parts[j])
        move(rule, c, x, f, lay, r, nodes[0], to)
    return end, DONE


@inner
def unasked(c, lay, n, k, found, groups):
    """Return a layout of the best nodes whose GPUs decide on their terms and are not known yet."""
    if n.by_layout[k]:
        for i in range(found):
            if lay.code[n.request[k], c.layout[groups[i]]] == UNKNOWN:
                return c.layout[groups[i]]
    return -1


@inner
def gpus_with(c, lay, n, k, g):
    """Return the number of what jobs find on the GPUs of a class once the job is there."""
    request, layout = n.request[k], c.layout[g]
    gpus = lay.signature_gpus[request, lay.signature[layout]]
    return lay.gpus_after[request, layout] if gpus == VARIES else gpus


@inner
def note(c, f, lay, n, k, found, groups, used, gap, expiry, provider):
    """Write down the terms of the best nodes."""
    request = n.request[k]
    for i in range(found):
        g = groups[i]
        traits, layout = c.traits[g], c.layout[g]
        used[i] = used_with(c, n, k, g, lay.added[request, layout])
        gap[i] = lay.gap[request, layout]
        for reserved in range(c.numbers[RESERVED_NODES]):
            if n.beside_class[k, reserved] == g:
                gap[i] = n.beside_gap[k, reserved]
        expiry[i] = f.expiry[n.duration[k], traits]
        provider[i] = f.provider[n.provider[k], traits]


@inner
def class_with(c, f, lay, n, k, g):
    """Return the class of a node of class g once the job is there; -1 where Python knows it."""
    traits, request, layout = c.traits[g], n.request[k], c.layout[g]
    if lay.code[request, layout] == UNKNOWN:
        return -1
    after = lay.after[request, layout]
    if after < 0 and lay.family[layout] >= 0 and not lay.in_parts[request]:
        after = lay.by_free[lay.family[layout], lay.free[layout] & ~lay.mask[request, layout]]
        lay.after[request, layout] = after
    if after < 0:
        return -1
    new, want = c.numbers[CLASSES], n.wanted[k, f.power[f.of_traits[traits]]]
    c.traits[new], c.layout[new] = traits, after
    for i in range(c.free.shape[1]):
        c.free[new, i] = c.free[g, i] - want[i]
    each = lay.added[request, layout] if n.mig[k] else n.vram[k]
    c.vram_used[new] = c.vram_used[g] + each * bits_of(lay.mask[request, layout])
    c.jobs[new] = c.jobs[g] + 1
    c.alone[new] = 0
    c.amount[new] = lay.taken[after] if c.traits_unnamed[traits] else c.vram_used[new]
    return known_class(c)


@inner
def known_class(c):
    """Return the class like the one in the first spare row, which joins where there is none."""
    new, alone = c.numbers[CLASSES], np.int64(c.alone[c.numbers[CLASSES]])
    hashed = np.int64(c.traits[new]) * 31 + c.layout[new] * 17 + c.jobs[new] * 7 + alone * 131
    hashed = (hashed ^ c.vram_bits[new]) * 0x9E3779B97F4A7C1
    for i in range(c.free_bits.shape[1]):
        hashed = (hashed ^ (hashed >> 29) ^ c.free_bits[new, i]) * 0xBF58476D1CE4E5B
    most = len(c.hash_table) - 1
    at = (hashed ^ (hashed >> 32)) & most
    while c.hash_table[at] >= 0:
        if same_class(c, c.hash_table[at], new):
            return c.hash_table[at]
        at = (at + 1) & most
    c.hash_table[at] = new
    c.size[new] = 0
    c.heap_at[new] = 0
    c.heap_capacity[new] = 0
    c.residual[new] = -1
    c.bucket[new] = -1
    c.numbers[CLASSES] = new + 1
    return new


@inner
def same_class(c, a, b):
    if c.traits[a] != c.traits[b] or c.layout[a] != c.layout[b] or c.jobs[a] != c.jobs[b]:
        return False
    if c.alone[a] != c.alone[b] or c.vram_bits[a] != c.vram_bits[b]:
        return False
    same = True
    for i in range(c.free_bits.shape[1]):
        same &= c.free_bits[a, i] == c.free_bits[b, i]
    return same


@inner
def bits_of(mask):
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@inner
def move(rule, c, x, f, lay, r, position, to):
    """Move a node to another class."""
    old = c.class_of[position]
    remove(c.heap_at, c.size, c.pool, old, position)
    note_removed(c, x, old, position)
    push(c.heap_at, c.heap_capacity, c.size, c.pool, c.numbers, to, position)
    c.class_of[position] = to
    c.numbers[MOVES] += 1
    if c.alone[to]:
        mark_reserved(c, position)
    else:
        add_nodes(rule, c, x, f, lay, r, to, position, 1)


@entry
def move_to_known(rule, c, x, f, lay, r, position):
    """Move a node to the class in the first spare row."""
    move(rule, c, x, f, lay, r, position, known_class(c))


@entry
def index_classes(c):
    """Put all classes into the hash table; no two are alike."""
    count = c.numbers[CLASSES]
    c.numbers[CLASSES] = 0
    for g in range(count):
        size, at, capacity = c.size[g], c.heap_at[g], c.heap_capacity[g]
        residual, bucket = c.residual[g], c.bucket[g]
        known_class(c)
        c.size[g], c.heap_at[g], c.heap_capacity[g] = size, at, capacity
        c.residual[g], c.bucket[g] = residual, bucket
