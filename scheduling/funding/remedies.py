"""What would have somebody pay for a job for which nobody does: each has been tried."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from longshore.models.elastic import Malleable
from longshore.models.funding import Envelope, FundingCode, FundingTerms, WhenUnfunded
from longshore.models.job_request import JobRequest
from longshore.models.topology import Gang
from longshore.scheduling.funding.asked import LENDER, SPONSOR, Asked, all_asked
from longshore.scheduling.funding.cover import Cover, cover
from longshore.scheduling.funding.facts import Charge, Facts, Owned, Use
from longshore.scheduling.funding.ladder import OWN as ITSELF
from longshore.scheduling.funding.ladder import WORDS, lends_to
from longshore.scheduling.funding.raised_caps import raised_caps
from longshore.scheduling.funding.room import Room, lends, milli
from longshore.scheduling.funding.tried import GoOn, Turn, always, held_now

_MOST_OPENINGS = 5
_MOST_SPONSORS = 50
_MOST_LENDERS = 5
_MOST_ENDS = 200
_MOST_WRONG = 5
_MOST_FEWER = 16
OWN = WORDS[ITSELF]


class Helps(StrEnum):
    """What would have somebody pay for a job."""

    LATER = "later"
    """To wait until an envelope opens."""
    FEWER = "fewer"
    """To ask for fewer GPUs: so many of them are paid for."""
    SMALLER = "smaller"
    """To be so small where no more is paid for: of a malleable job."""
    MAX_BORROW = "max_borrow"
    """To borrow up to so many GPUs."""
    SPONSORS = "sponsors"
    """To borrow of these tenants, who lend to it."""
    LENDING = "lending"
    """To have a sponsor lend so many GPUs of an envelope in all."""
    BUDGET = "budget"
    """To give an envelope of its own tenant so many GPUs in all, or a new one so many."""
    CAP = "cap"
    """A cap that is higher by so many GPUs at least."""
    PREEMPTIBLE = "preemptible"
    """To say that it may be preempted: relatives would pay."""
    ENDS = "ends"
    """To wait for jobs to end that have the room of envelopes."""
    RUN_UNFUNDED = "unfunded"
    """To run on idle GPUs, with `unfunded: run`."""


class Remedy(NamedTuple):
    """One thing that would help by itself: it has been tried."""

    what: Helps
    gpus: float | None = None
    at: datetime | None = None
    tenants: tuple[str, ...] = ()
    cap: int | None = None
    other_caps: tuple[tuple[int, float], ...] = ()
    """Which have to be raised with it, each by so many GPUs."""
    envelope: int | None = None
    """Which; None of a new one, for GPUs of `gpu_type`."""
    gpu_type: str | None = None
    step: int | None = None
    """Between its sizes, of a malleable job that cannot be so small with the one that it has."""
    max_borrow: int | None = None
    """Of a job that asks sponsors: how much it has to be, where the job says less."""


def for_job(job: JobRequest, helps: Iterable[Remedy]) -> Iterable[Remedy]:
    """Return what helps a job that waits: it can ask for as many GPUs only as it may have. Of a
    sensitive one all of its nodes are paid for, whatever it asks for."""
    for each in helps:
        if each.what is not Helps.FEWER or each.gpus is None:
            yield each
        elif job.malleable is not None:
            yield from _smaller(job, job.malleable, int(each.gpus))
        elif not job.sensitive:
            yield from _asking(job, each)


def _asking(job: JobRequest, fewer: Remedy) -> Iterable[Remedy]:
    """Return how many GPUs are paid for; of a gang with the spares of its groups."""
    gang, paid = job.gang, fewer.gpus or 0
    if gang is None:
        yield fewer
        return
    sizes = range(min(job.gpus - 1, int(paid)), (gang.group_gpus or 1) - 1, -1)
    size = next((size for size in sizes if size + _spares(gang, size) <= paid), None)
    if size is not None:
        yield fewer._replace(gpus=size)


def _smaller(job: JobRequest, its: Malleable, paid: int) -> Iterable[Remedy]:
    """Return which smallest size a malleable job could have for which somebody pays: one that
    leaves it its other sizes, or else any, with a step of 1."""
    fewest, gang = its.min - 1, job.gang
    group = (gang.group_gpus if gang is not None else None) or 1
    sizes = [
        size for size in range(min(fewest, paid), 0, -1) if size + _spares(gang, size) <= paid
    ]
    size = next((size for size in sizes if (its.min - size) % its.step == 0), None)
    if size is not None:
        yield Remedy(Helps.SMALLER, gpus=size)
    elif sizes and group == 1:
        yield Remedy(Helps.SMALLER, gpus=sizes[0], step=1)


def _spares(gang: Gang | None, size: int) -> int:
    return gang.spares_of(size) if gang is not None else 0


def every_asked(room: Room, use: Use) -> Iterable[Asked]:
    """Return the envelopes for the GPUs of a job, in the order in which they are asked."""
    for share in use.shares:
        yield from all_asked(room, use, share.where)


def remedies(
    room: Room,
    use: Use,
    found: Cover,
    gets: int,
    ends: Mapping[str, datetime],
    ahead: Sequence[Use] = (),
    go_on: GoOn = always,
) -> Iterable[Remedy]:
    """Return what would have somebody pay for a job that gets so much of what it asks for. Those
    who wait `ahead` of it come first then, too."""
    turn = Turn(room, use, ahead, go_on)
    yield from _fewer(room, use, gets)
    yield from _borrowing(room, use, found)
    yield from _budget(turn, gets)
    if found.code is FundingCode.NO_ROOM:
        yield from _lending(turn, gets)
    if found.code is FundingCode.CAP:
        yield from (_raised(room, caps) for caps in raised_caps(turn, found.missing))
    if not use.preemptible and cover(room, use._replace(preemptible=True)).funded:
        yield Remedy(Helps.PREEMPTIBLE)
    yield from _ends(turn, ends)
    yield from _openings(turn)
    if use.terms.unfunded is WhenUnfunded.WAIT and use.preemptible:
        yield Remedy(Helps.RUN_UNFUNDED)


def _fewer(room: Room, use: Use, gets: int) -> Iterable[Remedy]:
    """Return of how many GPUs, or parts of one, somebody pays for all."""
    if len(use.shares) != 1:
        return  # it runs on several nodes: what it asked for is no longer a question
    share = use.shares[0]
    most = min(gets // share.milli, len(share.gpus) - 1)
    for gpus in range(most, max(most - _MOST_FEWER, 0), -1):
        if cover(room, use._replace(shares=(share._replace(gpus=share.gpus[:gpus]),))).funded:
            yield Remedy(Helps.FEWER, gpus=gpus)
            return


def _borrowing(room: Room, use: Use, found: Cover) -> Iterable[Remedy]:
    if found.code is FundingCode.BORROW_LIMIT and use.terms.max_borrow is not None:
        unlimited = cover(room, use._replace(terms=_terms(use, use.terms.sponsors, None)))
        if unlimited.funded:
            yield Remedy(Helps.MAX_BORROW, gpus=unlimited.borrowed / 1000)
            return
    lenders = {
        owned.tenant: None
        for place, owned in enumerate(room.owned)
        if room.open[place]
        and lends_to(owned.spec, use.tenant)
        and owned.tenant not in (use.tenant, *use.terms.sponsors)
    }
    if not lenders:
        return
    sponsors = (*use.terms.sponsors, *lenders)[:_MOST_SPONSORS]
    limit = use.terms.max_borrow
    borrowed = cover(room, use._replace(terms=_terms(use, sponsors, limit)))
    if not borrowed.funded and limit is not None:
        limit = None
        borrowed = cover(room, use._replace(terms=_terms(use, sponsors, None)))
    if borrowed.funded:
        borrowed, lent = _of_fewer(room, use, borrowed, limit)
        yield Remedy(
            Helps.SPONSORS, gpus=borrowed.borrowed / 1000,
            tenants=tuple(name for name in sponsors if name in lent),
            max_borrow=-(-borrowed.borrowed // 1000) if limit != use.terms.max_borrow else None,
        )  # fmt: skip


def _of_fewer(
    room: Room, use: Use, borrowed: Cover, limit: int | None
) -> tuple[Cover, Mapping[str, int]]:
    """Return who would pay where nobody is asked beside the sponsors of the job who need not be,
    and what each lends: whoever lends least is tried to be left out first."""
    lent = _lent(room, borrowed)
    for name in sorted(lent.keys() - {*use.terms.sponsors}, key=lambda name: (lent[name], name)):
        rest = tuple(each for each in lent if each != name)
        if name not in lent or not rest:
            continue
        fewer = cover(room, use._replace(terms=_terms(use, rest, limit)))
        if fewer.funded:
            borrowed, lent = fewer, _lent(room, fewer)
    return borrowed, lent


def _lent(room: Room, found: Cover) -> Mapping[str, int]:
    """Return what each sponsor lends, in the order in which they are asked."""
    lent: dict[str, int] = {}
    for charge in found.charges:
        if charge.lent:
            owner = room.owner[room.place[charge.envelope]]
            lent[owner] = lent.get(owner, 0) + charge.amount
    return lent


def _lending(turn: Turn, gets: int) -> Iterable[Remedy]:
    """Return which sponsor's envelope has unused GPUs that it may not lend, and how many in all it
    would have to."""
    room, use, *_ = turn
    wants = sum(share.amount for share in use.shares)
    tried: set[int] = set()
    for asked in every_asked(room, use):
        place = asked.place
        owned = room.owned[place]
        most = lends(owned) + wants - gets
        if (
            asked.rung != SPONSOR or asked.code or place in tried
            or not room.lendable[place] < room.free[place] or most > milli(owned.spec.gpus)
        ):  # fmt: skip
            continue
        if len(tried) == _MOST_LENDERS:
            return
        tried.add(place)

        def lending(more: int, owned: Owned = owned, most: int = most) -> Facts:
            assert owned.spec.lending is not None
            its = owned.spec.lending.model_copy(update={"max": (most + more) / 1000})
            larger = owned.spec.model_copy(update={"lending": its})
            return _with_envelope(turn, owned._replace(spec=larger))

        more = turn.least(lending, milli(owned.spec.gpus) - most)
        if more is not None:
            yield Remedy(Helps.LENDING, gpus=(most + more) / 1000, envelope=owned.id)
            return


def _with_envelope(turn: Turn, envelope: Owned) -> Facts:
    """Return the facts if an envelope were so. A new one is under the caps over all that its
    tenant has, as others are."""
    facts = turn.facts()
    if envelope.id not in facts.envelopes:
        above: set[str] = set()
        tenant: str | None = envelope.tenant
        while tenant is not None and tenant not in above:
            above.add(tenant)
            tenant = turn.room.tree.parent(tenant)
        caps = [
            cap._replace(envelopes=cap.envelopes | {envelope.id})
            if cap.spec.subtree and cap.tenant in above
            else cap
            for cap in facts.caps
        ]
        facts = facts._replace(caps=caps)
    return facts._replace(envelopes={**facts.envelopes, envelope.id: envelope})


def _terms(use: Use, sponsors: tuple[str, ...], max_borrow: int | None) -> FundingTerms:
    return FundingTerms(
        allow_borrow=True, max_borrow=max_borrow, sponsors=sponsors, unfunded=use.terms.unfunded
    )


def _raised(room: Room, raised: Sequence[tuple[int, int]]) -> Remedy:
    (cap, by), *others = ((room.facts.caps[cap].id, by / 1000) for cap, by in raised)
    return Remedy(Helps.CAP, gpus=by, cap=cap, other_caps=tuple(others))


def _openings(turn: Turn) -> Iterable[Remedy]:
    """Return when somebody would pay, if nothing else changed until then."""
    room, use, *_ = turn
    starts = {
        at
        for asked in every_asked(room, use)
        if asked.rung != LENDER and (at := room.owned[asked.place].spec.start) is not None
    }
    facts = turn.facts()
    later = sorted(at for at in starts if at > room.now)
    for at in islice(later, _MOST_OPENINGS):
        if turn.paid(facts, at):
            yield Remedy(Helps.LATER, at=at)
            return


def _budget(turn: Turn, gets: int) -> Iterable[Remedy]:
    """Return how large an envelope of its own tenant would have to be."""
    room, use, *_ = turn
    wants = sum(share.amount for share in use.shares)
    own = next((one for one in every_asked(room, use) if one.rung == OWN and not one.code), None)
    gpu_type = use.shares[0].where.gpu_type
    new = Owned(
        max(room.ids, default=0) + 1, use.tenant,
        Envelope(name="new", gpus=0, gpu_type=gpu_type, end=None),
    )  # fmt: skip
    owned = room.owned[own.place] if own is not None else new
    size = milli(owned.spec.gpus) + (wants - gets if owned is not new else wants)

    def larger(more: int) -> Facts:
        spec = owned.spec.model_copy(update={"gpus": (size + more) / 1000})
        return _with_envelope(turn, owned._replace(spec=spec))

    more = turn.least(larger)
    if more is None:
        return
    gpus = (size + more) / 1000
    if owned is new:
        yield Remedy(Helps.BUDGET, gpus, tenants=(use.tenant,), gpu_type=gpu_type)
    else:
        yield Remedy(Helps.BUDGET, gpus, envelope=owned.id)


def _ends(turn: Turn, ends: Mapping[str, datetime]) -> Iterable[Remedy]:
    """Return when somebody would pay, if jobs ended as expected and nothing else changed."""
    room, use, *_ = turn
    then = Room(held_now(room, use), room.now)
    back: dict[datetime, list[Charge]] = {}
    for place in {one.place for one in every_asked(then, use) if one.code is None}:
        for paid in then.on[place].values():
            end = ends.get(paid.charge.job_id)
            if end is not None:
                back.setdefault(max(end, room.now), []).append(paid.charge)
    enough: list[datetime] = []
    for end in sorted(back)[:_MOST_ENDS]:
        turn.go_on()
        for charge in back[end]:
            then.remove(charge)
        if cover(then, use).funded:
            enough.append(end)
    facts = turn.facts()

    def helps(end: datetime) -> bool:
        # An envelope may have ended by then, or others take what comes back.
        over = {job_id for job_id, at in ends.items() if at <= end}
        uses = tuple(each for each in facts.uses if each.job_id not in over)
        charges = [each for each in facts.charges if each.job_id not in over]
        return turn.paid(facts._replace(uses=uses, charges=charges), end)

    first, rest = enough[:_MOST_WRONG], enough[_MOST_WRONG:]
    at = next((end for end in first if helps(end)), None)
    if at is None and (found := bisect_left(rest, True, key=helps)) < len(rest):
        at = rest[found]
    if at is not None:
        yield Remedy(Helps.ENDS, at=at)
