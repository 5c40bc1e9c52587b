"""Jobs that no machine for sale could hold, such as those that ask for more GPUs than one has.

A cluster is several machines: only a gang spans them.
"""

from collections.abc import Iterable, Iterator, Sequence

from longshore.models.buying import MarketView, NodeShape, Option, OptionKind, UnmetJob
from longshore.models.job_request import JobRequest
from longshore.models.purchase import MOST_NODES
from longshore.scheduling.buying.fleet import holds, shape_of, shape_of_offer


def unheld_jobs(jobs: Iterable[UnmetJob], markets: Sequence[MarketView]) -> dict[str, str]:
    """Return why nothing is bought for each job that no machine for sale could hold, whatever it
    costs, by its id.

    None while a market is away or closed: then others may come. A gang asks for several machines.
    """
    if not markets or any(market.away or market.closed for market in markets):
        return {}
    shapes = [(shape, market.provider) for market in markets for shape in _shapes(market)]
    types = {shape.gpu_type.casefold() for shape, _ in shapes}
    found: dict[str, str] = {}
    for job in jobs:
        request = job.request
        if request.gang is not None or any(holds(shape, request, of) for shape, of in shapes):
            continue
        found[request.id] = (
            f"no machine with {' or '.join(request.types)} GPUs is for sale"
            if request.types and not any(map(request.takes, types))
            else "no machine that is for sale could hold it"
        )
    return found


def oversized_jobs(jobs: Iterable[UnmetJob], markets: Sequence[MarketView]) -> list[Option]:
    """Return an option, rejected, for each job that is larger than any machine of its GPU, and for
    each gang that needs more of them than one purchase has.

    None while a market is away or closed, or has no machine of it: then larger ones may come.
    """
    if any(market.away or market.closed for market in markets):
        return []
    shapes = [shape for market in markets for shape in _shapes(market)]
    found: list[Option] = []
    for job in jobs:
        request = job.request
        of_type = [shape.gpus for shape in shapes if request.takes(shape.gpu_type)]
        if not of_type:
            continue
        kind = f" with {' or '.join(request.types)}" if request.types else ""
        why = _too_large(request, max(of_type), kind)
        if not why:
            continue
        found.append(
            Option(
                kind=OptionKind.UNPROMISED,
                tier=request.tier,
                title=f"buy for {request.id}",
                job_id=request.id,
                lost=why,
            )
        )
    return found


def _too_large(job: JobRequest, most: int, kind: str) -> str:
    """Return why a job is too large, where a machine of its `kind` has `most` GPUs; else empty."""
    if job.gang is None:
        if job.gpus <= most:
            return ""
        return (
            f"no machine of {job.gpus} GPUs is for sale, the largest{kind} has {most}: a job that "
            "may span machines says so with `gang`"
        )
    nodes = -(-job.gpus_held // most)
    if nodes <= MOST_NODES:
        return ""
    return f"it needs {nodes} machines at least, and a purchase is of {MOST_NODES} at most"


def _shapes(market: MarketView) -> Iterator[NodeShape]:
    found = [shape_of_offer(offer) for offer in market.offers]
    found += [quote.shape or shape_of(quote.instance_type) for quote in market.quotes]
    yield from (shape for shape in found if shape is not None)
