"""A queue, nodes and books in a file, for `longshore buy --dry-run --state`."""

from datetime import datetime, timedelta
from typing import Annotated, Self

from pydantic import Field, model_validator

from longshore.models.base import Frozen, Instant, Name
from longshore.models.book_document import BookDocument, Dollars
from longshore.models.bounds import Most, Word
from longshore.models.buying import (
    BookQuote,
    BuyingPolicy,
    CapacityUnderWay,
    DemandSample,
    MarketView,
    Release,
    Unmet,
    UnmetJob,
)
from longshore.models.counts import DIGITS
from longshore.models.job_request import JobRequest
from longshore.models.market import Capabilities, Offer
from longshore.models.node import Node
from longshore.models.placement import RunningJob
from longshore.models.pool import PoolPacking
from longshore.models.statefile import (
    MOST_ENTRIES,
    Cores,
    NamedWord,
    NodeEntry,
    refuse_many_gpus,
    refuse_repeated,
)
from longshore.models.topology import MOST_GPUS
from longshore.models.units import GB, Duration


class WaitingJob(JobRequest):
    """A job that waits, as the packer needs it."""

    id: NamedWord
    gpu_type: Word | None = None
    gpu_types: Annotated[tuple[Word, ...], Most(1000)] = Field(default=(), exclude=True)
    attempt: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    data: Annotated[dict[Word, GB], Most(1000)] = Field(default_factory=dict[str, float])
    tenant: Name = "default"  # pyright: ignore[reportIncompatibleVariableOverride]
    start_by: Instant | None = None
    """The latest start of a FLEX job."""

    def unmet(self, now: datetime) -> UnmetJob:
        request = JobRequest(**{name: getattr(self, name) for name in JobRequest.model_fields})
        if request.submitted_at is None:
            request = request.model_copy(update={"submitted_at": now})
        return UnmetJob(request=request, tenant=self.tenant, start_by=self.start_by)


class NodeInUse(NodeEntry):
    """A node, and when the jobs on it will probably end."""

    ends: Annotated[dict[Word, Instant], Most(MOST_GPUS)] = Field(
        default_factory=dict[str, Instant]
    )
    """By job; a job that is not named is not expected to end."""

    def release(self) -> Release:
        node = self.node(None)
        return Release(
            node=node, running=tuple(self._running(node, job) for job in sorted(self.ends))
        )

    def _running(self, node: Node, job: str) -> RunningJob:
        held = [gpu for gpu in node.gpus if gpu.job_id == job]
        share = len(held) / max(sum(gpu.job_id is not None for gpu in node.gpus), 1)
        return RunningJob(
            job_id=job,
            node_id=node.id,
            gpu_indices=tuple(gpu.index for gpu in held),
            vram_per_gpu=max((gpu.vram_used for gpu in held), default=0.0),
            cpus=node.cpus_used * share,
            ram=node.ram_used * share,
            storage=node.storage_used * share,
            power=node.power_used * share,
            expected_end=self.ends[job],
        )

    @model_validator(mode="after")
    def _jobs_are_there(self) -> Self:
        there = {gpu.job_id for gpu in self.node(None).gpus}
        for job in self.ends:
            if job not in there:
                raise ValueError(f"ends: the job {job} holds no GPU of {self.id}")
        return self


class OfferEntry(Frozen):
    """A row of an offer list, taken whole and paid while it runs."""

    id: Word
    instance_type: NamedWord
    gpus: Annotated[int, Field(ge=1, le=10**6), DIGITS]
    price: Dollars
    """Dollars per GPU-hour."""
    seller: Word = ""
    region: Word | None = None
    country: Word | None = None
    community: bool = False
    spot: bool = False
    stock: Word = ""
    prepaid: Duration = timedelta(0)
    startup: Duration | None = None
    cpus: Cores | None = None
    ram: GB | None = None


class MarketEntry(Frozen):
    """What one market shows: books of fixed windows, or offers."""

    provider: NamedWord
    books: Annotated[tuple[BookDocument, ...], Most(MOST_ENTRIES)] = ()
    offers: Annotated[tuple[OfferEntry, ...], Most(MOST_ENTRIES)] = ()
    resellable: bool = True
    """Whether time of a book can be sold again."""
    fast_fabric: bool = True
    """Whether nodes of one order at a book share fast fabric."""
    away: Word = ""
    """Why it does not answer."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.books and self.offers:
            raise ValueError("give books or offers: a market has one of them")
        return self

    def view(self, now: datetime) -> MarketView:
        offers = tuple(Offer(provider=self.provider, **dict(entry)) for entry in self.offers)
        quotes = tuple(
            BookQuote(instance_type=book.instance_type, answer=self._named(book, now))
            for book in self.books
        )
        return MarketView(
            provider=self.provider, capabilities=self._capabilities(), quotes=quotes,
            offers=offers, observed_at=now, away=self.away,
        )  # fmt: skip

    def _named(self, book: BookDocument, now: datetime):
        return book.book(now).model_copy(update={"provider": self.provider})

    def _capabilities(self) -> Capabilities:
        if self.offers:
            return Capabilities(offer_list=True)
        return Capabilities(
            order_book=True,
            fixed_window=True,
            resellable=self.resellable,
            fast_fabric=self.fast_fabric,
            lot_gpus=max((book.lot for book in self.books), default=1),
            grain=timedelta(minutes=1),
        )


class BuyingDocument(Frozen):
    """A whole file: what waits, what there is, what the markets show, and what may be bought."""

    now: Instant | None = None
    """The time to decide at; the clock's when left out."""
    policy: BuyingPolicy = BuyingPolicy()
    packing: PoolPacking = PoolPacking()
    """How the pool packs: what is bought has to be what it would then use."""
    queue: Annotated[tuple[WaitingJob, ...], Most(MOST_ENTRIES)] = ()
    nodes: Annotated[tuple[NodeInUse, ...], Most(MOST_ENTRIES)] = ()
    under_way: Annotated[tuple[CapacityUnderWay, ...], Most(1000)] = ()
    demand: Annotated[tuple[DemandSample, ...], Most(MOST_ENTRIES)] = ()
    markets: Annotated[tuple[MarketEntry, ...], Most(1000)] = ()
    spent_today: Dollars = 0
    """Dollars that count against the cap of the day already."""

    def unmet(self, now: datetime) -> Unmet:
        jobs = tuple(job.unmet(now) for job in self.queue)
        return Unmet(jobs=jobs, demand=self.demand)

    @property
    def left_today(self) -> int | None:
        """Micro-dollars."""
        cap = self.policy.caps.per_day
        return None if cap is None else max(cap - self.spent_today, 0)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        refuse_repeated(job.id for job in self.queue)
        refuse_repeated(node.id for node in self.nodes)
        refuse_many_gpus(self.nodes)
        return self
