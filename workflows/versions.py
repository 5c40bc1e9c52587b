"""Moving a workflow that never ends to the newer version of its worker.

A control worker may be a version of a worker deployment. A run of a pool or a node then stays
with the version that it began on, so that its code may change in any way; the next run goes to
the newest one.
"""

from temporalio import workflow

NEWEST = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
"""For `continue_as_new`: the next run begins on the version that is current then."""


def is_outdated() -> bool:
    """Return whether another version than this run's own is to have it; never where workers
    are not versioned.

    The server says so with the next task: a run that sleeps must be woken to hear it.
    """
    return workflow.info().is_target_worker_deployment_version_changed()
