"""Constraints of a job that no market promises of its machines.

Driver, firmware and kernel parameters are known when the machine's agent has reported them. A job
that only wants them known can run there then; one that names them may have been bought for in
vain. Labels are those of its fabric alone (`labels_of_bought`): the region is the market, cluster
and domain come with the order.
"""

from collections.abc import Container, Iterable

from longshore.models.buying import Option, OptionKind, UnmetJob
from longshore.models.constraints import Constraint
from longshore.models.funding import PoolFunding
from longshore.models.job_request import JobRequest
from longshore.models.topology import FABRIC_LABELS, REGION_LABEL, SameConformance

CANNOT_MEET = "ranks could not reach each other"


def why_unverifiable(job: JobRequest, of_payers: Container[Constraint] = ()) -> str:
    """Return why nothing is bought for a job, whatever is offered; empty where it may be. What is
    `of_payers` it does not ask for itself: who pays for it pays on such nodes alone."""
    if job.conformance is not None and job.conformance.allowed:
        return (
            "no market says which driver, firmware and kernel parameters its machines will have, "
            "and the job allows named fingerprints only (conformance.allowed)"
        )
    if job.gang is not None and job.gang.same_conformance is SameConformance.REQUIRE:
        return (
            "no market says that its machines are alike in driver, firmware and kernel "
            "parameters, which the job asks for (gang.same_conformance: require)"
        )
    never = (_never_bought(each, each in of_payers) for each in job.constraints)
    return next((why for why in never if why), "")


def suits_market(job: JobRequest, market: str) -> bool:
    """Return whether machines of a market are in a region that the job allows; of one whose name
    is not known they may be."""
    in_region = (each for each in job.constraints if each.key == REGION_LABEL)
    return not market or all(each.allows(market) for each in in_region)


def _never_bought(constraint: Constraint, of_payers: bool) -> str:
    """Return why no machine is bought for a job with this constraint, from whatever market."""
    key = constraint.key
    if constraint.why_on_nodes:
        return constraint.why_on_nodes
    asked = f"the job asks for {constraint} (constraints)"
    if of_payers:
        asked = f"the envelopes that pay for the job pay only on nodes with {constraint}"
    if key not in FABRIC_LABELS:
        if constraint.allows(None):
            return ""
        return f"machines that are bought have no label {key}, and {asked}"
    if not constraint.values and constraint.negated:
        return f"machines that are bought have a label {key}, the job asks for {constraint}"
    if key == REGION_LABEL or not constraint.values:
        return ""
    return f"which {key} a machine will be in is known when it is there, and {asked}"


def unverifiable(jobs: Iterable[UnmetJob], funding: PoolFunding | None = None) -> list[Option]:
    """Return an option, rejected, for each job that nothing is bought for."""
    paid_on = funding.beside_others.items() if funding else ()
    of = {job_id: on.constraints for job_id, on in paid_on}
    return [
        Option(
            kind=OptionKind.UNPROMISED,
            tier=job.request.tier,
            title=f"buy for {job.request.id}",
            lost=why,
            job_id=job.request.id,
        )
        for job in jobs
        if (why := why_unverifiable(job.request, of.get(job.request.id, ())))
    ]
