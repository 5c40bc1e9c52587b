"""Compiled: the best nodes for one need, and the count of all nodes by answer.

The faces where what lasts fails were counted once for all. In the others whole cells are counted
by their bounds; only where amounts of a cell lie on both sides of what is wanted are its classes
asked. Then the cells that could take the job are valued by their bounds, and only those that may
hold one of the best nodes are looked into.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np

from longshore.scheduling.bulk.arrays import AMOUNTS, HEAD, KEPT, LOOK, NODES, STALE, UNKNOWN
from longshore.scheduling.bulk.cells import refresh
from longshore.scheduling.bulk.compiling import inner
from longshore.scheduling.bulk.heaps import offer
from longshore.scheduling.bulk.questions import ASK_ALONE, ASK_LOOK, DONE, FULL, KEEP_ROOM
from longshore.scheduling.bulk.rests import EPSILON
from longshore.scheduling.bulk.values import (
    ask,
    bound_by_room,
    bound_by_score,
    look_by_room,
    look_by_score,
    value_of,
)
from longshore.scheduling.placement.layouts import FITS


@inner
def search(rule, weights, host_codes, c, x, f, lay, n, r, k, counts, nodes, groups, totals):
    """Find the best nodes for a need; return how many, and DONE or what to ask first."""
    count = c.numbers
    row = n.lasting[k]
    for code in range(FITS + 1):
        counts[code] = f.closed[row, code]
    nodes[:] = -1
    groups[:] = -1
    looks, wanted = lay.look_code[n.wish[k]], n.wanted[k]
    facts, bounds, order, power = x.facts, x.bounds, x.order, f.power
    best = x.best
    waiting = 0
    for of_row in range(f.open_at[row], f.open_at[row + 1]):
        face = f.open[of_row]
        want = wanted[power[face]]
        begin = x.face_at[face]
        for i in range(begin, begin + x.face_cells[face]):
            cell = order[i]
            if facts[cell, NODES] == 0:
                continue
            code = looks[facts[cell, LOOK]]
            if code == UNKNOWN:
                return 0, ask(count, ASK_LOOK, k, facts[cell, LOOK])
            host = host_code_of(bounds, cell, want, host_codes)
            if host == UNKNOWN and facts[cell, STALE]:
                refresh(rule, c, x, r, cell)
                host = host_code_of(bounds, cell, want, host_codes)
            if host == UNKNOWN:
                if not count_classes(c, facts, cell, want, host_codes, code, counts):
                    continue
            else:
                code = min(code, host)
                counts[code] += facts[cell, NODES]
                if code != FITS:
                    continue
            best[waiting] = cell
            waiting += 1
    if rule == KEEP_ROOM:
        if bound_by_room(weights, count, x, f, lay, n, r, k, waiting) != DONE:
            return 0, FULL
        found, stopped = look_by_room(
            rule, weights, c, x, f, lay, n, r, k, waiting, nodes, groups, totals
        )
    else:
        bound_by_score(weights, x, f, n, k, waiting)
        found, stopped = look_by_score(
            rule, weights, c, x, f, lay, n, r, k, waiting, nodes, groups, totals
        )
    if stopped != DONE or count[KEPT] == 0:
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
def host_code_of(bounds, cell, want, host_codes):
    """Return the first amount that no node of a cell has; UNKNOWN where only some have it."""
    amounts = len(want)
    for i in range(amounts):
        if bounds[cell, AMOUNTS + i] + EPSILON < want[i]:
            most = bounds[cell, AMOUNTS + amounts + i]
            return host_codes[i] if most + EPSILON < want[i] else np.uint8(UNKNOWN)
    return np.uint8(FITS)


@inner
def count_classes(c, facts, cell, want, host_codes, code, counts):
    """Count the nodes of a cell class by class; return whether one could take the job."""
    fits = False
    g = facts[cell, HEAD]
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
    wish, row = n.wish[k], n.lasting[k]
    for i in range(c.numbers[KEPT]):
        g = c.class_of[c.kept[i]]
        make, look = c.make[g], lay.look[c.layout[g]]
        if f.code[row, make] != FITS:
            continue
        code = lay.look_code[wish, look]
        if code == UNKNOWN:
            return found, ask(c.numbers, ASK_LOOK, k, look)
        want = n.wanted[k, f.power[f.of_make[make]]]
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
