"""What a refusal of Temporal says of the workflow that was asked for."""

from temporalio.service import RPCError, RPCStatusCode

_NO_NAMESPACE = b"NamespaceNotFoundFailure"


def is_unknown(error: RPCError) -> bool:
    """Return whether Temporal knows no such workflow, or one that has ended.

    A server that begins again has no namespace for a moment, and answers with the same status:
    that says nothing of any workflow.
    """
    return error.status is RPCStatusCode.NOT_FOUND and _NO_NAMESPACE not in error.raw_grpc_status
