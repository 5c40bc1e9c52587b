"""The settings of a pool as they are stored: a newer version, or somebody by hand, wrote them."""

from pydantic import ValidationError

from longshore.activities.stored_specs import stored_error
from longshore.models.errors import StoredError
from longshore.models.pool import PoolSpec


def stored_pool(name: str, stored: object) -> PoolSpec:
    """Return the settings of a pool; the defaults where none are stored.

    Raises StoredError where they cannot be read: it is neither planned nor bought for then.
    """
    if stored is None:
        return PoolSpec(name=name)
    try:
        return PoolSpec.as_known({**stored, "name": name} if isinstance(stored, dict) else stored)
    except ValidationError as error:
        raise stored_error(f"the settings of pool {name}", stored, error) from error


def pool_and_trouble(name: str, stored: object) -> tuple[PoolSpec, str]:
    """Return the settings of a pool, and why they cannot be read: the defaults stand there then.

    For who looks at all pools. Nothing may be decided for that one by the defaults.
    """
    try:
        return stored_pool(name, stored), ""
    except StoredError as error:
        return PoolSpec(name=name), "; ".join(error.problems)
