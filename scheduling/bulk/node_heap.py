"""Compiled: the node heap of each class, and the best nodes of all.

Functions take the arrays that they need, and no groups of them: to pass a group costs more than
the work.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

from longshore.scheduling.bulk.arrays import MOST_SHOWN, POOL
from longshore.scheduling.bulk.compiling import inner


@inner
def heap_has_capacity(heap_capacity, size, pool, count, g):
    """Return whether the pool has capacity to push another node."""
    return size[g] < heap_capacity[g] or count[POOL] + 2 * size[g] + 4 <= len(pool)


@inner
def push(heap_at, heap_capacity, size, pool, count, g, position):
    """Push a node onto the heap of a class; `heap_has_capacity` must hold."""
    nodes = size[g]
    if nodes == heap_capacity[g]:
        at, capacity = count[POOL], 2 * nodes + 4
        for i in range(nodes):
            pool[at + i] = pool[heap_at[g] + i]
        heap_at[g] = at
        heap_capacity[g] = capacity
        count[POOL] += capacity
    size[g] = nodes + 1
    at, i = heap_at[g], nodes
    while i > 0 and pool[at + (i - 1) // 2] > position:
        pool[at + i] = pool[at + (i - 1) // 2]
        i = (i - 1) // 2
    pool[at + i] = position


@inner
def remove(heap_at, size, pool, g, position):
    """Remove a node from the heap of its class; the first one is found at once."""
    at, nodes = heap_at[g], size[g] - 1
    i = 0
    while pool[at + i] != position:
        i += 1
    last = pool[at + nodes]
    size[g] = nodes
    if i == nodes:
        return
    while i > 0 and pool[at + (i - 1) // 2] > last:
        pool[at + i] = pool[at + (i - 1) // 2]
        i = (i - 1) // 2
    while 2 * i + 1 < nodes:
        child = 2 * i + 1
        if child + 1 < nodes and pool[at + child + 1] < pool[at + child]:
            child += 1
        if pool[at + child] >= last:
            break
        pool[at + i] = pool[at + child]
        i = child
    pool[at + i] = last


@inner
def offer(heap_at, size, pool, g, total, nodes, groups, totals, found, front):
    """Put the first nodes of a class among the best; return how many these are then.

    Best first, ties in the order of positions.
    """
    at, length = heap_at[g], size[g]
    position = pool[at]
    if found == MOST_SHOWN and not is_before(total, position, totals, nodes, found - 1):
        return found
    found = put(position, g, total, nodes, groups, totals, found)
    if length == 1:
        return found
    front[0], waiting = 1, 1
    if length > 2:
        front[1], waiting = 2, 2
    for _ in range(MOST_SHOWN - 1):
        if waiting == 0:
            break
        best = 0
        for i in range(1, waiting):
            if pool[at + front[i]] < pool[at + front[best]]:
                best = i
        here = front[best]
        waiting -= 1
        front[best] = front[waiting]
        for child in (2 * here + 1, 2 * here + 2):
            if child < length:
                front[waiting] = child
                waiting += 1
        position = pool[at + here]
        if found == MOST_SHOWN and not is_before(total, position, totals, nodes, found - 1):
            break
        found = put(position, g, total, nodes, groups, totals, found)
    return found


@inner
def is_before(total, position, totals, nodes, i):
    """Say whether a node is better than the one at place i, or as good and before it."""
    return total > totals[i] or (total == totals[i] and position < nodes[i])


@inner
def put(position, g, total, nodes, groups, totals, found):
    """Put a node among the best, before all that it is better than."""
    i = found
    while i > 0 and is_before(total, position, totals, nodes, i - 1):
        i -= 1
    found = min(found + 1, MOST_SHOWN)
    for later in range(found - 1, i, -1):
        nodes[later], groups[later] = nodes[later - 1], groups[later - 1]
        totals[later] = totals[later - 1]
    nodes[i], groups[i], totals[i] = position, g, total
    return found
