"""Compiled search for the places of a whole queue. Import only where a decision is made."""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np
from numba import njit

from scheduling.packing.kernels import fits
from scheduling.packing.room_kernels import loss_on, worth_now

PLACED = 50
"""Milli that placing a request counts beside its GPUs, so that CPU-only requests count too."""
MOST_NODES = 4
"""Nodes that are emptied of the queue at one time."""
MOST_WAITING = 24
"""Requests without a place that are tried at one time."""


@njit(cache=True)
def place_all(fleet, requests, outlook, tries, seed):
    """Place the rows of `requests`, largest first, then empty and refill a few nodes at a time.

    A refill stays when it places more GPU-milli, or as many on nodes that are worth more after.
    Changes the columns. Returns the node (-1 for none) and the mask of GPUs of each row.
    """
    count = len(requests)
    where = np.full(count, -1)
    masks = np.zeros(count, np.int64)
    sizes = sizes_of(requests, outlook)
    everywhere = np.arange(len(fleet.cpu))
    for r in np.argsort(-sizes, kind="mergesort"):
        insert(fleet, requests, r, outlook, everywhere, where, masks)
    state = seed
    waiting = np.zeros(count, np.int64)
    if count == 0 or len(fleet.cpu) == 0:
        return where, masks
    for _ in range(tries):
        state, nodes = some_nodes(state, where, len(fleet.cpu))
        found = 0
        for r in range(count):
            if where[r] >= 0 and is_in(nodes, where[r]):
                waiting[found] = r
                found += 1
        homeless = 0
        state, offset = draw(state, count)
        for i in range(count):
            r = (offset + i) % count
            if where[r] < 0 and homeless < MOST_WAITING:
                waiting[found] = r
                found += 1
                homeless += 1
        if found > 0:
            state = refill(
                fleet, requests, sizes, outlook, nodes, waiting[:found], where, masks, state
            )
    return where, masks


@njit(cache=True)
def sizes_of(requests, outlook):
    """Return the milli of each request, or what its cores come with on average if that is more."""
    sizes = np.zeros(len(requests))
    for r in range(len(requests)):
        milli = float(requests[r, 2] * requests[r, 3])
        sizes[r] = max(milli, 0.5 * requests[r, 0] / max(outlook.cpu_per_milli, 1e-3))
    return sizes


@njit(cache=True)
def refill(fleet, requests, sizes, outlook, nodes, group, where, masks, state):
    """Take a group of requests out, put it back in another order, and keep the better state."""
    old_where, old_masks = where[group].copy(), masks[group].copy()
    before = value_of(fleet, requests, outlook, nodes, group, where)
    for r in group:
        if where[r] >= 0:
            put(fleet, requests[r], where[r], masks[r], 1)
            where[r] = -1
    keys = np.zeros(len(group))
    for i in range(len(group)):
        state, chance = draw(state, 1000)
        keys[i] = -sizes[group[i]] * (0.5 + chance / 1000.0)
    for i in np.argsort(keys, kind="mergesort"):
        insert(fleet, requests, group[i], outlook, nodes, where, masks)
    if value_of(fleet, requests, outlook, nodes, group, where) >= before:
        return state
    for i in range(len(group)):
        if where[group[i]] >= 0:
            put(fleet, requests[group[i]], where[group[i]], masks[group[i]], 1)
    for i in range(len(group)):
        where[group[i]], masks[group[i]] = old_where[i], old_masks[i]
        if old_where[i] >= 0:
            put(fleet, requests[group[i]], old_where[i], old_masks[i], -1)
    return state


@njit(cache=True)
def value_of(fleet, requests, outlook, nodes, group, where):
    """Return what counts: milli placed above all, then the worth of the nodes."""
    placed = 0.0
    for r in group:
        if where[r] >= 0:
            placed += requests[r, 2] * requests[r, 3] + PLACED
    value = 1e6 * placed
    for n in nodes:
        value += worth_now(fleet, n, outlook)
    return value


@njit(cache=True)
def insert(fleet, requests, r, outlook, nodes, where, masks):
    """Put a request where it costs least worth among these nodes, if it fits on one."""
    request = as_tuple(requests[r])
    best, best_loss, best_mask = -1, 0.0, 0
    for n in nodes:
        if not fits(fleet, n, request):
            continue
        before = worth_now(fleet, n, outlook)
        loss, mask = loss_on(fleet, n, request, outlook, before, fleet.jobs[n] + 1.0)
        if best < 0 or loss < best_loss:
            best, best_loss, best_mask = n, loss, mask
    if best >= 0:
        put(fleet, requests[r], best, best_mask, -1)
        where[r], masks[r] = best, best_mask


@njit(cache=True)
def put(fleet, request, n, mask, sign):
    """Take a request's share of node n (sign -1), or give it back (sign 1)."""
    fleet.cpu[n] += sign * request[0]
    fleet.ram[n] += sign * request[1]
    fleet.jobs[n] -= sign
    for j in range(fleet.gpus[n]):
        if (mask >> j) & 1:
            fleet.milli[n, j] += sign * request[3]
            fleet.vram[n, j] += sign * request[4]


@njit(cache=True)
def some_nodes(state, where, count):
    """Draw two to four nodes, most of them with requests of the queue on them."""
    state, more = draw(state, MOST_NODES - 1)
    wanted = min(2 + more, count)
    nodes = np.full(wanted, -1)
    found = 0
    while found < wanted:
        state, chance = draw(state, 2)
        state, r = draw(state, len(where))
        state, n = draw(state, count)
        if where[r] >= 0 and (found == 0 or chance == 0):
            n = where[r]
        if not is_in(nodes, n):
            nodes[found] = n
            found += 1
    return state, nodes


@njit(cache=True)
def is_in(nodes, n):
    return (nodes == n).any()


@njit(cache=True)
def draw(state, below):
    """Return the next state, and a number from 0 to below - 1 that follows from it."""
    state = (state * 25214903917 + 11) & 0xFFFFFFFFFFFF
    return state, (state >> 17) % below


@njit(cache=True)
def as_tuple(request):
    return (request[0], request[1], request[2], request[3], request[4], request[5])
