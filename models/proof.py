"""How an agent shows that it knows the join token without sending it.

A Temporal history keeps every message, so the token itself must not travel. The agent sends an
HMAC-SHA256 over all that it claims, and a time that bounds how long the message can be used again.
What is signed travels as text: a version that knows fewer or more fields reads the same text.
"""

import hashlib
import hmac
from datetime import datetime, timedelta

from longshore.models.errors import ClockError, TokenError
from longshore.models.messages import Registration

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
    the last ten minutes."""
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
    if abs(now - registration.issued_at) > MAX_AGE:
        raise ClockError(
            f"node {node_id}: the clocks of agent and control worker are "
            f"{abs(now - registration.issued_at)} apart; they must agree within {MAX_AGE}."
        )


def _unsigned(registration: Registration) -> Registration:
    return registration.model_copy(update={"claim": "", "proof": ""})


def _hmac(token: str, claim: str) -> str:
    return hmac.new(token.encode(), claim.encode(), hashlib.sha256).hexdigest()
