"""Who pays for each GPU that runs."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from longshore.models.funding import FundingCode
from longshore.scheduling.funding.cover import settle
from longshore.scheduling.funding.facts import Charge, Facts, Use
from longshore.scheduling.funding.holding import Ended, holding
from longshore.scheduling.funding.room import Attempt, Room
from longshore.scheduling.funding.split import Split, split_of


class Funded(NamedTuple):
    """Who pays for what runs, and what has to change for that."""

    ended: tuple[Ended, ...]
    """Charges to close."""
    opened: tuple[Charge, ...]
    """Charges to open; also for GPUs that a charge in `ended` goes on to pay for."""
    splits: Mapping[Attempt, Split]


def evaluate(facts: Facts, now: datetime) -> Funded:
    """Return who pays for each GPU in use."""
    return evaluated(facts, now)[0]


def evaluated(facts: Facts, now: datetime) -> tuple[Funded, Room]:
    """Return who pays for each GPU in use, and the room that is then left."""
    found = holding(facts, now)
    room = Room(facts, now, found.kept)
    recalled: dict[int, tuple[FundingCode, str]] = {}
    claims = sorted(facts.uses, key=lambda use: (use.since, use.job_id))
    moved = True
    while moved:
        moved = False
        for use in claims:
            claim = _claim(room, use)
            if claim is None or not room.tree.has_budget(use.tenant):
                continue
            cover = settle(room, claim)
            room.uses[use.job_id, use.attempt] = use
            moved = moved or cover.funded
            for recall in cover.recalls:
                recalled.setdefault(recall.charge.id, (FundingCode.NO_ROOM, use.job_id))
    return _changes(facts, room, found.ended, recalled), room


def _claim(room: Room, use: Use) -> Use | None:
    held = room.held.get((use.job_id, use.attempt), {})
    paid = {(one.charge.rank, gpu) for one in held.values() for gpu in one.charge.gpus}
    shares = tuple(
        share._replace(gpus=left)
        for share in use.shares
        if (left := tuple(gpu for gpu in share.gpus if (share.rank, gpu) not in paid))
    )
    return use._replace(shares=shares) if shares else None


def _changes(
    facts: Facts,
    room: Room,
    ended: list[Ended],
    recalled: Mapping[int, tuple[FundingCode, str]],
) -> Funded:
    now_held = {
        paid.charge.id: paid.charge
        for held in room.held.values()
        for paid in held.values()
        if paid.charge.id
    }
    first = {one.charge.id: one for one in ended}
    closes: list[Ended] = []
    opens: list[Charge] = []
    for charge in facts.charges:
        left = now_held.get(charge.id)
        if left == charge:
            continue
        kept = frozenset(left.gpus if left else ())
        lost = tuple(gpu for gpu in charge.gpus if gpu not in kept)
        before = first.get(charge.id)
        code, by = (before.code, None) if before else recalled[charge.id]
        closes.append(Ended(charge, lost, code, by))
        if left is not None:
            opens.append(left._replace(id=0))
    opens += [
        paid.charge for held in room.held.values() for paid in held.values() if not paid.charge.id
    ]
    splits = {
        (use.job_id, use.attempt): split_of(
            use,
            [paid.charge for paid in room.held.get((use.job_id, use.attempt), {}).values()],
            facts,
        )
        for use in facts.uses
    }
    return Funded(tuple(closes), tuple(opens), splits)
