"""The compiled pass over a queue. Import it through `scheduling.bulk`: numba loads slowly.

`run` answers job after job, and stops with a question where it needs what only Python knows: what
a layout has for a wish, what is open beside reservations, a job for which it was not made.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np
from numba import njit

from scheduling.bulk.arrays import CLASSES, DUE, MOST_SHOWN, MOVES, NEED, SUBJECT, UNKNOWN
from scheduling.bulk.heaps import arrived, best_nodes, has_cells, join, leave, settle
from scheduling.bulk.questions import (
    ALONE,
    ASK_ALONE,
    ASK_LAYOUT,
    DONE,
    FULL,
    KEEP_ROOM,
    LOOK_ANEW,
    MAY_START,
    NEVER,
    NO_NODE,
    NO_START,
    OTHER,
    PLACED,
    RESERVED_ALL,
)
from scheduling.bulk.rests import explain_room, rest_for, rest_of_class, room_total
from scheduling.placement.layouts import FITS

EPSILON = 1e-6


@njit(cache=True, error_model="numpy")
def run(rule, weights, host_codes, c, lay, n, r, a, slots, exhausted, begin, end):
    """Answer the jobs from `begin` to before `end`; `slots` has the row of each one's need.

    Returns the job that is next and why it stopped. A job that is not answered changed nothing.
    """
    count = c.numbers
    heap_at, heap_room, size, pool = c.heap_at, c.heap_room, c.size, c.pool
    front = np.empty(2 * MOST_SHOWN + 1, np.int32)
    for j in range(begin, end):
        k = slots[j]
        if k < 0:
            return j, OTHER
        if rule == KEEP_ROOM and count[MOVES] >= count[DUE]:
            return j, LOOK_ANEW
        if n.asked[k] < count[CLASSES]:
            stopped = ask_classes(rule, weights, host_codes, c, lay, n, r, k)
            if stopped != DONE:
                return j, stopped
        heap, place, total, first = n.heap[k], n.place[k], n.total[k], n.first[k]
        follow(
            n.built, n.followed, n.heap_size, n.counts[k], n.code[k], heap, place, total, first,
            heap_at, size, pool, count, c.moved_from, c.moved_to, c.moved, k,
        )  # fmt: skip
        nodes, groups = a.node[j], a.group[j]
        n.heap_size[k] = best_nodes(
            heap, place, total, first, n.heap_size[k], heap_at, size, pool, front, nodes, groups,
            a.total[j],
        )  # fmt: skip
        if n.heap_size[k] == 0:
            outlook = n.outlook[k]
            if exhausted[n.tier[k]] and outlook in (MAY_START, NO_START):
                outlook = RESERVED_ALL
            if outlook not in (NEVER, NO_START, RESERVED_ALL):
                return j, NO_NODE
            a.kind[j] = outlook
            a.counts[j] = n.counts[k]
            continue
        g = groups[0]
        if c.alone[g]:
            return j, ALONE
        if n.next[k, g] < 0:
            stopped = find_next(c, lay, n, k, g)
            if stopped != DONE:
                return j, stopped
        to = n.next[k, g]
        if count[MOVES] + 1 >= len(c.moved_to) or not has_cells(heap_room, size, pool, count, to):
            return j, FULL
        a.kind[j] = PLACED
        a.counts[j] = n.counts[k]
        for i in range(MOST_SHOWN):
            if groups[i] < 0:
                break
            make = c.make[groups[i]]
            a.used[j, i], a.gap[j, i] = n.used[k, groups[i]], n.gap[k, groups[i]]
            a.expiry[j, i], a.provider[j, i] = n.expiry[k, make], n.provider[k, make]
        if rule == KEEP_ROOM:
            explain_room(c, r, g, c.rest[g], n.rest_after[k, g], a.parts[j])
        move(
            heap_at, heap_room, size, pool, count, c.class_of, c.moved_from, c.moved_to, c.moved,
            nodes[0], to,
        )  # fmt: skip
    return end, DONE


@njit(cache=True, error_model="numpy")
def ask_classes(rule, weights, host_codes, c, lay, n, r, k):
    """Find the answers of the classes that are new to a need."""
    wish, gpus, mig, amount = n.wish[k], n.gpus[k], n.mig[k], n.amount[k]
    codes, total, used_of, gap_of = n.code[k], n.total[k], n.used[k], n.gap[k]
    lasting, wanted, expiries, providers = n.lasting[k], n.wanted[k], n.expiry[k], n.provider[k]
    found_codes, gaps, after, added = (
        lay.code[wish],
        lay.gap[wish],
        lay.after[wish],
        lay.added[wish],
    )
    makes, layouts, free, in_use = c.make, c.layout, c.free, c.amount
    make_amount, make_unnamed, alone, size = c.make_amount, c.make_unnamed, c.alone, c.size
    next_of, place = n.next[k], n.place[k]
    for g in range(n.asked[k], c.numbers[CLASSES]):
        make, layout = makes[g], layouts[g]
        code = found_codes[layout]
        if code == UNKNOWN:
            return ask(c.numbers, ASK_LAYOUT, k, layout)
        code = min(code, lasting[make])
        for i in range(len(host_codes)):
            if free[g, i] + EPSILON < wanted[make, i] and host_codes[i] < code:
                code = host_codes[i]
        codes[g] = code
        next_of[g] = place[g] = -1
        if code == FITS:
            if alone[g] and size[g] > 0:
                return ask(c.numbers, ASK_ALONE, k, g)
            more = gpus if make_unnamed[make] else amount
            if mig:
                more = added[layout]
            used = min((in_use[g] + more) / make_amount[make], 1.0)
            used_of[g], gap_of[g] = used, gaps[layout]
            expiry, provider = weights[2] * expiries[make], weights[3] * providers[make]
            if rule == KEEP_ROOM:
                stopped = set_room_total(c, lay, n, r, k, g, after[layout], expiry + provider)
                if stopped != DONE:
                    return stopped
            else:
                value = weights[0] * used + weights[1] * gaps[layout] + expiry + provider
                total[g] = np.rint(value * 1e9) / 1e9
        n.asked[k] = g + 1
    return DONE


@njit(cache=True)
def ask(count, question, k, subject):
    count[NEED] = k
    count[SUBJECT] = subject
    return question


@njit(cache=True, error_model="numpy")
def set_room_total(c, lay, n, r, k, g, after, beside):
    """Value a class by the room that is lost there."""
    had = rest_of_class(c, lay, r, g)
    if had < 0:
        return FULL
    make = c.make[g]
    rest = rest_for(
        c.numbers, r, r.size[had], lay.gpus[after], r.left[had, 0] - n.wanted[k, make, 0],
        r.left[had, 1] - n.wanted[k, make, 1], r.jobs[had] + 1,
    )  # fmt: skip
    if rest < 0:
        return FULL
    n.rest_after[k, g] = rest
    n.total[k, g] = room_total(
        r.worth, r.idle, r.gpus, had, rest, c.free[g, 0] + EPSILON, c.free[g, 1] + EPSILON, beside
    )
    return DONE


@njit(cache=True)
def follow(
    built, followed, heap_size, counts, codes, heap, place, total, first, heap_at, size, pool,
    count, moved_from, moved_to, moved, k,
):  # fmt: skip
    """Count the nodes by answer and put the classes in order, by the moves since the last time."""
    if not built[k]:
        counts[:] = 0
        length = 0
        for g in range(count[CLASSES]):
            counts[codes[g]] += size[g]
            place[g] = -1
            if codes[g] == FITS and size[g] > 0:
                first[g] = pool[heap_at[g]]
                heap[length] = g
                length += 1
                settle(heap, place, total, first, length, length - 1)
        heap_size[k] = length
        built[k] = True
    else:
        length = heap_size[k]
        for i in range(followed[k], count[MOVES]):
            counts[codes[moved_from[i]]] -= 1
            g = moved_to[i]
            counts[codes[g]] += 1
            if codes[g] == FITS:
                length = arrived(heap, place, total, first, length, g, moved[i])
        heap_size[k] = length
    followed[k] = count[MOVES]


@njit(cache=True)
def look_anew(weights, c, n, r, rows):
    """Value all classes again, for the outlook has changed."""
    for k in range(rows):
        total, codes, rest_after = n.total[k], n.code[k], n.rest_after[k]
        expiries, providers = n.expiry[k], n.provider[k]
        for g in range(n.asked[k]):
            if codes[g] == FITS and not (c.alone[g] and c.size[g] == 0):
                make = c.make[g]
                total[g] = room_total(
                    r.worth, r.idle, r.gpus, c.rest[g], rest_after[g], c.free[g, 0] + EPSILON,
                    c.free[g, 1] + EPSILON,
                    weights[2] * expiries[make] + weights[3] * providers[make],
                )  # fmt: skip
        n.built[k] = False


@njit(cache=True)
def find_next(c, lay, n, k, g):
    """Find the class of a node of class g once the job is there."""
    make, wish, layout = c.make[g], n.wish[k], c.layout[g]
    after = lay.after[wish, layout]
    if after < 0 and lay.family[layout] >= 0 and not lay.in_parts[wish]:
        after = lay.by_free[lay.family[layout], lay.free[layout] & ~lay.mask[wish, layout]]
        lay.after[wish, layout] = after
    if after < 0:
        return ask(c.numbers, ASK_LAYOUT, k, layout)
    new = c.numbers[CLASSES]
    if new + 1 >= len(c.make):
        return FULL
    c.make[new], c.layout[new] = make, after
    for i in range(c.free.shape[1]):
        c.free[new, i] = c.free[g, i] - n.wanted[k, make, i]
    each = lay.added[wish, layout] if n.mig[k] else n.vram[k]
    c.vram_used[new] = c.vram_used[g] + each * bits_of(lay.mask[wish, layout])
    c.jobs[new] = c.jobs[g] + 1
    c.alone[new] = 0
    c.amount[new] = lay.taken[after] if c.make_unnamed[make] else c.vram_used[new]
    n.next[k, g] = known_class(c)
    return DONE


@njit(cache=True)
def known_class(c):
    """Return the class like the one in the first spare row, which joins where there is none."""
    new, alone = c.numbers[CLASSES], np.int64(c.alone[c.numbers[CLASSES]])
    hashed = np.int64(c.make[new]) * 31 + c.layout[new] * 17 + c.jobs[new] * 7 + alone * 131
    hashed = (hashed ^ c.vram_bits[new]) * 0x9E3779B97F4A7C1
    for i in range(c.free_bits.shape[1]):
        hashed = (hashed ^ (hashed >> 29) ^ c.free_bits[new, i]) * 0xBF58476D1CE4E5B
    most = len(c.buckets) - 1
    at = (hashed ^ (hashed >> 32)) & most
    while c.buckets[at] >= 0:
        if same_class(c, c.buckets[at], new):
            return c.buckets[at]
        at = (at + 1) & most
    c.buckets[at] = new
    c.size[new] = 0
    c.heap_at[new] = 0
    c.heap_room[new] = 0
    c.rest[new] = -1
    c.numbers[CLASSES] = new + 1
    return new


@njit(cache=True)
def same_class(c, a, b):
    if c.make[a] != c.make[b] or c.layout[a] != c.layout[b] or c.jobs[a] != c.jobs[b]:
        return False
    if c.alone[a] != c.alone[b] or c.vram_bits[a] != c.vram_bits[b]:
        return False
    return (c.free_bits[a] == c.free_bits[b]).all()


@njit(cache=True)
def bits_of(mask):
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@njit(cache=True)
def move(
    heap_at, heap_room, size, pool, count, class_of, moved_from, moved_to, moved, position, to
):
    """Move a node to another class."""
    old = class_of[position]
    leave(heap_at, size, pool, old, position)
    join(heap_at, heap_room, size, pool, count, to, position)
    class_of[position] = to
    at = count[MOVES]
    moved_from[at], moved_to[at], moved[at] = old, to, position
    count[MOVES] = at + 1


@njit(cache=True)
def move_to_known(c, position):
    """Move a node to the class in the first spare row."""
    to = known_class(c)
    move(
        c.heap_at, c.heap_room, c.size, c.pool, c.numbers, c.class_of, c.moved_from, c.moved_to,
        c.moved, position, to,
    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def answer_alone(rule, weights, c, lay, n, r, k, g, code, gap, after, added):
    """Take in what Python found for a node with reservations; return DONE or FULL."""
    if code == FITS:
        make = c.make[g]
        more = n.gpus[k] if c.make_unnamed[make] else n.amount[k]
        if n.mig[k]:
            more = added
        n.used[k, g] = min((c.amount[g] + more) / c.make_amount[make], 1.0)
        n.gap[k, g] = gap
        expiry, provider = weights[2] * n.expiry[k, make], weights[3] * n.provider[k, make]
        if rule == KEEP_ROOM:
            stopped = set_room_total(c, lay, n, r, k, g, after, expiry + provider)
            if stopped != DONE:
                return stopped
        else:
            value = weights[0] * n.used[k, g] + weights[1] * gap + expiry + provider
            n.total[k, g] = np.rint(value * 1e9) / 1e9
    n.code[k, g] = code
    n.asked[k] = g + 1
    return DONE


@njit(cache=True)
def index_classes(c):
    """Find in the hash from now on all classes that there are; no two are alike."""
    count = c.numbers[CLASSES]
    c.numbers[CLASSES] = 0
    for g in range(count):
        size, at, room, rest = c.size[g], c.heap_at[g], c.heap_room[g], c.rest[g]
        known_class(c)
        c.size[g], c.heap_at[g], c.heap_room[g], c.rest[g] = size, at, room, rest
