"""Compiled parts of `keep-room`: what a node's rest is worth, and the node that loses least worth.

Import only where a decision is made. docs/decisions/0015-packing-policies.md says why it is so.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np
from numba import njit

from scheduling.packing.kernels import FULL, fits, free_milli, fullest_gpus

EMPTIER = 0.02
"""Milli that one free milli of a node costs: nearly equal nodes are taken fullest first."""
STAYS_ON = 0.25
"""A job that has run for an hour stays a quarter of an hour more at least: estimates err, and what
is overdue mostly runs on. From a tenth to all of the time so far it makes little difference."""


@njit(cache=True)
def worth(fleet, n, cpu, ram, milli, vram, jobs, load, outlook):
    """Return what node n is worth with this left and so many jobs on it, in GPU-milli.

    `load` is the jobs, each counted by how long it stays where that is known: see `load_of`.
    """
    gpus = fleet.gpus[n]
    idle = 0
    for j in range(gpus):
        idle += milli[j]
    value = 0.0
    for k in range(len(outlook.pressure)):
        if outlook.pressure[k] > 0.0:
            usable = usable_milli(cpu, ram, milli, vram, gpus, fleet.model[n], outlook.need[k])
            value += outlook.pressure[k] * usable
    if outlook.churn < 1.0:
        served = min(cpu / outlook.cpu_per_milli, ram / outlook.ram_per_milli)
        value -= (1.0 - outlook.churn) * max(0.0, idle - served)
    if outlook.churn > 0.0:
        room = lasting_room(fleet, n, cpu, ram, milli, vram, jobs, load, outlook)
        value += outlook.churn * room
    return value


@njit(cache=True)
def usable_milli(cpu, ram, milli, vram, gpus, model, need):
    """Return the idle milli that requests of a kind can use: on GPUs with room, if enough have."""
    models = need[5]
    if cpu < need[0] or ram < need[1] or (models != 0 and (models >> model) & 1 == 0):
        return 0
    found, usable = 0, 0
    for j in range(gpus):
        if milli[j] >= need[3] and vram[j] >= need[4]:
            found += 1
            usable += milli[j]
    return usable if found >= need[2] else 0


@njit(cache=True)
def lasting_room(fleet, n, cpu, ram, milli, vram, jobs, load, outlook):
    """Return the milli that the usual requests find here, now or when some jobs have ended.

    The first copy of a kind may fit now; the next one may need a third of the node's jobs to end
    first. A copy counts by the share of the jobs that may stay: where all end alike, that is about
    how soon the others have ended. Those that must leave are counted by `load`: one that stays
    for twice the usual time is as long to wait for as two.
    """
    gpus = fleet.gpus[n]
    cpu_used, ram_used = fleet.cpu_total[n] - cpu, fleet.ram_total[n] - ram
    value = 0.0
    for k in range(len(outlook.demand)):
        need = outlook.need[k]
        models, wide = need[5], need[2]
        if wide > gpus or need[4] > fleet.vram_total[n]:
            continue
        if models != 0 and (models >> fleet.model[n]) & 1 == 0:
            continue
        free = 0
        for j in range(gpus):
            if milli[j] >= need[3] and vram[j] >= need[4]:
                free += 1
        copies = 0.0
        for i in range(1, gpus // wide + 1):
            if i * need[0] > fleet.cpu_total[n] or i * need[1] > fleet.ram_total[n]:
                break
            leave = 0.0
            if i * wide > free:
                leave = (i * wide - free) / (gpus - free)
            if i * need[0] > cpu:
                leave = max(leave, (i * need[0] - cpu) / cpu_used)
            if i * need[1] > ram:
                leave = max(leave, (i * need[1] - ram) / ram_used)
            staying = jobs * (1.0 - leave) + 0.5
            copies += staying / (jobs + 0.5 + leave * (load - jobs))
        value += outlook.demand[k] * copies * wide * need[3]
    return value


@njit(cache=True)
def worth_now(fleet, n, outlook):
    """Return what node n is worth as it is."""
    return worth(
        fleet, n, fleet.cpu[n], fleet.ram[n], fleet.milli[n], fleet.vram[n], fleet.jobs[n],
        float(fleet.jobs[n]), outlook,
    )  # fmt: skip


@njit(cache=True)
def loss_on(fleet, n, request, outlook, before, load):
    """Return the worth that node n loses to the request, and the mask of the GPUs that cost least.

    `load` is that of the node once it is there, as in `worth`.
    Parts of a GPU are tried on every GPU; whole GPUs are the first idle ones.
    """
    cpu, ram, gpus, milli, vram, _ = request
    part = gpus == 1 and milli < FULL
    left, left_vram = fleet.milli[n].copy(), fleet.vram[n].copy()
    best, best_mask = np.inf, 0
    for j in range(fleet.gpus[n] if part else 1):
        if part:
            if fleet.milli[n, j] < milli or fleet.vram[n, j] < vram:
                continue
            mask = 1 << j
        else:
            mask = fullest_gpus(fleet, n, request)
        for i in range(fleet.gpus[n]):
            taken = (mask >> i) & 1
            left[i] = fleet.milli[n, i] - taken * milli
            left_vram[i] = fleet.vram[n, i] - taken * vram
        after = worth(
            fleet, n, fleet.cpu[n] - cpu, fleet.ram[n] - ram, left, left_vram, fleet.jobs[n] + 1,
            load, outlook,
        )  # fmt: skip
        if before - after < best:
            best, best_mask = before - after, mask
    best += EMPTIER * free_milli(fleet, n) + 1e-6 * fleet.cpu[n] + 1e-9 * fleet.ram[n]
    return best, best_mask


@njit(cache=True)
def choose_keep_room(fleet, request, outlook, memory, row):
    """Return the node that loses least worth, and its GPUs; the first among equals.

    `memory` holds answers with the version of the node that they are of: worth by node, and loss
    and mask by row (one a shape of request) and node.
    """
    best, best_loss = -1, 0.0
    for n in range(len(fleet.cpu)):
        if not fits(fleet, n, request):
            continue
        version = fleet.version[n]
        if memory.seen[row, n] != version:
            if memory.worth_seen[n] != version:
                memory.worth[n] = worth_now(fleet, n, outlook)
                memory.worth_seen[n] = version
            memory.loss[row, n], memory.mask[row, n] = loss_on(
                fleet, n, request, outlook, memory.worth[n], fleet.jobs[n] + 1.0
            )
            memory.seen[row, n] = version
        if best < 0 or memory.loss[row, n] < best_loss:
            best, best_loss = n, memory.loss[row, n]
    if best < 0:
        return -1, 0
    return best, memory.mask[row, best]


@njit(cache=True)
def choose_by_stay(fleet, request, outlook, start, end):
    """Return the node that loses least worth to a job that stays so long, and its GPUs.

    What a node is worth changes with time here, so no answer is kept.
    """
    best, best_loss, best_mask = -1, 0.0, 0
    for n in range(len(fleet.cpu)):
        if not fits(fleet, n, request):
            continue
        load = load_of(fleet, n, start, outlook.seconds)
        before = worth(
            fleet, n, fleet.cpu[n], fleet.ram[n], fleet.milli[n], fleet.vram[n], fleet.jobs[n],
            load, outlook,
        )  # fmt: skip
        load += (end - start) / outlook.seconds
        loss, mask = loss_on(fleet, n, request, outlook, before, load)
        if best < 0 or loss < best_loss:
            best, best_loss, best_mask = n, loss, mask
    return best, best_mask


@njit(cache=True)
def load_of(fleet, n, now, usual):
    """Return the jobs on node n, each counted by how long it stays over the usual seconds.

    One that has not said counts as one.
    """
    seconds = 0.0
    for i in range(fleet.known[n]):
        so_far = now - fleet.since[n, i]
        seconds += max(fleet.until[n, i] - now, STAYS_ON * so_far)
    return seconds / usual + (fleet.jobs[n] - fleet.known[n])


@njit(cache=True)
def usable_by_kind(fleet, need):
    """Return the milli of the fleet that each kind can use now."""
    usable = np.zeros(len(need), np.int64)
    for n in range(len(fleet.cpu)):
        if free_milli(fleet, n) == 0:
            continue
        for k in range(len(need)):
            usable[k] += usable_milli(
                fleet.cpu[n], fleet.ram[n], fleet.milli[n], fleet.vram[n], fleet.gpus[n],
                fleet.model[n], need[k],
            )  # fmt: skip
    return usable
