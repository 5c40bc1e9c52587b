"""Compiled: rests of nodes, and what they are worth to the jobs that are expected.

The same as `scheduling.placement.room`, one rest at a time.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np

from longshore.scheduling.bulk.arrays import CLASSES, RESTS
from longshore.scheduling.bulk.compiling import entry, inner

EPSILON = 1e-6
TINY = 1e-9
WHOLE = 1000.0
EMPTIER = (0.02, 1e-3, 1e-6)
"""Thousandths that each free thousandth, core and GB of RAM costs: see `keep_room`."""


@inner
def rest_of_class(c, lay, r, g):
    """Return the number of the rest of a class; -1 where the arrays are full."""
    if c.rest[g] < 0:
        c.rest[g] = rest_for(
            c.numbers, r, r.make_size[c.make[g]], lay.gpus[c.layout[g]], c.free[g, 0],
            c.free[g, 1], c.jobs[g],
        )  # fmt: skip
    return c.rest[g]


@inner
def rest_for(count, r, size, gpus, cpus, ram, jobs):
    """Return the number of a rest, measured where it is new; -1 where the arrays are full."""
    found = find_rest(
        count, r.size, r.gpus, r.jobs, r.left, r.left_bits, r.buckets, size, gpus, cpus, ram, jobs
    )
    if found == count[RESTS] and not learn_rest(count, r):
        return -1
    return found


@inner
def find_rest(
    count, sizes, of_gpus, of_jobs, left, bits, buckets, size, gpus, cpus, ram, jobs
):  # fmt: skip
    """Return the number of a rest; where it is new it is in the first spare row, for `learn_rest`.

    What is in a spare row was never looked for: nobody knows of it.
    """
    new = count[RESTS]
    sizes[new], of_gpus[new], of_jobs[new] = size, gpus, jobs
    left[new, 0], left[new, 1] = cpus, ram
    most = len(buckets) - 1
    at = place_of(size, gpus, jobs, bits[new, 0], bits[new, 1]) & most
    while buckets[at] >= 0:
        b = buckets[at]
        same = sizes[b] == size and of_gpus[b] == gpus and of_jobs[b] == jobs
        if same and bits[b, 0] == bits[new, 0] and bits[b, 1] == bits[new, 1]:
            return b
        at = (at + 1) & most
    return new


@inner
def learn_rest(count, r):
    """Measure the rest in the first spare row, and take it in; False where no other is left."""
    new = count[RESTS]
    if new + 1 >= len(r.size):
        return False
    measure(r, new)
    r.worth[new] = worth_of(r, new)
    put_rest(r.size, r.gpus, r.jobs, r.left_bits, r.buckets, new)
    count[RESTS] = new + 1
    return True


@inner
def put_rest(sizes, gpus, jobs, bits, buckets, rest):
    most = len(buckets) - 1
    at = place_of(sizes[rest], gpus[rest], jobs[rest], bits[rest, 0], bits[rest, 1]) & most
    while buckets[at] >= 0:
        at = (at + 1) & most
    buckets[at] = rest


@inner
def place_of(size, gpus, jobs, cpus, ram):
    hashed = np.int64(size) * 31 + np.int64(gpus) * 1009 + np.int64(jobs) * 7
    hashed = (hashed * 0x9E3779B97F4A7C1) ^ cpus
    hashed = (hashed ^ (hashed >> 29)) * 0xBF58476D1CE4E5B
    hashed = ((hashed >> 29) ^ hashed ^ ram) * 0xBF58476D1CE4E5B
    return hashed ^ (hashed >> 32)


@entry
def index_rests(c, r):
    """Find in the hash from now on all rests that there are."""
    for rest in range(c.numbers[RESTS]):
        put_rest(r.size, r.gpus, r.jobs, r.left_bits, r.buckets, rest)


@inner
def room_total(worth, idle, gpus, before, after, cpus, ram, beside):
    """Return the value of a class with so many cores and GB to be had, to nine digits."""
    own = worth[before] - worth[after]
    emptier = EMPTIER[0] * idle[gpus[before]] + EMPTIER[1] * cpus
    own = own + emptier + EMPTIER[2] * ram
    return np.rint((-own / WHOLE + beside) * 1e9) / 1e9


@inner
def measure(r, rest):
    """Measure what a rest is good for: see `RoomTable`."""
    size, gpus = r.size[rest], r.gpus[rest]
    cpus, ram = r.left[rest, 0], r.left[rest, 1]
    for q in range(len(r.kinds)):
        suits = r.suits[size, q]
        enough = cpus + EPSILON >= r.kinds[q, 1] and ram + EPSILON >= r.kinds[q, 2]
        r.now[rest, q] = r.found[gpus, q, 1] if enough and suits else 0.0
        r.lasting[rest, q] = lasting(r, rest, q) if suits else 0.0
    served = min(cpus / max(r.scale[1], TINY), ram / max(r.scale[2], TINY))
    r.stranded[rest] = max(r.idle[gpus] - served, 0.0)


@inner
def lasting(r, rest, q):
    """Return how many jobs of a kind find room, now or when some jobs have ended."""
    size, jobs = r.size[rest], r.jobs[rest]
    free, total = r.found[r.gpus[rest], q, 0], r.found[r.gpus[rest], q, 2]
    room = 0.0
    copy = 1.0
    while copy * r.kinds[q, 0] <= total:
        leave = missing(copy * r.kinds[q, 0], free, total)
        for i in range(2):
            wanted = copy * r.kinds[q, 1 + i]
            if wanted > r.totals[size, i] + EPSILON:
                return room
            leave = max(leave, missing(wanted, r.left[rest, i], r.totals[size, i]))
        room += (jobs * (1.0 - min(leave, 1.0)) + 0.5) / (jobs + 0.5)
        copy += 1.0
    return room


@inner
def missing(wanted, left, total):
    return max((wanted - left) / max(total - left, TINY), 0.0)


@inner
def worth_of(r, rest):
    now, later, churn = 0.0, 0.0, r.scale[0]
    for q in range(len(r.kinds)):
        now += r.now[rest, q] * r.pressure[q]
        later += r.lasting[rest, q] * r.demand[q]
    return now - (1.0 - churn) * r.stranded[rest] + churn * later


@entry
def value_rests(c, r):
    """Value all rests by a new outlook."""
    for rest in range(c.numbers[RESTS]):
        r.worth[rest] = worth_of(r, rest)


@entry
def idle_of_pool(c, lay, r, ready, usable):
    """Add up what each kind could use now on nodes that are ready; return what is idle there.

    -1 where the arrays are full.
    """
    idle = 0
    for g in range(c.numbers[CLASSES]):
        rest = rest_of_class(c, lay, r, g)
        if rest < 0:
            return -1
        if not ready[c.make[g]]:
            continue
        idle += c.size[g] * r.idle[r.gpus[rest]]
        for q in range(len(usable)):
            usable[q] += c.size[g] * r.now[rest, q]
    return idle


@inner
def explain_room(c, r, g, before, after, parts):
    """Put what a class loses into `parts`: room by name, what is stranded, what is free there."""
    churn, names = r.scale[0], len(parts) - 2
    for q in range(len(r.kinds)):
        had = r.now[before, q] * r.pressure[q] + churn * r.lasting[before, q] * r.demand[q]
        has = r.now[after, q] * r.pressure[q] + churn * r.lasting[after, q] * r.demand[q]
        parts[r.name_of[q]] += had - has
    parts[names] = (1.0 - churn) * (r.stranded[after] - r.stranded[before])
    emptier = EMPTIER[0] * r.idle[r.gpus[before]]
    parts[names + 1] = emptier + (EMPTIER[1] * c.free[g, 0] + EMPTIER[2] * c.free[g, 1])
