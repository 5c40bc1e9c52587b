"""Compiled: what nodes are worth to a job: the most in a cell, and class by class.

Where a function is called often it takes the arrays that it needs, and no groups of them: to pass
a group costs more than the work.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np

from longshore.scheduling.bulk.arrays import (
    AMOUNTS,
    CHEAPEST,
    FACE,
    FEWEST_JOBS,
    FIRST,
    HEAD,
    LEAST_USED,
    LOOK,
    MOST_SHOWN,
    MOST_USED,
    NEED,
    RESTS,
    STALE,
    SUBJECT,
    UNKNOWN,
    VARIES,
)
from longshore.scheduling.bulk.cells import refresh
from longshore.scheduling.bulk.compiling import inner
from longshore.scheduling.bulk.heaps import offer
from longshore.scheduling.bulk.questions import ASK_LAYOUT, DONE, FULL, KEEP_ROOM
from longshore.scheduling.bulk.rests import (
    EPSILON,
    WHOLE,
    find_rest,
    learn_rest,
    rest_for,
    rest_of_class,
    room_total,
)

SLACK = 4e-9
"""By how much the bound of a cell may lie below a value for the rounding of sums."""


@inner
def bound_by_score(weights, x, f, n, k, waiting):
    """Put the most that a node may be worth into `value`, for each of the cells that wait."""
    facts, bounds, best, value = x.facts, x.bounds, x.best, x.value
    most_expiry, most_provider = f.most_expiry[n.duration[k]], f.most_provider[n.provider[k]]
    most_held, most_link = f.most_held[n.data[k]], n.most_link[k]
    unnamed, amounts = f.unnamed, f.amount
    gpus, amount = n.gpus[k], n.amount[k]
    if n.mig[k] or weights[1] > 0:  # what it takes, or how far apart, is not known
        value[:waiting] = np.inf
        return
    side = MOST_USED if weights[0] > 0 else LEAST_USED
    for i in range(waiting):
        cell = best[i]
        face = facts[cell, FACE]
        more = gpus if unnamed[face] else amount
        used = min((bounds[cell, side] + more) / amounts[face], 1.0)
        # The same sum as of a class, so that equal values are equal to the last digit.
        total = weights[0] * used + weights[1] * 0.0 + most_expiry[face] + most_provider[face]
        total = total + (most_held[face] + most_link)
        value[i] = np.rint(total * 1e9) / 1e9


@inner
def bound_by_room(weights, count, x, f, lay, n, r, k, waiting):
    """Put the most that a node may be worth into `value`; return DONE or FULL.

    No node of a cell has more cores or RAM left, or fewer jobs, than its bounds say, and less
    room is never worth more.
    """
    facts, bounds, best, value = x.facts, x.bounds, x.best, x.value
    most_expiry, most_provider = f.most_expiry[n.duration[k]], f.most_provider[n.provider[k]]
    most_held, most_link = f.most_held[n.data[k]], n.most_link[k]
    look_gpus, wanted, power, sizes = lay.look_gpus[n.wish[k]], n.wanted[k], f.power, f.size
    if n.by_layout[k] and weights[1] > 0:  # how far apart its GPUs are is not known
        value[:waiting] = np.inf
        return DONE
    size, of_rest, jobs, left, bits = r.size, r.gpus, r.jobs, r.left, r.left_bits
    buckets, worth = r.buckets, r.worth
    most = AMOUNTS + wanted.shape[1]
    for i in range(waiting):
        cell = best[i]
        face, gpus = facts[cell, FACE], look_gpus[facts[cell, LOOK]]
        if gpus == VARIES:
            value[i] = np.inf
            continue
        rest = find_rest(
            count, size, of_rest, jobs, left, bits, buckets, sizes[face], gpus,
            bounds[cell, most] - wanted[power[face], 0],
            bounds[cell, most + 1] - wanted[power[face], 1], facts[cell, FEWEST_JOBS] + 1,
        )  # fmt: skip
        if rest == count[RESTS] and not learn_rest(count, r):
            return FULL
        own = bounds[cell, CHEAPEST] - worth[rest]
        total = -own / WHOLE + most_expiry[face] + most_provider[face] + most_held[face]
        total = total + most_link + SLACK
        value[i] = total if total == total else np.inf
    return DONE


@inner
def look_by_score(rule, weights, c, x, f, lay, n, r, k, waiting, nodes, groups, totals):
    """Find the best nodes of the cells that wait; return how many, and DONE or a question."""
    wish, want = n.wish[k], n.wanted[k]
    by_layout, mig, gpus, amount = n.by_layout[k], n.mig[k], n.gpus[k], n.amount[k]
    codes, gaps, added, links = lay.code[wish], lay.gap[wish], lay.added[wish], lay.link[wish]
    expiries, providers = f.expiry[n.duration[k]], f.provider[n.provider[k]]
    held = f.held[n.data[k]]
    later, size, free, make_of, layout_of = c.later, c.size, c.free, c.make, c.layout
    in_use, heap_at, pool = c.amount, c.heap_at, c.pool
    best, value, facts = x.best, x.value, x.facts
    found = 0
    for turn in range(waiting):
        top = next_of(best, value, facts, waiting, turn)
        cell, first, most = best[top], facts[best[top], FIRST], value[top]
        waiting -= 1
        best[top], value[top] = best[waiting], value[waiting]
        if is_beaten(most, first, found, totals, nodes):
            if turn < MOST_SHOWN:  # then so are all others
                break
            continue
        if facts[cell, STALE]:
            refresh(rule, c, x, r, cell)
        face = facts[cell, FACE]
        amounts, unnamed, of_face = f.amount[face], f.unnamed[face], want[f.power[face]]
        more = gpus if unnamed else amount
        g = facts[cell, HEAD]
        while g >= 0:
            if size[g] > 0 and has_amounts(free, g, of_face):
                gap = link = 0.0
                if by_layout:
                    layout = layout_of[g]
                    if codes[layout] == UNKNOWN:
                        return found, ask(c.numbers, ASK_LAYOUT, k, layout)
                    gap, link = gaps[layout], links[layout]
                    if mig:
                        more = added[layout]
                make = make_of[g]
                used = min((in_use[g] + more) / amounts, 1.0)
                total = weights[0] * used + weights[1] * gap
                total = total + weights[2] * expiries[make] + weights[3] * providers[make]
                total = total + (held[make] + link)
                total = np.rint(total * 1e9) / 1e9
                if found < MOST_SHOWN or total >= totals[MOST_SHOWN - 1]:
                    found = offer(
                        heap_at, size, pool, g, total, nodes, groups, totals, found, x.front
                    )  # fmt: skip
            g = later[g]
    return found, DONE


@inner
def look_by_room(rule, weights, c, x, f, lay, n, r, k, waiting, nodes, groups, totals):
    """Do the same where room counts; FULL where the arrays are full."""
    count, wish, want = c.numbers, n.wish[k], n.wanted[k]
    codes, look_gpus, gpus_after = lay.code[wish], lay.look_gpus[wish], lay.gpus_after[wish]
    gaps, links = lay.gap[wish], lay.link[wish]
    most_link, by_gaps = n.most_link[k], weights[1] > 0
    apart = most_link > 0 or (n.by_layout[k] and not n.mig[k] and weights[1] != 0)
    expiries, providers = f.expiry[n.duration[k]], f.provider[n.provider[k]]
    held = f.held[n.data[k]]
    later, size, free, make_of, layout_of = c.later, c.size, c.free, c.make, c.layout
    rest_of, heap_at, pool = c.rest, c.heap_at, c.pool
    best, value, facts = x.best, x.value, x.facts
    sizes, of_rest, jobs, left, bits = r.size, r.gpus, r.jobs, r.left, r.left_bits
    buckets, worth, idle = r.buckets, r.worth, r.idle
    found = 0
    for turn in range(waiting):
        top = next_of(best, value, facts, waiting, turn)
        cell, first, most = best[top], facts[best[top], FIRST], value[top]
        waiting -= 1
        best[top], value[top] = best[waiting], value[waiting]
        if is_beaten(most, first, found, totals, nodes):
            if turn < MOST_SHOWN:
                break
            continue
        if facts[cell, STALE]:
            refresh(rule, c, x, r, cell)
        of_face, gpus = want[f.power[facts[cell, FACE]]], look_gpus[facts[cell, LOOK]]
        g = facts[cell, HEAD]
        while g >= 0:
            if size[g] > 0 and has_amounts(free, g, of_face):
                after, layout = gpus, layout_of[g]
                if gpus == VARIES:
                    if codes[layout] == UNKNOWN:
                        return found, ask(count, ASK_LAYOUT, k, layout)
                    after = gpus_after[layout]
                had, make = rest_of[g], make_of[g]
                rest = find_rest(
                    count, sizes, of_rest, jobs, left, bits, buckets, sizes[had], after,
                    left[had, 0] - of_face[0], left[had, 1] - of_face[1], jobs[had] + 1,
                )  # fmt: skip
                if rest == count[RESTS] and not learn_rest(count, r):
                    return found, FULL
                beside = weights[2] * expiries[make] + weights[3] * providers[make] + held[make]
                total = room_total(
                    worth, idle, of_rest, had, rest, free[g, 0] + EPSILON, free[g, 1] + EPSILON,
                    beside + most_link,
                )  # fmt: skip
                # To ask for a layout costs more than a sum, and few classes are among the best.
                if apart and (found < MOST_SHOWN or total >= totals[MOST_SHOWN - 1] or by_gaps):
                    if codes[layout] == UNKNOWN:
                        return found, ask(count, ASK_LAYOUT, k, layout)
                    total = room_total(
                        worth, idle, of_rest, had, rest, free[g, 0] + EPSILON,
                        free[g, 1] + EPSILON, beside + (links[layout] + weights[1] * gaps[layout]),
                    )  # fmt: skip
                if found < MOST_SHOWN or total >= totals[MOST_SHOWN - 1]:
                    found = offer(
                        heap_at, size, pool, g, total, nodes, groups, totals, found, x.front
                    )  # fmt: skip
            g = later[g]
    return found, DONE


@inner
def next_of(best, value, facts, waiting, turn):
    """Return the place of the cell to look into: a few of the best first, then any."""
    top = 0
    if turn >= MOST_SHOWN:
        return waiting - 1
    for i in range(1, waiting):
        if value[i] > value[top] or (
            value[i] == value[top] and facts[best[i], FIRST] < facts[best[top], FIRST]
        ):
            top = i
    return top


@inner
def is_beaten(most, first, found, totals, nodes):
    """Say whether no node of a cell can be among the best."""
    if found < MOST_SHOWN or most > totals[found - 1]:
        return False
    return most < totals[found - 1] or first > nodes[found - 1]


@inner
def ask(count, question, k, subject):
    count[NEED] = k
    count[SUBJECT] = subject
    return question


@inner
def has_amounts(free, g, want):
    enough = True
    for i in range(len(want)):
        enough &= free[g, i] + EPSILON >= want[i]
    return enough


@inner
def value_of(rule, weights, c, f, lay, n, r, k, g, gap, link, added, gpus_after):
    """Return what a node of a class is worth to the job; minus infinite where arrays are full."""
    make = c.make[g]
    expiry = weights[2] * f.expiry[n.duration[k], make]
    provider = weights[3] * f.provider[n.provider[k], make]
    held = f.held[n.data[k], make]
    if rule == KEEP_ROOM:
        had = rest_of_class(c, lay, r, g)
        if had < 0:
            return -np.inf
        rest = rest_with(c, f, n, r, k, g, gpus_after)
        if rest < 0:
            return -np.inf
        return room_total(
            r.worth, r.idle, r.gpus, had, rest, c.free[g, 0] + EPSILON, c.free[g, 1] + EPSILON,
            expiry + provider + held + (link + weights[1] * gap),
        )  # fmt: skip
    used = used_with(c, n, k, g, added)
    total = weights[0] * used + weights[1] * gap + expiry + provider + (held + link)
    return np.rint(total * 1e9) / 1e9


@inner
def used_with(c, n, k, g, added):
    """Return the share of the memory in use on nodes of a class with the job there."""
    make = c.make[g]
    more = n.gpus[k] if c.make_unnamed[make] else n.amount[k]
    if n.mig[k]:
        more = added
    return min((c.amount[g] + more) / c.make_amount[make], 1.0)


@inner
def rest_with(c, f, n, r, k, g, gpus_after):
    """Return the rest of nodes of a class with the job there; -1 where the arrays are full."""
    had = c.rest[g]
    want = n.wanted[k, f.power[f.of_make[c.make[g]]]]
    return rest_for(
        c.numbers, r, r.size[had], gpus_after, r.left[had, 0] - want[0],
        r.left[had, 1] - want[1], r.jobs[had] + 1,
    )  # fmt: skip
