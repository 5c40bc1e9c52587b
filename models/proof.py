"""How an agent shows that it knows the join token without sending it.

A Temporal history keeps every message, so the token itself must not travel. The agent sends an
HMAC-SHA256 over what it claims, and a time that bounds how long the message can be used again.
"""

import hashlib
import hmac
from datetime import datetime, timedelta

from models.errors import ClockError, TokenError
from models.node import NodeIdentity

MAX_AGE = timedelta(minutes=10)


def sign(token: str, identity: NodeIdentity, issued_at: datetime) -> str:
    """Return the proof as hex; covers every field of the identity and the time."""
    claim = f"{identity.model_dump_json()}|{issued_at.isoformat()}"
    return hmac.new(token.encode(), claim.encode(), hashlib.sha256).hexdigest()


def check(
    token: str, identity: NodeIdentity, issued_at: datetime, proof: str, now: datetime
) -> None:
    """Raise TokenError unless `proof` was made with `token`, ClockError unless within the last ten
    minutes."""
    if not hmac.compare_digest(sign(token, identity, issued_at), proof):
        raise TokenError(
            f"node {identity.node_id}: wrong join token. Give the agent the one that the control "
            "worker has (LONGSHORE_AGENT_TOKEN, or the file `agent-token` in the state folder)."
        )
    if abs(now - issued_at) > MAX_AGE:
        raise ClockError(
            f"node {identity.node_id}: the clocks of agent and control worker are "
            f"{abs(now - issued_at)} apart; they must agree within {MAX_AGE}."
        )
