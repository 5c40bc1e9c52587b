"""What a decision about funding looks at. GPUs are counted in thousandths, as integers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from longshore.models.funding import Cap, Envelope, FundingTerms, Quotas, WhenUnfunded


class Where(NamedTuple):
    """On what kind of node GPUs are; of a job that waits, what it asks for."""

    pool: str
    gpu_type: str | None
    """None: a job that waits takes any."""
    labels: frozenset[tuple[str, str]] | None
    """None: a job that waits is on no node yet, and may come to one with any labels."""
    there: bool = True
    """False: the pool has no such node, and may buy one."""


class Share(NamedTuple):
    """What a job holds of one node, or asks for where it waits."""

    rank: int
    where: Where
    gpus: tuple[int, ...]
    """Ascending. Of a job that waits 0, 1, 2 ..."""
    milli: int
    """Of each GPU: 1000 of a whole one. Of a MIG instance an eighth for each slice."""
    node: str = ""
    """Of a job that runs, where that is known."""

    @property
    def amount(self) -> int:
        return len(self.gpus) * self.milli


class Use(NamedTuple):
    """A job that runs, or that waits."""

    job_id: str
    attempt: int
    tenant: str
    since: datetime
    """When it was placed; of one that waits, now."""
    shares: tuple[Share, ...]
    terms: FundingTerms = FundingTerms()
    preemptible: bool = True
    kinds: tuple[Where, ...] = ()
    """Of one that waits, where it may come to nodes of several kinds: those. It is paid for on
    one of them, and `where` of its shares says nothing."""
    gets: Where | None = None
    """Of one that waits, and for which others are stopped: the kind of the nodes that it gets."""
    gpus_on: tuple[int, ...] = ()
    """Of a sensitive one that waits: the GPUs that it holds on nodes of each of its `kinds`."""

    @property
    def must_be_funded(self) -> bool:
        """Whether it does not start where nobody pays."""
        return must_be_funded(self.terms, preemptible=self.preemptible)


def must_be_funded(terms: FundingTerms, *, preemptible: bool) -> bool:
    """Return whether a job does not start where nobody pays: it says so, or nobody could stop
    it."""
    return terms.unfunded is WhenUnfunded.WAIT or not preemptible


class Charge(NamedTuple):
    """An envelope pays for GPUs of an attempt, from some time on."""

    job_id: str
    attempt: int
    rank: int
    envelope: int
    gpus: tuple[int, ...]
    milli: int
    lent: bool
    """By contract: the envelope's owner is a sponsor of the job."""
    since: datetime
    """Of what its attempt holds of the envelope: when that was first so. A swap keeps it."""
    id: int = 0
    """0: it is not in the database yet."""

    @property
    def amount(self) -> int:
        return len(self.gpus) * self.milli


class Owned(NamedTuple):
    """An envelope of a tenant."""

    id: int
    tenant: str
    spec: Envelope
    """With its start."""


class Capped(NamedTuple):
    """A cap with the envelopes that it is over."""

    id: int
    tenant: str
    spec: Cap
    envelopes: frozenset[int]


class Branch(NamedTuple):
    """A tenant in the tree."""

    parent: str | None = None
    budget_since: datetime | None = None
    """From when on it has a budget. Without one it pays for all that it uses."""


class Kind(NamedTuple):
    """What a node has that envelopes ask for."""

    gpu_type: str
    labels: frozenset[tuple[str, str]]


class Facts(NamedTuple):
    """All of it, at one moment."""

    tenants: Mapping[str, Branch]
    """A tenant that is not here has neither parent nor budget."""
    envelopes: Mapping[int, Owned]
    """All that have begun or will, and those of charges that are open."""
    caps: Sequence[Capped] = ()
    uses: Sequence[Use] = ()
    """What runs, of tenants with a budget."""
    charges: Sequence[Charge] = ()
    """That are open, whoever's jobs they are for."""
    kinds: frozenset[Kind] = frozenset()
    """Those of the nodes of the pool whose queue is asked for."""
    buys: bool = False
    """Whether that pool may come to have others."""
    sizes: Mapping[Kind, tuple[int, ...]] = MappingProxyType({})
    """How many GPUs nodes of each kind have; ascending. Read where a sensitive job asks."""


class OverQuota(NamedTuple):
    """A hard quota that leaves less than a job asks for."""

    field: str
    """Of `Quotas`, such as ``max_gpus``."""
    used: float
    asked: float
    most: float


class Wall(NamedTuple):
    """A hard quota of a tenant and those below it, with what they hold together."""

    tenant: str
    below: frozenset[str]
    """Whom it is for: the tenant and those below it."""
    quotas: Quotas
    milli: int = 0
    jobs: int = 0
    nodes: frozenset[str] = frozenset()
    """On which they have a job."""
    sensitive: frozenset[str] = frozenset()
    """That they hold alone."""

    def used(self, field: str) -> float:
        """Return what is used of one of its quotas."""
        of = {
            "max_gpus": self.milli / 1000, "max_nodes": len(self.nodes), "max_jobs": self.jobs,
            "sensitive_nodes": len(self.sensitive),
        }  # fmt: skip
        return of[field]

    def refuses(self, milli: int, nodes: Collection[str] = (), *, alone: bool = False) -> str:
        """Return why one more job of these tenants may not have so much, on these nodes; empty
        where it may. In the words of the database, which decides."""
        for over in self.over(milli, nodes, alone=alone):
            said = f"{over.field}: {over.used:g} + {over.asked:g} > {over.most:g}"
            return f"quota of tenant {self.tenant}: {said}"
        return ""

    def over(
        self, milli: int, nodes: Collection[str] = (), *, alone: bool = False
    ) -> Iterator[OverQuota]:
        """Yield each quota over which that would be."""
        on = self.nodes.union(nodes)
        held_alone = self.sensitive.union(nodes if alone else ())
        for field, used, after, most in (
            ("max_gpus", self.milli / 1000, (self.milli + milli) / 1000, self.quotas.max_gpus),
            ("max_nodes", len(self.nodes), len(on), self.quotas.max_nodes),
            ("max_jobs", self.jobs, self.jobs + 1, self.quotas.max_jobs),
            ("sensitive_nodes", len(self.sensitive), len(held_alone),
             self.quotas.sensitive_nodes),
        ):  # fmt: skip
            if most is not None and after > used and after > most:
                yield OverQuota(field, used, after - used, most)

    def having(self, milli: int, nodes: Collection[str] = (), *, alone: bool = False) -> "Wall":
        """Return it with one more job of these tenants."""
        return self._replace(
            milli=self.milli + milli, jobs=self.jobs + 1, nodes=self.nodes.union(nodes),
            sensitive=self.sensitive.union(nodes if alone else ()),
        )  # fmt: skip
