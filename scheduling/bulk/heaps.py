"""Compiled heaps: of the nodes of a class, and of the classes that could take a job.

Functions take the arrays that they need, and no groups of them: to pass a group costs more than
the work.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np
from numba import njit

from scheduling.bulk.arrays import MOST_SHOWN, POOL


@njit(cache=True)
def has_cells(heap_room, size, pool, count, g):
    """Say whether another node can join a class, with the cells that are left."""
    return size[g] < heap_room[g] or count[POOL] + 2 * size[g] + 4 <= len(pool)


@njit(cache=True)
def join(heap_at, heap_room, size, pool, count, g, position):
    """Put a node into the heap of a class; `has_cells` must hold."""
    nodes = size[g]
    if nodes == heap_room[g]:
        at, room = count[POOL], 2 * nodes + 4
        for i in range(nodes):
            pool[at + i] = pool[heap_at[g] + i]
        heap_at[g] = at
        heap_room[g] = room
        count[POOL] += room
    size[g] = nodes + 1
    at, i = heap_at[g], nodes
    while i > 0 and pool[at + (i - 1) // 2] > position:
        pool[at + i] = pool[at + (i - 1) // 2]
        i = (i - 1) // 2
    pool[at + i] = position


@njit(cache=True)
def leave(heap_at, size, pool, g, position):
    """Take a node out of the heap of its class; the first one is found at once."""
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


@njit(cache=True)
def before(total, first, a, b):
    """Say whether class a comes before b: the better one, then the one with the first node."""
    return total[a] > total[b] or (total[a] == total[b] and first[a] < first[b])


@njit(cache=True)
def settle(heap, place, total, first, length, i):
    """Move the class at place i of a heap to where it belongs."""
    g = heap[i]
    while i > 0 and before(total, first, g, heap[(i - 1) // 2]):
        heap[i] = heap[(i - 1) // 2]
        place[heap[i]] = i
        i = (i - 1) // 2
    while 2 * i + 1 < length:
        child = 2 * i + 1
        if child + 1 < length and before(total, first, heap[child + 1], heap[child]):
            child += 1
        if not before(total, first, heap[child], g):
            break
        heap[i] = heap[child]
        place[heap[i]] = i
        i = child
    heap[i] = g
    place[g] = i


@njit(cache=True)
def arrived(heap, place, total, first, length, g, position):
    """Take in that a node has joined a class that could take the job; return the new length.

    That a node has left one is taken in where it is seen: see `freshen`.
    """
    i = place[g]
    if i >= 0 and first[g] <= position:
        return length
    first[g] = position
    if i < 0:
        i = length
        length += 1
        heap[i] = g
    settle(heap, place, total, first, length, i)
    return length


@njit(cache=True)
def freshen(heap, place, total, first, length, i, heap_at, size, pool):
    """Bring the class at place i up to date; return the length then, -1 where it was right."""
    g = heap[i]
    if size[g] > 0:
        if first[g] == pool[heap_at[g]]:
            return -1
        first[g] = pool[heap_at[g]]
    else:
        place[g] = -1
        length -= 1
        if i == length:
            return length
        heap[i] = heap[length]
    settle(heap, place, total, first, length, i)
    return length


@njit(cache=True)
def best_nodes(
    heap, place, total, first, length, heap_at, size, pool, front, nodes, groups, totals
):
    """Put the best nodes into `nodes`: best first, ties in the order of positions.

    Returns the length of the heap, without classes that have no nodes: 0 where no node is left.
    """
    again = True
    while again and length > 0:
        again = False
        front[0], waiting, found = 0, 1, 0
        for _ in range(MOST_SHOWN):
            if waiting == 0:
                break
            best = 0
            for i in range(1, waiting):
                if before(total, first, heap[front[i]], heap[front[best]]):
                    best = i
            here = front[best]
            shorter = freshen(heap, place, total, first, length, here, heap_at, size, pool)
            if shorter >= 0:  # the order has changed: look from the top again
                length, again = shorter, True
                break
            waiting -= 1
            front[best] = front[waiting]
            for child in (2 * here + 1, 2 * here + 2):
                if child < length:
                    front[waiting] = child
                    waiting += 1
            g = heap[here]
            if found == MOST_SHOWN and total[g] < totals[MOST_SHOWN - 1]:
                break
            found = merge(heap_at[g], size[g], pool, g, total[g], nodes, groups, totals, found)
    return length


@njit(cache=True)
def merge(at, length, pool, g, total, nodes, groups, totals, found):
    """Put the first nodes of a class among the best; all before are at least as good."""
    front = np.empty(2 * MOST_SHOWN + 1, np.int32)
    front[0], waiting = 0, 1
    for _ in range(MOST_SHOWN):
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
        i = found
        while i > 0 and totals[i - 1] == total and nodes[i - 1] > position:
            i -= 1
        if i == MOST_SHOWN:
            break
        found = min(found + 1, MOST_SHOWN)
        for later in range(found - 1, i, -1):
            nodes[later], groups[later] = nodes[later - 1], groups[later - 1]
            totals[later] = totals[later - 1]
        nodes[i], groups[i], totals[i] = position, g, total
    return found
