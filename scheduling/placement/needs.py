"""The needs of a pool's jobs between two plans: the same job is not asked twice what it wants."""

from collections.abc import Callable

from longshore.models.job_request import JobRequest
from longshore.models.packing import PackingPolicy
from longshore.scheduling.placement.state import Need

_FEW = 1_000
"""Jobs that wait no more that are never too many."""


class KnownNeeds:
    """What `Need.of` said of jobs, as long as their pool's policy stays as it is.

    A job is known by its request, the very object: whoever keeps a queue keeps those that did not
    change.
    """

    def __init__(self) -> None:
        self._policy: PackingPolicy | None = None
        self._known: dict[str, tuple[JobRequest, Need]] = {}
        self._alike: dict[Need, Need] = {}
        """Equal needs are one object, which is compared and hashed sooner."""

    @property
    def count(self) -> int:
        """Jobs that are known."""
        return len(self._known)

    def under(
        self, policy: PackingPolicy, jobs: int | None = None
    ) -> Callable[[JobRequest], Need]:
        """Return what says what a job needs by this policy, for a plan of so many jobs: the whole
        queue, or a part of it where left out."""
        # What tenants have had changes with each plan, and no need.
        policy = policy.as_set
        too_many = jobs is not None and len(self._known) > 2 * jobs + _FEW
        if policy != self._policy or too_many:
            self._known.clear()
            self._alike.clear()
        self._policy = policy

        def need_of(job: JobRequest) -> Need:
            known = self._known.get(job.id)
            if known is not None and known[0] is job:
                return known[1]
            need = Need.of(job, policy)
            need = self._alike.setdefault(need, need)
            self._known[job.id] = job, need
            return need

        return need_of
