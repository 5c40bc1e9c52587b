"""Why a gang does not fit, with the numbers of the domains and the one that comes closest."""

from collections import Counter
from collections.abc import Mapping, Sequence

from longshore.models.gang import DomainRoom, GangPacking, GangPlan
from longshore.models.job_request import JobRequest
from longshore.models.text import count
from longshore.models.topology import Gang
from longshore.scheduling.gangs.offers import Offer
from longshore.scheduling.topology import Domain, DomainKey

_MOST_NAMED = 4
"""Domains that a sentence names."""


def refuse(
    job: JobRequest,
    gang: Gang,
    packing: GangPacking,
    offers: Sequence[Offer],
    domains: Sequence[Domain],
    offered: int,
) -> GangPlan:
    """Return the plan of a gang that does not fit on `offers`, the largest set of like nodes.

    `offered` is how many nodes offered something, alike or not.
    """
    room: Counter[DomainKey] = Counter()
    for offer in offers:
        room[offer.domain] += offer.gpus
    plan = GangPlan(
        gpus=job.gpus,
        packing=packing,
        domains=tuple(
            DomainRoom(
                domain=domain.key.name,
                nodes=domain.nodes,
                gpus=domain.gpus,
                free=domain.free,
                usable=room[domain.key],
                residual=domain.free,
            )
            for domain in domains
        ),
        spares_wanted=gang.spares_of(job.gpus),
    )
    if not room:
        return plan.model_copy(
            update={"refusal": "no node can give it a GPU", "missing": job.gpus}
        )
    wants, size, left = _shortage(job, gang, room)
    limiting = min(left, key=lambda key: (-left[key], key))
    others = offered - len(offers)
    unlike = f"; {count(others, 'node')} more would not be alike" if others else ""
    return plan.model_copy(
        update={
            "refusal": f"{wants}; {_rooms(room, domains)}{unlike}",
            "limiting_domain": limiting.name,
            "missing": size - left[limiting],
        }
    )


def without_spares(refused: GangPlan, found: int, domain: str) -> GangPlan:
    """Return the same for a gang that would fit, were it not for its spares.

    `found` of them would fit too, `domain` is that of its first group.
    """
    wanted = refused.spares_wanted
    return refused.model_copy(
        update={
            "refusal": f"its {count(refused.gpus, 'GPU')} would fit, and {found} of "
            f"{count(wanted, 'spare')} on other nodes of their domains; "
            "gang.spares_required: false starts it without the rest",
            "limiting_domain": domain,
            "missing": wanted - found,
        }
    )


def never(refusal: str, *, lacks_spares: bool) -> str:
    """Return that no nodes could ever hold a gang. Where its spares alone lack, not all ways to
    place it were tried."""
    if lacks_spares:
        return f"no way was found in which known nodes could ever hold it together: {refusal}"
    return f"no known nodes could ever hold it together: {refusal}"


def _shortage(
    job: JobRequest, gang: Gang, room: Mapping[DomainKey, int]
) -> tuple[str, int, Mapping[DomainKey, int]]:
    """Return what is wanted in words, the GPUs that some domain lacks, and what each has left."""
    if not gang.allow_cross_group_spread:
        return f"needs {count(job.gpus, 'GPU')} in one domain", job.gpus, room
    if gang.group_gpus is None:
        have = sum(room.values())
        return (
            f"needs {count(job.gpus, 'GPU')}, the domains together have {have}",
            job.gpus - have + max(room.values()),
            room,
        )
    sizes = gang.group_sizes(job.gpus)
    size = sizes[0]
    full = sum(each == size for each in sizes)
    placed = sum(gpus // size for gpus in room.values())
    left = {key: gpus % size for key, gpus in room.items()}
    if placed >= full:  # only the last, smaller group finds no room
        placed, size = full, sizes[-1]
    wants = f"needs {count(len(sizes), 'group')} of {count(sizes[0], 'GPU')}, each in one domain"
    return f"{wants}, and {placed} would fit", size, left


def _rooms(room: Mapping[DomainKey, int], domains: Sequence[Domain]) -> str:
    """Return ``a has 72 (of 72 free), b has 48 (of 64 free)``, the largest first."""
    free = {domain.key: domain.free for domain in domains}
    order = sorted(room, key=lambda key: (-room[key], key))
    parts = [f"{key.name} has {room[key]}{_of(room[key], free[key])}" for key in order]
    named = ", ".join(parts[:_MOST_NAMED])
    more = len(parts) - _MOST_NAMED
    return f"{named}, {count(more, 'domain')} more have less" if more > 0 else named


def _of(usable: int, free: int) -> str:
    return "" if usable == free else f" for it of {free} free"
