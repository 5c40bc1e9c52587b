"""Versions of the control worker: which there are, and which one gets the work."""

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from pydantic import Field

from longshore.models.base import Instant, Wire
from longshore.models.errors import SpecError

DEFAULT_DEPLOYMENT = "longshore"
DEPLOYMENT_VARIABLE = "TEMPORAL_DEPLOYMENT_NAME"
BUILD_VARIABLE = "TEMPORAL_WORKER_BUILD_ID"
"""Temporal's own names, which its controller for Kubernetes sets too."""


class WorkerVersion(Wire):
    """One build of the control worker within its deployment."""

    deployment: str = Field(min_length=1)
    build_id: str = Field(min_length=1)

    @property
    def environment(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """What makes a process a worker of this version."""
        return (DEPLOYMENT_VARIABLE, self.deployment), (BUILD_VARIABLE, self.build_id)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the version that this process is to be; None for an unversioned one.

        Raises SpecError when only half of it is said.
        """
        name = environment.get(DEPLOYMENT_VARIABLE, "")
        build_id = environment.get(BUILD_VARIABLE, "")
        if not name and not build_id:
            return None
        if name and build_id:
            return cls(deployment=name, build_id=build_id)
        given, missing = (
            (DEPLOYMENT_VARIABLE, BUILD_VARIABLE)
            if name
            else (BUILD_VARIABLE, DEPLOYMENT_VARIABLE)
        )
        raise SpecError(
            given,
            (
                f"{given}: is set without {missing}; set both for a versioned control worker, "
                "or neither",
            ),
        )


class VersionState(StrEnum):
    """What the server gives to a version."""

    CURRENT = "current"
    """All that is new, and all that may move."""
    RAMPING = "ramping"
    """A share of that."""
    DRAINING = "draining"
    """Only what has begun on it and is not over."""
    DRAINED = "drained"
    INACTIVE = "inactive"
    """Nothing yet."""
    UNKNOWN = "unknown"


class VersionView(Wire):
    """One version as `longshore deployment status` shows it."""

    build_id: str
    state: VersionState
    workers: int
    """Those that asked for work lately."""
    pools: int
    nodes: int
    jobs: int
    """Running workflows that are on this version."""
    created_at: Instant | None = None

    @property
    def long_lived(self) -> int:
        """Those that keep the workers of a version needed for good, unless they move."""
        return self.pools + self.nodes


class Trouble(Wire):
    """What is not as it should be with a deployment."""

    says: str
    mend: str
    holds_up_work: bool = True


class DeploymentView(Wire):
    """A worker deployment: its versions, newest first, and where new work goes."""

    name: str
    current: str | None = None
    """Build id; None when new work goes to unversioned workers."""
    ramping: str | None = None
    ramp_percent: float = 0
    versions: tuple[VersionView, ...] = ()
    unversioned_workers: int = 0
    trouble: Trouble | None = None


class Moved(Wire):
    """What became of pools and nodes when another version was made current."""

    build_id: str
    previous: str | None = None
    moved: tuple[str, ...] = ()
    """Ids of workflows that go on under the version."""
    stayed: tuple[str, ...] = ()
    """Ids of those that did not, in time: the workers of their version must go on."""
