"""Looking at arrays in the typed client: their elements, and what they cost."""

from collections.abc import Sequence

from longshore.activities.array_views import ArrayViews
from longshore.activities.buying.reasons import BuyingReasons
from longshore.client.reading import Reading
from longshore.models.array import IndexRange, parse_indices
from longshore.models.array_view import ElementView
from longshore.models.elements import ElementState
from longshore.models.errors import NotFoundError, SpecError
from longshore.models.spending import JobCost


class ArrayReading(Reading):
    """Reads arrays from the database."""

    async def elements(
        self,
        ref: str,
        *,
        states: frozenset[ElementState] = frozenset(),
        indices: str | None = None,
        all_attempts: bool = False,
        after: int = -1,
        limit: int = 100,
    ) -> tuple[ElementView, ...]:
        """Return elements of an array by index; `indices` is as in a job file, such as 3-9,12.

        Raises NotFoundError, and SpecError for indices that are none.
        """
        array_id = await self._array(ref)
        return await ArrayViews(self._db()).elements(
            array_id, states=states, ranges=ranges_of(indices), all_attempts=all_attempts,
            after=after, limit=limit,
        )  # fmt: skip

    async def array_cost(self, ref: str) -> JobCost:
        """Return what an array has cost so far, with all of its slots. Raises NotFoundError."""
        return await BuyingReasons(self._db()).cost_of_job(await self._array(ref))

    async def _array(self, ref: str) -> str:
        """Return the id of an array. Raises NotFoundError where the job is none."""
        job_id = await self._resolve(ref)
        if await ArrayViews(self._db()).array(job_id) is None:
            raise NotFoundError(f"job {job_id} is no array: it has no elements")
        return job_id


def ranges_of(indices: str | None) -> Sequence[IndexRange]:
    """Return the ranges of `--elements`; none without any. Raises SpecError."""
    try:
        return parse_indices(indices) if indices is not None else ()
    except ValueError as error:
        raise SpecError("elements", (f"--elements {indices}: {error}",)) from None
