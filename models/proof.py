"""How an agent shows that it knows the join token without sending it.

A Temporal history keeps every message, so the token itself must not travel. The agent sends an
HMAC-SHA256 over all that it claims, and a time that bounds how long the message can be used again.
What is signed travels as text: a version that knows fewer or more fields reads the same text.
"""

import hashlib
import hmac
from datetime import datetime, timedelta

from longshore.models.errors import ClockError, TokenError
from longshore.models.node_messages import Registration
from longshore.models.text import span

MAX_AGE = timedelta(minutes=10)


def sign(token: str, registration: Registration) -> Registration:
    """Return the registration with its claim as text, and the proof as hex of that."""
    claim = _unsigned(registration).model_dump_json()
    return registration.model_copy(update={"claim": claim, "proof": _hmac(token, claim)})


def sign_as_before(token: str, registration: Registration) -> Registration:
    """Return it with a proof as agents of the version before made it: of the identity alone.

    For a control worker of that version, and taken from such an agent. No agent makes one where
    the other is understood, so that nobody can put it in the place of the other.
    """
    claim = f"{registration.identity.model_dump_json()}|{registration.issued_at.isoformat()}"
    return registration.model_copy(update={"claim": "", "proof": _hmac(token, claim)})


def check(token: str, registration: Registration, now: datetime) -> None:
    """Raise TokenError unless all that it says was signed with `token`, ClockError unless within
    ten minutes of `now`, by the server's clock."""
    node_id = registration.identity.node_id
    if registration.claim:
        right = _hmac(token, registration.claim)
    else:
        right = sign_as_before(token, registration).proof
    if not hmac.compare_digest(right, registration.proof):
        raise TokenError(
            f"node {node_id}: wrong join token. Give the agent the one that the control "
            "worker has (LONGSHORE_AGENT_TOKEN, or the file `agent-token` in the state folder)."
        )
    if registration.claim:
        signed = Registration.model_validate_json(registration.claim)
        if _unsigned(signed) != _unsigned(registration):
            raise TokenError(f"node {node_id}: its agent has signed something else than it says")
    ahead = registration.issued_at - now
    if abs(ahead) > MAX_AGE:
        raise ClockError(
            f"node {node_id}: the clock of its machine is {span(abs(ahead))} "
            f"{'ahead of' if ahead > timedelta(0) else 'behind'} that of the Temporal server; at "
            f"most {span(MAX_AGE)} are taken. Set both by NTP."
        )


def _unsigned(registration: Registration) -> Registration:
    return registration.model_copy(update={"claim": "", "proof": ""})


def _hmac(token: str, claim: str) -> str:
    return hmac.new(token.encode(), claim.encode(), hashlib.sha256).hexdigest()
