"""What the failures of a job's attempts say about the next one."""

from collections.abc import Sequence

from longshore.models.job_status import AttemptRecord
from longshore.models.retry import FailureClass

_ENOUGH = 2
"""Nodes on which a process could not be started: one may lack something, two hardly do."""


def why_no_retry(failure: FailureClass, attempts: Sequence[AttemptRecord]) -> str:
    """Return why another attempt cannot help after this failure, the last of `attempts`.

    Empty where it may. A failure to start is the node's until another node has shown it too.
    """
    if failure is not FailureClass.START:
        return ""
    nodes = {each.failed_on or each.node_id for each in attempts if each.failure is failure}
    if len(nodes) < _ENOUGH:
        return ""
    return f"no other node is tried: it could not be started on {' and '.join(sorted(nodes))}"
