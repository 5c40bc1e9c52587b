"""Compiled: residual capacities of nodes, and their value to the expected jobs.

The same as `scheduling.placement.headroom`, one residual at a time.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np

from longshore.scheduling.bulk.arrays import CLASSES, RESIDUALS
from longshore.scheduling.bulk.compiling import entry, inner
from longshore.scheduling.placement.headroom import TINY
from longshore.scheduling.placement.keep_room import EMPTIER
from longshore.scheduling.placement.slots import EPSILON

WHOLE = 1000.0


@inner
def residual_of_class(c, lay, r, g):
    """Return the number of the residual of a class; -1 where the arrays are full."""
    if c.residual[g] < 0:
        c.residual[g] = residual_for(
            c.numbers, r, r.size_of_traits[c.traits[g]], lay.gpus[c.layout[g]], c.free[g, 0],
            c.free[g, 1], c.jobs[g],
        )  # fmt: skip
    return c.residual[g]


@inner
def residual_for(count, r, size, gpus, cpus, ram, jobs):
    """Return the number of a residual, measured where it is new; -1 where the arrays are full."""
    found = find_residual(
        count,
        r.size,
        r.gpus,
        r.jobs,
        r.left,
        r.left_bits,
        r.hash_table,
        size,
        gpus,
        cpus,
        ram,
        jobs,
    )
    if found == count[RESIDUALS] and not add_residual(count, r):
        return -1
    return found


@inner
def find_residual(
    count, sizes, of_gpus, of_jobs, left, bits, hash_table, size, gpus, cpus, ram, jobs
):  # fmt: skip
    """Return the number of a residual. A new one is in the first spare row, for `add_residual`."""
    new = count[RESIDUALS]
    sizes[new], of_gpus[new], of_jobs[new] = size, gpus, jobs
    left[new, 0], left[new, 1] = cpus, ram
    most = len(hash_table) - 1
    at = place_of(size, gpus, jobs, bits[new, 0], bits[new, 1]) & most
    while hash_table[at] >= 0:
        b = hash_table[at]
        same = sizes[b] == size and of_gpus[b] == gpus and of_jobs[b] == jobs
        if same and bits[b, 0] == bits[new, 0] and bits[b, 1] == bits[new, 1]:
            return b
        at = (at + 1) & most
    return new


@inner
def add_residual(count, r):
    """Measure and add the residual in the first spare row; False if no spare row is left."""
    new = count[RESIDUALS]
    if new + 1 >= len(r.size):
        return False
    measure(r, new)
    r.worth[new] = worth_of(r, new)
    put_residual(r.size, r.gpus, r.jobs, r.left_bits, r.hash_table, new)
    count[RESIDUALS] = new + 1
    return True


@inner
def put_residual(sizes, gpus, jobs, bits, hash_table, residual):
    most = len(hash_table) - 1
    at = (
        place_of(
            sizes[residual], gpus[residual], jobs[residual], bits[residual, 0], bits[residual, 1]
        )
        & most
    )
    while hash_table[at] >= 0:
        at = (at + 1) & most
    hash_table[at] = residual


@inner
def place_of(size, gpus, jobs, cpus, ram):
    hashed = np.int64(size) * 31 + np.int64(gpus) * 1009 + np.int64(jobs) * 7
    hashed = (hashed * 0x9E3779B97F4A7C1) ^ cpus
    hashed = (hashed ^ (hashed >> 29)) * 0xBF58476D1CE4E5B
    hashed = ((hashed >> 29) ^ hashed ^ ram) * 0xBF58476D1CE4E5B
    return hashed ^ (hashed >> 32)


@entry
def index_residuals(c, r):
    """Put all residuals into the hash table."""
    for residual in range(c.numbers[RESIDUALS]):
        put_residual(r.size, r.gpus, r.jobs, r.left_bits, r.hash_table, residual)


@inner
def headroom_total(worth, idle, gpus, before, after, cpus, ram, beside):
    """Return the value of a class with this many cores and GB to be had, to nine digits."""
    own = worth[before] - worth[after]
    emptier = EMPTIER[0] * idle[gpus[before]] + EMPTIER[1] * cpus
    own = own + emptier + EMPTIER[2] * ram
    return np.rint((-own / WHOLE + beside) * 1e9) / 1e9


@inner
def measure(r, residual):
    """Measure what a residual is good for: see `HeadroomTable`."""
    size, gpus = r.size[residual], r.gpus[residual]
    cpus, ram = r.left[residual, 0], r.left[residual, 1]
    for q in range(len(r.kinds)):
        suits = r.suits[size, q]
        enough = cpus + EPSILON >= r.kinds[q, 1] and ram + EPSILON >= r.kinds[q, 2]
        r.now[residual, q] = r.found[gpus, q, 1] if enough and suits else 0.0
        r.lasting[residual, q] = lasting(r, residual, q) if suits else 0.0
    served = min(cpus / max(r.scale[1], TINY), ram / max(r.scale[2], TINY))
    r.stranded[residual] = max(r.idle[gpus] - served, 0.0)


@inner
def lasting(r, residual, q):
    """Return how many jobs of a kind fit, now or when some jobs have ended."""
    size, jobs = r.size[residual], r.jobs[residual]
    free, total = r.found[r.gpus[residual], q, 0], r.found[r.gpus[residual], q, 2]
    fitting = 0.0
    copy = 1.0
    while copy * r.kinds[q, 0] <= total:
        departing = missing(copy * r.kinds[q, 0], free, total)
        for i in range(2):
            wanted = copy * r.kinds[q, 1 + i]
            if wanted > r.totals[size, i] + EPSILON:
                return fitting
            departing = max(departing, missing(wanted, r.left[residual, i], r.totals[size, i]))
        fitting += (jobs * (1.0 - min(departing, 1.0)) + 0.5) / (jobs + 0.5)
        copy += 1.0
    return fitting


@inner
def missing(wanted, left, total):
    return max((wanted - left) / max(total - left, TINY), 0.0)


@inner
def worth_of(r, residual):
    now, later, churn = 0.0, 0.0, r.scale[0]
    for q in range(len(r.kinds)):
        now += r.now[residual, q] * r.pressure[q]
        later += r.lasting[residual, q] * r.demand[q]
    return now - (1.0 - churn) * r.stranded[residual] + churn * later


@entry
def value_residuals(c, r):
    """Value all residuals by a new outlook."""
    for residual in range(c.numbers[RESIDUALS]):
        r.worth[residual] = worth_of(r, residual)


@entry
def idle_of_pool(c, lay, r, ready, usable):
    """Add up what each kind could use now on nodes that are ready; return what is idle there.

    -1 where the arrays are full.
    """
    idle = 0
    for g in range(c.numbers[CLASSES]):
        residual = residual_of_class(c, lay, r, g)
        if residual < 0:
            return -1
        if not ready[c.traits[g]]:
            continue
        idle += c.size[g] * r.idle[r.gpus[residual]]
        for q in range(len(usable)):
            usable[q] += c.size[g] * r.now[residual, q]
    return idle


@inner
def explain_headroom(c, r, g, before, after, parts):
    """Put the losses of a class into `parts`: headroom by name, stranded GPUs, free capacity."""
    churn, names = r.scale[0], len(parts) - 2
    for q in range(len(r.kinds)):
        had = r.now[before, q] * r.pressure[q] + churn * r.lasting[before, q] * r.demand[q]
        has = r.now[after, q] * r.pressure[q] + churn * r.lasting[after, q] * r.demand[q]
        parts[r.name_of[q]] += had - has
    parts[names] = (1.0 - churn) * (r.stranded[after] - r.stranded[before])
    emptier = EMPTIER[0] * r.idle[r.gpus[before]]
    parts[names + 1] = emptier + (EMPTIER[1] * c.free[g, 0] + EMPTIER[2] * c.free[g, 1])
