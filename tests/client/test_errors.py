"""What a refusal of Temporal means to whoever asked."""

import pytest
from temporalio.service import RPCError, RPCStatusCode

from longshore.client.errors import as_ours
from longshore.models.errors import EndedError, LongshoreError, NotFoundError, UnavailableError

NO_NAMESPACE = b"\x08\x05type.googleapis.com/temporal.api.errordetails.v1.NamespaceNotFoundFailure"
"""As a development server answered that was killed and began again."""


@pytest.mark.parametrize(
    ("message", "details", "kind"),
    [
        ("workflow not found for ID: job-a", b"", NotFoundError),
        ("workflow execution already completed", b"", EndedError),
        ("Namespace default is not found.", NO_NAMESPACE, UnavailableError),
    ],
)
def test_what_is_not_known_is_no_more_than_that(
    message: str, details: bytes, kind: type[LongshoreError]
):
    error = RPCError(message, RPCStatusCode.NOT_FOUND, details)
    assert type(as_ours(error, "job a")) is kind
