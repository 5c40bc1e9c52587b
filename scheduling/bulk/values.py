"""Compiled: the value of nodes to a job: bounds by bucket, and values by class.

Where a function is called often it takes the arrays that it needs, and no groups of them: to pass
a group costs more than the work.
"""
# pyright: basic
# numba compiles these functions; what it accepts as arrays and tuples is not what pyright infers.

import numpy as np

from longshore.scheduling.bulk.arrays import (
    AMOUNTS,
    CHEAPEST,
    ELIGIBILITY,
    FEWEST_JOBS,
    FIRST,
    HEAD,
    LEAST_USED,
    MOST_SHOWN,
    MOST_USED,
    NEED,
    RESIDUALS,
    SIGNATURE,
    STALE,
    SUBJECT,
    UNKNOWN,
    VARIES,
)
from longshore.scheduling.bulk.class_buckets import refresh
from longshore.scheduling.bulk.compiling import inner
from longshore.scheduling.bulk.node_heap import offer
from longshore.scheduling.bulk.questions import ASK_LAYOUT, DONE, FULL, KEEP_ROOM
from longshore.scheduling.bulk.residuals import (
    EPSILON,
    WHOLE,
    add_residual,
    find_residual,
    headroom_total,
    residual_for,
    residual_of_class,
)

SLACK = 4e-9
"""By how much the bound of a bucket may lie below a value for the rounding of sums."""


@inner
def bound_by_score(weights, x, f, n, k, waiting):
    """Put the most that a node may be worth into `value`, for each of the buckets that wait."""
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
        bucket = best[i]
        eligibility = facts[bucket, ELIGIBILITY]
        more = gpus if unnamed[eligibility] else amount
        used = min((bounds[bucket, side] + more) / amounts[eligibility], 1.0)
        # The same sum as of a class, so that equal values are equal to the last digit.
        total = (
            weights[0] * used
            + weights[1] * 0.0
            + most_expiry[eligibility]
            + most_provider[eligibility]
        )
        total = total + (most_held[eligibility] + most_link)
        value[i] = np.rint(total * 1e9) / 1e9


@inner
def bound_by_headroom(weights, count, x, f, lay, n, r, k, waiting):
    """Put the most that a node may be worth into `value`; return DONE or FULL.

    No node of a bucket has more cores or RAM left, or fewer jobs, than its bounds say, and less
    room is never worth more.
    """
    facts, bounds, best, value = x.facts, x.bounds, x.best, x.value
    most_expiry, most_provider = f.most_expiry[n.duration[k]], f.most_provider[n.provider[k]]
    most_held, most_link = f.most_held[n.data[k]], n.most_link[k]
    signature_gpus, wanted, power, sizes = (
        lay.signature_gpus[n.request[k]],
        n.wanted[k],
        f.power,
        f.size,
    )
    if n.by_layout[k] and weights[1] > 0:  # how far apart its GPUs are is not known
        value[:waiting] = np.inf
        return DONE
    size, of_residual, jobs, left, bits = r.size, r.gpus, r.jobs, r.left, r.left_bits
    hash_table, worth = r.hash_table, r.worth
    most = AMOUNTS + wanted.shape[1]
    for i in range(waiting):
        bucket = best[i]
        eligibility, gpus = facts[bucket, ELIGIBILITY], signature_gpus[facts[bucket, SIGNATURE]]
        if gpus == VARIES:
            value[i] = np.inf
            continue
        residual = find_residual(
            count, size, of_residual, jobs, left, bits, hash_table, sizes[eligibility], gpus,
            bounds[bucket, most] - wanted[power[eligibility], 0],
            bounds[bucket, most + 1] - wanted[power[eligibility], 1],
            facts[bucket, FEWEST_JOBS] + 1,
        )  # fmt: skip
        if residual == count[RESIDUALS] and not add_residual(count, r):
            return FULL
        own = bounds[bucket, CHEAPEST] - worth[residual]
        total = (
            -own / WHOLE
            + most_expiry[eligibility]
            + most_provider[eligibility]
            + most_held[eligibility]
        )
        total = total + most_link + SLACK
        value[i] = total if total == total else np.inf
    return DONE


@inner
def scan_by_score(rule, weights, c, x, f, lay, n, r, k, waiting, nodes, groups, totals):
    """Find the best nodes of the buckets that wait; return how many, and DONE or a question."""
    request, want = n.request[k], n.wanted[k]
    by_layout, mig, gpus, amount = n.by_layout[k], n.mig[k], n.gpus[k], n.amount[k]
    codes, gaps, added, links = (
        lay.code[request],
        lay.gap[request],
        lay.added[request],
        lay.link[request],
    )
    expiries, providers = f.expiry[n.duration[k]], f.provider[n.provider[k]]
    held = f.held[n.data[k]]
    later, size, free, traits_of, layout_of = c.later, c.size, c.free, c.traits, c.layout
    in_use, heap_at, pool = c.amount, c.heap_at, c.pool
    best, value, facts = x.best, x.value, x.facts
    found = 0
    for turn in range(waiting):
        top = next_of(best, value, facts, waiting, turn)
        bucket, first, most = best[top], facts[best[top], FIRST], value[top]
        waiting -= 1
        best[top], value[top] = best[waiting], value[waiting]
        if is_beaten(most, first, found, totals, nodes):
            if turn < MOST_SHOWN:  # then so are all others
                break
            continue
        if facts[bucket, STALE]:
            refresh(rule, c, x, r, bucket)
        eligibility = facts[bucket, ELIGIBILITY]
        amounts, unnamed, of_eligibility = (
            f.amount[eligibility],
            f.unnamed[eligibility],
            want[f.power[eligibility]],
        )
        more = gpus if unnamed else amount
        g = facts[bucket, HEAD]
        while g >= 0:
            if size[g] > 0 and has_amounts(free, g, of_eligibility):
                gap = link = 0.0
                if by_layout:
                    layout = layout_of[g]
                    if codes[layout] == UNKNOWN:
                        return found, ask(c.numbers, ASK_LAYOUT, k, layout)
                    gap, link = gaps[layout], links[layout]
                    if mig:
                        more = added[layout]
                traits = traits_of[g]
                used = min((in_use[g] + more) / amounts, 1.0)
                total = weights[0] * used + weights[1] * gap
                total = total + weights[2] * expiries[traits] + weights[3] * providers[traits]
                total = total + (held[traits] + link)
                total = np.rint(total * 1e9) / 1e9
                if found < MOST_SHOWN or total >= totals[MOST_SHOWN - 1]:
                    found = offer(
                        heap_at, size, pool, g, total, nodes, groups, totals, found, x.front
                    )  # fmt: skip
            g = later[g]
    return found, DONE


@inner
def scan_by_headroom(rule, weights, c, x, f, lay, n, r, k, waiting, nodes, groups, totals):
    """Do the same where room counts; FULL where the arrays are full."""
    count, request, want = c.numbers, n.request[k], n.wanted[k]
    codes, signature_gpus, gpus_after = (
        lay.code[request],
        lay.signature_gpus[request],
        lay.gpus_after[request],
    )
    gaps, links = lay.gap[request], lay.link[request]
    most_link, by_gaps = n.most_link[k], weights[1] > 0
    apart = most_link > 0 or (n.by_layout[k] and not n.mig[k] and weights[1] != 0)
    expiries, providers = f.expiry[n.duration[k]], f.provider[n.provider[k]]
    held = f.held[n.data[k]]
    later, size, free, traits_of, layout_of = c.later, c.size, c.free, c.traits, c.layout
    residual_of, heap_at, pool = c.residual, c.heap_at, c.pool
    best, value, facts = x.best, x.value, x.facts
    sizes, of_residual, jobs, left, bits = r.size, r.gpus, r.jobs, r.left, r.left_bits
    hash_table, worth, idle = r.hash_table, r.worth, r.idle
    found = 0
    for turn in range(waiting):
        top = next_of(best, value, facts, waiting, turn)
        bucket, first, most = best[top], facts[best[top], FIRST], value[top]
        waiting -= 1
        best[top], value[top] = best[waiting], value[waiting]
        if is_beaten(most, first, found, totals, nodes):
            if turn < MOST_SHOWN:
                break
            continue
        if facts[bucket, STALE]:
            refresh(rule, c, x, r, bucket)
        of_eligibility, gpus = (
            want[f.power[facts[bucket, ELIGIBILITY]]],
            signature_gpus[facts[bucket, SIGNATURE]],
        )
        g = facts[bucket, HEAD]
        while g >= 0:
            if size[g] > 0 and has_amounts(free, g, of_eligibility):
                after, layout = gpus, layout_of[g]
                if gpus == VARIES:
                    if codes[layout] == UNKNOWN:
                        return found, ask(count, ASK_LAYOUT, k, layout)
                    after = gpus_after[layout]
                had, traits = residual_of[g], traits_of[g]
                residual = find_residual(
                    count, sizes, of_residual, jobs, left, bits, hash_table, sizes[had], after,
                    left[had, 0] - of_eligibility[0], left[had, 1] - of_eligibility[1],
                    jobs[had] + 1,
                )  # fmt: skip
                if residual == count[RESIDUALS] and not add_residual(count, r):
                    return found, FULL
                beside = (
                    weights[2] * expiries[traits] + weights[3] * providers[traits] + held[traits]
                )
                total = headroom_total(
                    worth, idle, of_residual, had, residual, free[g, 0] + EPSILON,
                    free[g, 1] + EPSILON, beside + most_link,
                )  # fmt: skip
                # To ask for a layout costs more than a sum, and few classes are among the best.
                if apart and (found < MOST_SHOWN or total >= totals[MOST_SHOWN - 1] or by_gaps):
                    if codes[layout] == UNKNOWN:
                        return found, ask(count, ASK_LAYOUT, k, layout)
                    total = headroom_total(
                        worth, idle, of_residual, had, residual, free[g, 0] + EPSILON,
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
    """Return the place of the bucket to look into: a few of the best first, then any."""
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
    """Say whether no node of a bucket can be among the best."""
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
    traits = c.traits[g]
    expiry = weights[2] * f.expiry[n.duration[k], traits]
    provider = weights[3] * f.provider[n.provider[k], traits]
    held = f.held[n.data[k], traits]
    if rule == KEEP_ROOM:
        had = residual_of_class(c, lay, r, g)
        if had < 0:
            return -np.inf
        residual = residual_with(c, f, n, r, k, g, gpus_after)
        if residual < 0:
            return -np.inf
        return headroom_total(
            r.worth, r.idle, r.gpus, had, residual, c.free[g, 0] + EPSILON, c.free[g, 1] + EPSILON,
            expiry + provider + held + (link + weights[1] * gap),
        )  # fmt: skip
    used = used_with(c, n, k, g, added)
    total = weights[0] * used + weights[1] * gap + expiry + provider + (held + link)
    return np.rint(total * 1e9) / 1e9


@inner
def used_with(c, n, k, g, added):
    """Return the share of the memory in use on nodes of a class with the job there."""
    traits = c.traits[g]
    more = n.gpus[k] if c.traits_unnamed[traits] else n.amount[k]
    if n.mig[k]:
        more = added
    return min((c.amount[g] + more) / c.traits_amount[traits], 1.0)


@inner
def residual_with(c, f, n, r, k, g, gpus_after):
    """Return the residual of nodes of a class with the job there; -1 where the arrays are full."""
    had = c.residual[g]
    want = n.wanted[k, f.power[f.of_traits[c.traits[g]]]]
    return residual_for(
        c.numbers, r, r.size[had], gpus_after, r.left[had, 0] - want[0],
        r.left[had, 1] - want[1], r.jobs[had] + 1,
    )  # fmt: skip
