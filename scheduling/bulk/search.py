"""Compiled: the best nodes for one need, and the count of all nodes by answer.

Nodes that static constraints rule out are counted once per batch. The others are counted by whole
buckets, from their bounds; class by class only in buckets of which some nodes have enough and some
do not. Then the buckets that could take the job are bounded, and only those that may hold one of
the best nodes are scanned.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np

from longshore.scheduling.bulk.arrays import (
    AMOUNTS,
    HEAD,
    NODES,
    RESERVED_NODES,
    SIGNATURE,
    STALE,
    UNKNOWN,
)
from longshore.scheduling.bulk.class_buckets import refresh
from longshore.scheduling.bulk.compiling import inner
from longshore.scheduling.bulk.node_heap import offer
from longshore.scheduling.bulk.questions import ASK_ALONE, ASK_SIGNATURE, DONE, FULL, KEEP_ROOM
from longshore.scheduling.bulk.values import (
    ask,
    bound_by_headroom,
    bound_by_score,
    scan_by_headroom,
    scan_by_score,
    value_of,
)
from longshore.scheduling.placement.layouts import FITS
from longshore.scheduling.placement.slots import EPSILON


@inner
def search(rule, weights, host_codes, c, x, f, lay, n, r, k, counts, nodes, groups, totals):
    """Find the best nodes for a need; return how many, and DONE or what to ask first."""
    count = c.numbers
    row = n.lasting[k]
    for code in range(FITS + 1):
        counts[code] = f.closed[row, code]
    nodes[:] = -1
    groups[:] = -1
    signatures, wanted = lay.signature_code[n.request[k]], n.wanted[k]
    facts, bounds, order, power = x.facts, x.bounds, x.order, f.power
    best = x.best
    waiting = 0
    for of_row in range(f.open_at[row], f.open_at[row + 1]):
        eligibility = f.open[of_row]
        want = wanted[power[eligibility]]
        begin = x.eligibility_at[eligibility]
        for i in range(begin, begin + x.eligibility_buckets[eligibility]):
            bucket = order[i]
            if facts[bucket, NODES] == 0:
                continue
            code = signatures[facts[bucket, SIGNATURE]]
            if code == UNKNOWN:
                return 0, ask(count, ASK_SIGNATURE, k, facts[bucket, SIGNATURE])
            host = host_code_of(bounds, bucket, want, host_codes)
            if host == UNKNOWN and facts[bucket, STALE]:
                refresh(rule, c, x, r, bucket)
                host = host_code_of(bounds, bucket, want, host_codes)
            if host == UNKNOWN:
                if not count_classes(c, facts, bucket, want, host_codes, code, counts):
                    continue
            else:
                code = min(code, host)
                counts[code] += facts[bucket, NODES]
                if code != FITS:
                    continue
            best[waiting] = bucket
            waiting += 1
    if rule == KEEP_ROOM:
        if bound_by_headroom(weights, count, x, f, lay, n, r, k, waiting) != DONE:
            return 0, FULL
        found, stopped = scan_by_headroom(
            rule, weights, c, x, f, lay, n, r, k, waiting, nodes, groups, totals
        )
    else:
        bound_by_score(weights, x, f, n, k, waiting)
        found, stopped = scan_by_score(
            rule, weights, c, x, f, lay, n, r, k, waiting, nodes, groups, totals
        )
    if stopped != DONE or count[RESERVED_NODES] == 0:
        return found, stopped
    return beside_reservations(
        rule,
        weights,
        host_codes,
        c,
        f,
        lay,
        n,
        r,
        k,
        counts,
        nodes,
        groups,
        totals,
        found,
        x.front,
    )


@inner
def host_code_of(bounds, bucket, want, host_codes):
    """Return the first amount that no node of a bucket has; UNKNOWN where only some have it."""
    amounts = len(want)
    for i in range(amounts):
        if bounds[bucket, AMOUNTS + i] + EPSILON < want[i]:
            most = bounds[bucket, AMOUNTS + amounts + i]
            return host_codes[i] if most + EPSILON < want[i] else np.uint8(UNKNOWN)
    return np.uint8(FITS)


@inner
def count_classes(c, facts, bucket, want, host_codes, code, counts):
    """Count the nodes of a bucket class by class; return whether one could take the job."""
    fits = False
    g = facts[bucket, HEAD]
    while g >= 0:
        own = min(code, host_code(c.free, g, want, host_codes))
        counts[own] += c.size[g]
        fits |= own == FITS
        g = c.later[g]
    return fits


@inner
def host_code(free, g, want, host_codes):
    """Return the first amount that nodes of a class do not have, FITS where all suffice."""
    for i in range(len(want)):
        if free[g, i] + EPSILON < want[i]:
            return host_codes[i]
    return np.uint8(FITS)


@inner
def beside_reservations(
    rule, weights, host_codes, c, f, lay, n, r, k, counts, nodes, groups, totals, found, front
):  # fmt: skip
    """Count the nodes with reservations, and put them among the best where they are."""
    request, row = n.request[k], n.lasting[k]
    for i in range(c.numbers[RESERVED_NODES]):
        g = c.class_of[c.reserved_nodes[i]]
        traits, signature = c.traits[g], lay.signature[c.layout[g]]
        if f.code[row, traits] != FITS:
            continue
        code = lay.signature_code[request, signature]
        if code == UNKNOWN:
            return found, ask(c.numbers, ASK_SIGNATURE, k, signature)
        want = n.wanted[k, f.power[f.of_traits[traits]]]
        code = min(code, host_code(c.free, g, want, host_codes))
        if code == FITS:
            if n.beside_class[k, i] != g:
                return found, ask(c.numbers, ASK_ALONE, k, i)
            code = n.beside_code[k, i]
        counts[code] += 1
        if code != FITS:
            continue
        total = value_of(
            rule, weights, c, f, lay, n, r, k, g, n.beside_gap[k, i], n.beside_link[k, i],
            n.beside_added[k, i], n.beside_gpus[k, i],
        )  # fmt: skip
        if total == -np.inf:
            return found, FULL
        found = offer(
            c.heap_at, c.size, c.pool, g, total, nodes, groups, totals, found, front
        )  # fmt: skip
    return found, DONE
