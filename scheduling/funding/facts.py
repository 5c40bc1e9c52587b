"""What a decision about funding looks at. GPUs are counted in thousandths, as integers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from longshore.models.funding import Cap, Envelope, FundingTerms


class Where(NamedTuple):
    """On what kind of node GPUs are; of a job that waits, what it asks for."""

    pool: str
    gpu_type: str | None
    """None: a job that waits takes any."""
    labels: frozenset[tuple[str, str]] | None
    """None: a job that waits is on no node yet, and may come to one with any labels."""


class Share(NamedTuple):
    """What a job holds of one node, or asks for where it waits."""

    rank: int
    where: Where
    gpus: tuple[int, ...]
    """Ascending. Of a job that waits 0, 1, 2 ..."""
    milli: int
    """Of each GPU: 1000 of a whole one. Of a MIG instance an eighth for each slice."""

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
