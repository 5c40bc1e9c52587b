"""Jobs that ask for more GPUs on one machine than any machine for sale has.

A cluster is several machines: only a gang spans them.
"""

from collections.abc import Iterable, Iterator, Sequence

from longshore.models.buying import MarketView, NodeShape, Option, OptionKind, UnmetJob
from longshore.scheduling.buying.fleet import shape_of, shape_of_offer


def oversized_jobs(jobs: Iterable[UnmetJob], markets: Sequence[MarketView]) -> list[Option]:
    """Return an option, rejected, for each job that is larger than any machine of its GPU.

    None while a market is away or closed, or has no machine of it: then larger ones may come.
    """
    if any(market.away or market.closed for market in markets):
        return []
    shapes = [shape for market in markets for shape in _shapes(market)]
    found: list[Option] = []
    for job in jobs:
        request = job.request
        wanted = request.gpu_type
        of_type = [
            shape.gpus
            for shape in shapes
            if wanted is None or wanted.casefold() == shape.gpu_type.casefold()
        ]
        if request.gang is not None or not of_type or request.gpus <= max(of_type):
            continue
        kind = f" with {wanted}" if wanted else ""
        found.append(
            Option(
                kind=OptionKind.UNPROMISED,
                tier=request.tier,
                title=f"buy for {request.id}",
                job_id=request.id,
                lost=f"no machine of {request.gpus} GPUs is for sale, the largest{kind} has "
                f"{max(of_type)}: a job that may span machines says so with `gang`",
            )
        )
    return found


def _shapes(market: MarketView) -> Iterator[NodeShape]:
    found = [shape_of_offer(offer) for offer in market.offers]
    found += [quote.shape or shape_of(quote.instance_type) for quote in market.quotes]
    yield from (shape for shape in found if shape is not None)
