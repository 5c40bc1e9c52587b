"""What a refusal of Temporal says of the workflow that was asked for."""

from temporalio.service import RPCError, RPCStatusCode

GONE = "its workflow has ended"
FULL = "its workflow takes no more signals"
_FULL = "limit for signal"
"""What the refusal says: an argument may be wrong for other reasons, too."""
_NO_NAMESPACE = b"NamespaceNotFoundFailure"


def is_unknown(error: RPCError) -> bool:
    """Return whether Temporal knows no such workflow, or one that has ended.

    A server that begins again has no namespace for a moment, and answers with the same status:
    that says nothing of any workflow.
    """
    return error.status is RPCStatusCode.NOT_FOUND and _NO_NAMESPACE not in error.raw_grpc_status


def why_unheard(error: RPCError) -> str:
    """Return why a workflow will never hear a signal; empty where another try may help.

    Temporal takes 10,000 signals for each run of a workflow, and refuses each further one as an
    argument that is wrong.
    """
    if is_unknown(error):
        return GONE
    full = error.status is RPCStatusCode.INVALID_ARGUMENT and _FULL in str(error).casefold()
    return FULL if full else ""
