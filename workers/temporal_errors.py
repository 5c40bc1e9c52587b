"""What Temporal answers to a request that it does not carry out, as our errors."""

from temporalio.service import RPCError, RPCStatusCode

from longshore.models.errors import RefusedError, UnavailableError


def as_ours(error: RPCError, what: str) -> RefusedError | UnavailableError:
    """Return our error for a refusal of `what`, as in ``to make a schedule``."""
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED):
        return UnavailableError(f"Temporal does not answer ({error.message}).")
    return RefusedError(f"Temporal refused {what}: {error.message}")
