"""Facts of who pays for what: made by hand, and drawn."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from longshore.models.funding import Cap, Envelope, FundingTerms, Lending, Sharing
from longshore.scheduling.funding.facts import (
    Branch,
    Capped,
    Charge,
    Facts,
    Owned,
    Share,
    Use,
    Where,
)
from longshore.scheduling.funding.kept import Funded

NOW = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
H100 = Where("pool", "H100", frozenset())
WAITING = H100._replace(labels=None)


def tree(**parents: str | None) -> dict[str, Branch]:
    """Tenants with a budget, by their parents."""
    return {name: Branch(parent, NOW - HOUR) for name, parent in parents.items()}


def owned(id: int, tenant: str, gpus: float, **fields: object) -> Owned:
    values = {"name": f"e{id}", "gpus": gpus, "end": None, **fields}
    return Owned(id, tenant, Envelope.model_validate(values))


def capped(id: int, tenant: str, gpus: float, envelopes: Iterable[int]) -> Capped:
    return Capped(id, tenant, Cap(name=f"c{id}", gpus=gpus, subtree=True), frozenset(envelopes))


def use(
    job: str,
    tenant: str,
    gpus: int,
    *,
    milli: int = 1000,
    where: Where = H100,
    since: datetime = NOW,
    terms: FundingTerms | None = None,
    preemptible: bool = True,
) -> Use:
    """A job on one node."""
    share = Share(0, where, tuple(range(gpus)), milli)
    return Use(job, 1, tenant, since, (share,), terms or FundingTerms(), preemptible)


def facts_of(
    tenants: Mapping[str, Branch],
    envelopes: Iterable[Owned],
    caps: Sequence[Capped] = (),
    uses: Sequence[Use] = (),
    charges: Sequence[Charge] = (),
) -> Facts:
    return Facts(tenants, {one.id: one for one in envelopes}, caps, uses, charges)


def borrowing(*sponsors: str, most: int | None = None) -> FundingTerms:
    return FundingTerms(allow_borrow=True, sponsors=sponsors, max_borrow=most)


def applied(facts: Facts, funded: Funded) -> Facts:
    """The facts once the database has what was decided. Charges have ids."""
    ended = [one.charge for one in funded.ended]
    for charge in ended:
        assert charge in facts.charges
    kept = [charge for charge in facts.charges if charge not in ended]
    return facts._replace(charges=with_ids([*kept, *funded.opened]))


def with_ids(charges: Iterable[Charge]) -> list[Charge]:
    charges = list(charges)
    last = max((charge.id for charge in charges), default=0)
    found: list[Charge] = []
    for charge in charges:
        last += not charge.id
        found.append(charge if charge.id else charge._replace(id=last))
    return found


NAMES = ("a", "b", "c", "d", "e", "f", "g")
TYPES = ("H100", "h100", "A100")


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Branch]:
    names = NAMES[: draw(st.integers(2, len(NAMES)))]
    found: dict[str, Branch] = {}
    for place, name in enumerate(names):
        parent = draw(st.sampled_from((None, *names[:place], *names[:place])))
        since = None if draw(st.integers(0, 9)) == 0 else NOW - HOUR
        found[name] = Branch(parent, since)
    return found


@st.composite
def envelopes_of(draw: st.DrawFn, id: int, names: Sequence[str]) -> Owned:
    tenant = draw(st.sampled_from(names))
    lends = draw(st.booleans())
    to = draw(st.lists(st.sampled_from(names), min_size=1, unique=True)) if lends else []
    gpus = draw(st.sampled_from((0.5, 1, 2, 3, 4)))
    lending = Lending(to=tuple(to), max=draw(st.sampled_from((0.5, 1, 2)))) if lends else None
    return owned(
        id, tenant, gpus, lending=lending,
        gpu_type=draw(st.sampled_from((None, None, *TYPES))),
        pool=draw(st.sampled_from((None, None, "pool", "other"))),
        labels=draw(st.sampled_from(({}, {}, {"rack": "1"}))),
        start=draw(st.sampled_from((None, None, NOW - HOUR, NOW, NOW + HOUR))),
        end=draw(st.sampled_from((None, None, NOW, NOW + HOUR, NOW + 2 * HOUR))),
        sharing=draw(st.sampled_from((Sharing.FAMILY, Sharing.FAMILY, Sharing.NONE))),
    )  # fmt: skip


@st.composite
def drawn_uses(draw: st.DrawFn, job: str, names: Sequence[str]) -> Use:
    labels = frozenset({("rack", "1")}) if draw(st.booleans()) else frozenset[tuple[str, str]]()
    shares = [
        Share(
            rank,
            Where(draw(st.sampled_from(("pool", "pool", "other"))),
                  draw(st.sampled_from(TYPES)), labels),
            tuple(range(draw(st.integers(1, 3)))),
            draw(st.sampled_from((1000, 1000, 500, 250))),
        )
        for rank in range(draw(st.sampled_from((1, 1, 2))))
    ]  # fmt: skip
    sponsors = draw(st.lists(st.sampled_from(names), unique=True, max_size=2))
    terms = FundingTerms()
    if sponsors:
        terms = borrowing(*sponsors, most=draw(st.sampled_from((None, 1, 2))))
    return Use(
        job, 1, draw(st.sampled_from(names)), NOW - draw(st.integers(0, 3)) * HOUR,
        tuple(shares), terms, draw(st.integers(0, 4)) > 0,
    )  # fmt: skip


@st.composite
def universes(draw: st.DrawFn, charged: bool = True) -> Facts:
    """Tenants, envelopes, caps, jobs that run, and charges that may hold or not."""
    tenants = draw(trees())
    names = sorted(tenants)
    envelopes = [draw(envelopes_of(id, names)) for id in range(1, draw(st.integers(1, 5)) + 1)]
    caps = [
        capped(id, names[0], draw(st.sampled_from((0.5, 1, 2, 3))), draw(
            st.sets(st.sampled_from([one.id for one in envelopes]), min_size=1)))
        for id in range(draw(st.sampled_from((0, 0, 1, 2))))
    ]  # fmt: skip
    uses = [draw(drawn_uses(f"j{n}", names)) for n in range(draw(st.integers(1, 6)))]
    charges: list[Charge] = []
    for one in uses if charged else ():
        for share in one.shares:
            if draw(st.booleans()):
                cut = draw(st.integers(0, len(share.gpus)))
                for gpus in (share.gpus[:cut], share.gpus[cut:]):
                    if gpus and draw(st.integers(0, 3)):
                        paid = draw(st.sampled_from(envelopes))
                        lent = paid.spec.lending is not None and draw(st.booleans())
                        since = NOW - draw(st.integers(0, 2)) * HOUR
                        charges.append(
                            Charge(one.job_id, 1, share.rank, paid.id, gpus, share.milli, lent,
                                   since)
                        )  # fmt: skip
    return facts_of(tenants, envelopes, caps, uses, with_ids(charges))
