"""Compiled rules that ask every node once. Import where a decision is made: numba loads slowly.

Each function takes the fleet's columns, a request as a tuple, and returns the row of the chosen
node (-1 for none) and its GPUs as a bit mask. Among equals the first node wins.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import math

import numpy as np
from numba import njit

SEED_SCORE, BEST_FIT, TIGHT, PACK_TO_EMPTY = 0, 1, 2, 3
FULL = 1000
LARGEST_CPU, LARGEST_MILLI = 128_000.0, 8_000.0
"""The largest node, which the published best fit measures by."""
NOT_YET = -1


@njit(cache=True)
def fits(fleet, n, request):
    """Say whether node n has room for the request on any of its GPUs."""
    cpu, ram, gpus, milli, vram, models = request
    if fleet.cpu[n] < cpu or fleet.ram[n] < ram:
        return False
    if gpus == 0:
        return True
    if fleet.gpus[n] < gpus or (models != 0 and (models >> fleet.model[n]) & 1 == 0):
        return False
    found = 0
    for j in range(fleet.gpus[n]):
        if fleet.milli[n, j] >= milli and fleet.vram[n, j] >= vram:
            found += 1
    return found >= gpus


@njit(cache=True)
def first_gpus(fleet, n, request):
    """Return the mask of the first GPUs with room."""
    _, _, gpus, milli, vram, _ = request
    mask, found = 0, 0
    for j in range(fleet.gpus[n]):
        if found < gpus and fleet.milli[n, j] >= milli and fleet.vram[n, j] >= vram:
            mask |= 1 << j
            found += 1
    return mask


@njit(cache=True)
def fullest_gpus(fleet, n, request):
    """Return the mask of the GPUs with room that have least left; the first among equals."""
    _, _, gpus, milli, vram, _ = request
    mask = 0
    for _ in range(gpus):
        best = -1
        for j in range(fleet.gpus[n]):
            if (mask >> j) & 1 or fleet.milli[n, j] < milli or fleet.vram[n, j] < vram:
                continue
            if best < 0 or fleet.milli[n, j] < fleet.milli[n, best]:
                best = j
        mask |= 1 << best
    return mask


@njit(cache=True)
def choose_by_rule(rule, fleet, request):
    """Return the node with the highest score of a rule, and its GPUs."""
    best, best_score = -1, 0.0
    for n in range(len(fleet.cpu)):
        if not fits(fleet, n, request):
            continue
        if rule == SEED_SCORE:
            score = seed_score(fleet, n, request)
        elif rule == BEST_FIT:
            score = best_fit(fleet, n, request)
        elif rule == TIGHT:
            score = -float(free_milli(fleet, n)) - fleet.cpu[n] * 1e-6
        else:
            score = pack_to_empty(fleet, n, request)
        if best < 0 or score > best_score:
            best, best_score = n, score
    if best < 0:
        return -1, 0
    if rule == SEED_SCORE:
        return best, first_gpus(fleet, best, request)
    return best, fullest_gpus(fleet, best, request)


@njit(cache=True)
def free_milli(fleet, n):
    free = 0
    for j in range(fleet.gpus[n]):
        free += fleet.milli[n, j]
    return free


@njit(cache=True)
def seed_score(fleet, n, request):
    """Utilisation - 0.5 average gap + 0.2 bonus of size, as docs/architecture.md has them."""
    _, _, gpus, milli, vram, _ = request
    each, asked = FULL, milli
    free = free_milli(fleet, n)
    if vram > 0:
        each, asked = fleet.vram_total[n], vram
        free = 0
        for j in range(fleet.gpus[n]):
            free += fleet.vram[n, j]
    total = fleet.gpus[n] * each
    utilisation = min((total - free + gpus * asked) / total, 1.0) if total > 0 else 0.0
    mask = first_gpus(fleet, n, request)
    last, gaps = -1, 0
    for j in range(fleet.gpus[n]):
        if (mask >> j) & 1:
            if last >= 0:
                gaps += j - last - 1
            last = j
    gap = gaps / (gpus - 1) if gpus > 1 else 0.0
    bonus = 0.0
    if gpus >= 8 and fleet.gpus[n] >= 8:
        bonus = 0.2
    elif gpus < 8 and fleet.gpus[n] < 8:
        bonus = 0.1
    return utilisation - 0.5 * gap + 0.2 * bonus


@njit(cache=True)
def best_fit(fleet, n, request):
    """Least CPU and GPU left, half and half, in whole points of 100."""
    cpu, _, gpus, milli, _, _ = request
    left = 0.5 * (fleet.cpu[n] - cpu) / LARGEST_CPU
    left += 0.5 * (free_milli(fleet, n) - gpus * milli) / LARGEST_MILLI
    return math.floor(100.0 * (1.0 - left))


@njit(cache=True)
def pack_to_empty(fleet, n, request):
    """Shared GPUs first, the fullest; then idle GPUs of used nodes; then idle nodes."""
    if request[2] == 0:
        return 0.0
    idle = 0
    for j in range(fleet.gpus[n]):
        if fleet.milli[n, j] == FULL:
            idle += 1
    if idle == fleet.gpus[n]:
        return float(max(33 - idle, idle))
    mask = fullest_gpus(fleet, n, request)
    opened, left = 0, 0
    for j in range(fleet.gpus[n]):
        if (mask >> j) & 1:
            if fleet.milli[n, j] == FULL:
                opened += 1
            left += fleet.milli[n, j] * 100 // FULL
    if opened > 0:
        return float(max(50 - opened, 33))
    return float(max(100 - left // 10, 50))


@njit(cache=True)
def fragmentation(cpu, milli, gpus, model, need, weight):
    """Return the idle milli of a node that a typical request cannot use, on average."""
    idle = 0
    for j in range(gpus):
        idle += milli[j]
    if idle == 0:
        return 0.0
    lost = 0.0
    for k in range(len(weight)):
        models = need[k, 5]
        if need[k, 2] == 0 or cpu < need[k, 0] or (models != 0 and (models >> model) & 1 == 0):
            lost += weight[k] * idle
            continue
        found, small = 0, 0
        for j in range(gpus):
            if milli[j] >= need[k, 3]:
                found += 1
            else:
                small += milli[j]
        lost += weight[k] * (small if found >= need[k, 2] else idle)
    return lost


@njit(cache=True)
def choose_fgd(fleet, request, need, weight, seen, scores, masks):
    """Return the node whose fragmentation grows least, in the published whole points of 100.

    `seen`, `scores` and `masks` remember the answers for this shape: by node, with the version of
    the node that they are of.
    """
    best, best_score = -1, 0.0
    for n in range(len(fleet.cpu)):
        if not fits(fleet, n, request):
            continue
        if seen[n] != fleet.version[n]:
            scores[n], masks[n] = _fgd_of_node(fleet, n, request, need, weight)
            seen[n] = fleet.version[n]
        if best < 0 or scores[n] > best_score:
            best, best_score = n, scores[n]
    if best < 0:
        return -1, 0
    return best, masks[best]


@njit(cache=True)
def _fgd_of_node(fleet, n, request, need, weight):
    cpu, _, gpus, milli, vram, _ = request
    before = fragmentation(
        fleet.cpu[n], fleet.milli[n], fleet.gpus[n], fleet.model[n], need, weight
    )
    left = fleet.milli[n].copy()
    part = gpus == 1 and milli < FULL
    best_score, best_mask = -1.0, 0
    for j in range(fleet.gpus[n] if part else 1):
        if part:
            if left[j] < milli or fleet.vram[n, j] < vram:
                continue
            mask = 1 << j
        else:
            mask = fullest_gpus(fleet, n, request)
        for i in range(fleet.gpus[n]):
            left[i] = fleet.milli[n, i] - (milli if (mask >> i) & 1 else 0)
        after = fragmentation(
            fleet.cpu[n] - cpu, left, fleet.gpus[n], fleet.model[n], need, weight
        )
        score = math.floor(100.0 / (1.0 + math.exp(-(before - after) / 1000.0)))
        if score > best_score:
            best_score, best_mask = score, mask
    return best_score, best_mask


@njit(cache=True)
def indices(mask, width):
    """Return the indices of the bits of a mask."""
    found = np.zeros(width, np.int64)
    count = 0
    for j in range(width):
        if (mask >> j) & 1:
            found[count] = j
            count += 1
    return found[:count]
