"""Compiled: cells, which hold classes of nodes that lie near each other, with bounds.

See `arrays.Cells`.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np

from longshore.scheduling.bulk.arrays import (
    AMOUNTS,
    CELLS,
    CHEAPEST,
    CLASSES,
    FACE,
    FEWEST_JOBS,
    FIRST,
    HEAD,
    KEPT,
    LEAST_USED,
    LOOK,
    MOST_USED,
    NODES,
    ORDER,
    RANKS,
    RESTS,
    STALE,
)
from longshore.scheduling.bulk.compiling import entry, inner
from longshore.scheduling.bulk.questions import KEEP_ROOM
from longshore.scheduling.bulk.rests import EMPTIER, EPSILON, rest_of_class

NO_POSITION = np.int32(2**31 - 1)


@entry
def index_cells(rule, c, x, f, lay, r):
    """Put every class that has nodes into its cell; return False where the arrays are full."""
    count = c.numbers
    x.buckets[:] = -1
    x.face_at[:] = 0
    x.face_room[:] = 0
    x.face_cells[:] = 0
    count[CELLS] = 0
    count[ORDER] = 0
    for g in range(count[CLASSES]):
        c.cell[g] = -1
    for g in range(count[CLASSES]):
        if c.size[g] == 0 or c.alone[g]:
            continue
        if not has_room(c, x, r):
            return False
        enter(rule, c, x, f, lay, r, g, c.pool[c.heap_at[g]], c.size[g])
    return True


@entry
def has_room(c, x, r):
    """Say whether another class, its rest and its cell find room."""
    count = c.numbers
    if count[CELLS] + 1 >= len(x.key) or count[ORDER] + 2 * count[CELLS] + 4 >= len(x.order):
        return False
    return len(r.size) == 0 or count[RESTS] + 4 < len(r.size)


@inner
def enter(rule, c, x, f, lay, r, g, first, nodes):
    """Take in that nodes have joined a class, the first of them at this position."""
    facts = x.facts
    cell = c.cell[g]
    if cell < 0:
        cell = find_cell(c, x, f.of_make[c.make[g]], lay.look[c.layout[g]], g)
        c.cell[g] = cell
        c.later[g] = facts[cell, HEAD]
        facts[cell, HEAD] = g
        if rule == KEEP_ROOM:
            rest_of_class(c, lay, r, g)
        widen(rule, c.free, c.amount, c.jobs, c.rest, r.worth, r.idle, r.gpus, facts, x.bounds,
              cell, g)  # fmt: skip
    facts[cell, NODES] += nodes
    facts[cell, FIRST] = min(facts[cell, FIRST], first)


@inner
def left(c, x, g, position):
    """Take in that a node has left a class."""
    cell = c.cell[g]
    if cell < 0:
        return
    x.facts[cell, NODES] -= 1
    if c.size[g] == 0 or x.facts[cell, FIRST] == position:
        x.facts[cell, STALE] = 1


@inner
def keep_node(c, position):
    """Note that a node has reservations from now on."""
    for i in range(c.numbers[KEPT]):
        if c.kept[i] == position:
            return
    c.kept[c.numbers[KEPT]] = position
    c.numbers[KEPT] += 1


@inner
def refresh(rule, c, x, r, cell):
    """Drop the classes of a cell that have no nodes, and make its bounds as narrow as they are."""
    clear_bounds(x.facts, x.bounds, cell)
    before, g = -1, x.facts[cell, HEAD]
    while g >= 0:
        later = c.later[g]
        if c.size[g] == 0:
            c.cell[g] = -1
            if before < 0:
                x.facts[cell, HEAD] = later
            else:
                c.later[before] = later
        else:
            before = g
            widen(rule, c.free, c.amount, c.jobs, c.rest, r.worth, r.idle, r.gpus, x.facts,
                  x.bounds, cell, g)  # fmt: skip
            x.facts[cell, FIRST] = min(x.facts[cell, FIRST], c.pool[c.heap_at[g]])
        g = later


@entry
def refresh_all(rule, c, x, r):
    """Make all bounds anew, for what room is worth has changed."""
    for cell in range(c.numbers[CELLS]):
        refresh(rule, c, x, r, cell)


@inner
def widen(rule, free, amount, jobs, rests, worth, idle, gpus, facts, bounds, cell, g):
    """Widen the bounds of a cell so that they hold for a class."""
    amounts = free.shape[1]
    bounds[cell, LEAST_USED] = min(bounds[cell, LEAST_USED], amount[g])
    bounds[cell, MOST_USED] = max(bounds[cell, MOST_USED], amount[g])
    for i in range(amounts):
        low, high = AMOUNTS + i, AMOUNTS + amounts + i
        bounds[cell, low] = min(bounds[cell, low], free[g, i])
        bounds[cell, high] = max(bounds[cell, high], free[g, i])
    facts[cell, FEWEST_JOBS] = min(facts[cell, FEWEST_JOBS], jobs[g])
    if rule == KEEP_ROOM:
        rest = rests[g]
        emptier = EMPTIER[0] * idle[gpus[rest]] + EMPTIER[1] * (free[g, 0] + EPSILON)
        own = worth[rest] + emptier + EMPTIER[2] * (free[g, 1] + EPSILON)
        bounds[cell, CHEAPEST] = min(bounds[cell, CHEAPEST], own)


@inner
def clear_bounds(facts, bounds, cell):
    facts[cell, FIRST] = NO_POSITION
    facts[cell, STALE] = 0
    facts[cell, FEWEST_JOBS] = NO_POSITION
    amounts = (bounds.shape[1] - AMOUNTS) // 2
    bounds[cell, :] = np.inf
    bounds[cell, MOST_USED] = -np.inf
    bounds[cell, AMOUNTS + amounts :] = -np.inf


@inner
def find_cell(c, x, face, look, g):
    """Return the cell for a class, a new one where there is none."""
    key = np.int64(face) << 40 | np.int64(look) << 16
    for i in range(c.free.shape[1]):
        key |= np.int64(rank_of(x.steps[i], c.free[g, i])) << (4 * i)
    hashed = (key ^ (key >> 29)) * 0xBF58476D1CE4E5B
    most = len(x.buckets) - 1
    at = (hashed ^ (hashed >> 32)) & most
    while x.buckets[at] >= 0:
        if x.key[x.buckets[at]] == key:
            return x.buckets[at]
        at = (at + 1) & most
    cell = c.numbers[CELLS]
    x.buckets[at] = cell
    c.numbers[CELLS] = cell + 1
    x.key[cell] = key
    x.facts[cell, FACE], x.facts[cell, LOOK] = face, look
    x.facts[cell, NODES], x.facts[cell, HEAD] = 0, -1
    clear_bounds(x.facts, x.bounds, cell)
    add_to_face(c.numbers, x.order, x.face_at, x.face_room, x.face_cells, face, cell)
    return cell


@inner
def rank_of(steps, amount):
    """Return how many of the amounts that are wanted are there."""
    rank = 0
    while rank < RANKS and amount + EPSILON >= steps[rank]:
        rank += 1
    return rank


@inner
def add_to_face(count, order, face_at, face_room, face_cells, face, cell):
    cells = face_cells[face]
    if cells == face_room[face]:
        at = count[ORDER]
        for i in range(cells):
            order[at + i] = order[face_at[face] + i]
        face_at[face] = at
        face_room[face] = 2 * cells + 4
        count[ORDER] += face_room[face]
    order[face_at[face] + cells] = cell
    face_cells[face] = cells + 1
