"""Which open charges still hold. What holds is never moved.

Where an envelope or a cap has become too small, it pays for contracts first, then for its owner,
then for relatives by their steps, of each for who has it longest.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from longshore.models.funding import FundingCode
from longshore.scheduling.funding.facts import Charge, Facts, Use, Where
from longshore.scheduling.funding.ladder import OWN, Tree, is_for, is_open, shares_with


class Ended(NamedTuple):
    """A charge that ends, or goes on for a part of its GPUs as one of its own."""

    charge: Charge
    lost: tuple[int, ...]
    """The GPUs that the envelope pays for no longer."""
    code: FundingCode
    for_job: str | None = None
    """The job that has taken the room, where one has."""


class Holding(NamedTuple):
    """Which charges hold."""

    kept: list[Charge]
    """In order. One that holds in part has fewer GPUs, and its id."""
    ended: list[Ended]


def holding(facts: Facts, now: datetime) -> Holding:
    """Return which of the open charges hold."""
    tree = Tree(facts.tenants)
    uses = {(use.job_id, use.attempt): use for use in facts.uses}
    matching: dict[tuple[int, Where], bool] = {}
    kept: list[Charge] = []
    ended: list[Ended] = []
    steps_of: list[int] = []
    steps_known: dict[tuple[str, str], int | None] = {}
    opens = {id: is_open(owned.spec, now) for id, owned in facts.envelopes.items()}
    sums: dict[int, int] = {}
    for charge in facts.charges:
        use = uses.get((charge.job_id, charge.attempt))
        code, steps = None, OWN
        if charge.envelope not in opens:
            code = FundingCode.NO_ENVELOPE
        elif not opens[charge.envelope]:
            code = FundingCode.NOT_OPEN
        elif use is not None:
            owned = facts.envelopes[charge.envelope]
            pair = use.tenant, owned.tenant
            if pair not in steps_known:
                steps_known[pair] = tree.steps(*pair)
            found = steps_known[pair]
            if not tree.has_budget(use.tenant):
                code = FundingCode.NO_ENVELOPE
            elif not charge.lent and (found is None or not shares_with(owned.spec, found)):
                code = FundingCode.ACL_DENIED
            else:
                steps = OWN if charge.lent or found is None else found
                share = _share(use, charge)
                if share is None:
                    code = FundingCode.NO_ENVELOPE
                elif (key := (charge.envelope, share)) not in matching:
                    matching[key] = is_for(owned.spec, share)
                    code = None if matching[key] else FundingCode.NO_ENVELOPE
                elif not matching[key]:
                    code = FundingCode.NO_ENVELOPE
        if code is not None:
            ended.append(Ended(charge, charge.gpus, code))
            continue
        kept.append(charge)
        steps_of.append(steps)
        sums[charge.envelope] = sums.get(charge.envelope, 0) + charge.amount
    return _within(facts, kept, steps_of, ended, sums)


def _share(use: Use, charge: Charge) -> Where | None:
    for share in use.shares:
        if share.rank == charge.rank:
            return share.where
    return None


def _within(
    facts: Facts,
    kept: list[Charge],
    steps_of: list[int],
    ended: list[Ended],
    sums: dict[int, int],
) -> Holding:
    """Cut what is too much for an envelope or a cap."""
    left: dict[tuple[str, int], int] = {}
    over: dict[int, list[tuple[str, int]]] = {}
    for id, amount in sums.items():
        gpus = round(facts.envelopes[id].spec.gpus * 1000)
        if amount > gpus:
            left["envelope", id] = gpus
            over.setdefault(id, []).append(("envelope", id))
    for cap in facts.caps:
        gpus = round(cap.spec.gpus * 1000)
        if sum(sums.get(id, 0) for id in cap.envelopes) > gpus:
            left["cap", cap.id] = gpus
            for id in cap.envelopes:
                over.setdefault(id, []).append(("cap", cap.id))
    if not over:
        return Holding(kept, ended)
    remains: dict[int, Charge | None] = {}
    for index in _ranked(kept, steps_of, over):
        charge = kept[index]
        limits = over[charge.envelope]
        room = min(left[limit] for limit in limits)
        count = min(max(room, 0) // charge.milli, len(charge.gpus))
        if charge.lent:
            count = len(charge.gpus)  # a contract: the database refuses to cut below it
        for limit in limits:
            left[limit] -= count * charge.milli
        if count < len(charge.gpus):
            tight = min(limits, key=lambda limit: left[limit])
            code = FundingCode.CAP if tight[0] == "cap" else FundingCode.NO_ROOM
            ended.append(Ended(charge, charge.gpus[count:], code))
            remains[index] = charge._replace(gpus=charge.gpus[:count]) if count else None
    return Holding(list(_remaining(kept, remains)), ended)


def _ranked(kept: list[Charge], steps_of: list[int], over: Iterable[int]) -> list[int]:
    """Return places of the charges of some envelopes, those first that keep them."""
    wanted = set(over)
    return sorted(
        (index for index, charge in enumerate(kept) if charge.envelope in wanted),
        key=lambda index: (not kept[index].lent, steps_of[index], age(kept[index])),
    )


def _remaining(kept: list[Charge], remains: dict[int, Charge | None]) -> Iterator[Charge]:
    for index, charge in enumerate(kept):
        left = remains.get(index, charge)
        if left is not None:
            yield left


def age(charge: Charge) -> tuple[datetime, str, int, int, tuple[int, ...]]:
    """Return the key that puts charges in order, those first that have been paid for longest."""
    return charge.since, charge.job_id, charge.attempt, charge.rank, charge.gpus
