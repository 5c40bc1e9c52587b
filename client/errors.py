"""What a refusal of Temporal means to whoever asked."""

from temporalio.service import RPCError, RPCStatusCode

from longshore.activities.rpc_errors import is_unknown
from longshore.client.late_answers import LOOKS, NoAnswerError
from longshore.models.errors import (
    EndedError,
    LongshoreError,
    NotFoundError,
    UnavailableError,
)

_AWAY = {
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,  # so says the SDK of a call that was not answered in time
}


def as_ours(error: RPCError, what: str, *, listed_by: str = "") -> LongshoreError:
    """Return an error that says what to do; `what` was asked for, such as ``job train-1``, and
    `listed_by` the command that lists such things."""
    if is_unknown(error) and "already completed" in error.message:
        return EndedError(f"{what} has ended already")
    if is_unknown(error):
        return NotFoundError(f"no {what}" + (f": `{listed_by}` lists them" if listed_by else ""))
    if isinstance(error, NoAnswerError):
        return UnavailableError(
            f"Temporal knows {what}, but {error.message}. Ask again in a moment; {LOOKS}"
        )
    if error.status in _AWAY:
        return UnavailableError(
            f"Temporal does not answer ({error.message}). Is it running? `longshore up` starts "
            "the local stack."
        )
    if error.status is RPCStatusCode.FAILED_PRECONDITION and "no poller" in error.message:
        return UnavailableError(
            f"No control worker is running to answer for {what}. `longshore up` starts one, or "
            f"`longshore worker`; {LOOKS}"
        )
    return UnavailableError(f"Temporal refused: {error.message}")
