"""Whether anything may be bought, and how much: the switch and the caps in the database."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying import market_refusals
from longshore.activities.database import Database
from longshore.models.base import Instant, Wire
from longshore.models.errors import SpecError
from longshore.models.job import Tier

SCOPES = ("purchase", "day", "pool", "tier", "tenant")
"""Of one purchase, and of one day in UTC: in all, for a pool, a tier, a tenant."""


_TIERS = (*(tier.value for tier in Tier), "*")


class Cap(Wire):
    """The most that may be committed."""

    scope: str
    name: str
    """The pool, tier or tenant; `*` for each that has no cap of its own."""
    most_micro_usd: int | None
    """None where a pool may commit without a limit."""
    of_policy: bool = False
    """It is of a pool's own buying policy; others are set by `longshore market caps`."""
    committed_micro_usd: int | None = None
    """Today, where the cap is for a day and for one name."""


class SwitchState(Wire):
    stopped: bool
    reason: str
    changed_at: Instant
    caps: tuple[Cap, ...] = ()
    """Those that were set, and what each pool that buys may commit a day by its own policy."""


class BuyingSwitch:
    """Stops and resumes buying, and sets caps. Every call may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def stop(self, reason: str) -> None:
        """Refuse every purchase and order from now on. What was ordered before goes on."""
        await self._set(stopped=True, reason=reason or "stopped by hand")

    async def resume(self) -> None:
        """Let it be bought again, also at markets that did not let our key."""
        await self._set(stopped=False, reason="")
        async with self._database.transaction() as connection:
            await market_refusals.forget(connection)

    async def set_cap(self, scope: str, name: str, micro: int | None) -> str:
        """Set a cap, or remove it (None); return what to warn of, if anything.

        Raises SpecError for an unknown scope, and for a cap of a tier that there is not.
        """
        if scope not in SCOPES:
            raise SpecError("cap", (f"scope: must be one of {', '.join(SCOPES)}, not {scope}",))
        name = "*" if scope in ("purchase", "day") else name
        if scope == "tier" and micro is not None and name not in _TIERS:
            raise SpecError("cap", (f"tier: must be one of {', '.join(_TIERS)}, not {name}",))
        async with self._database.transaction() as connection:
            await connection.execute(
                text(_SET_CAP if micro is not None else _DROP_CAP),
                {"scope": scope, "name": name, "micro": micro},
            )
            if micro is None or name in ("*", "default") or scope not in _KNOWN:
                return ""
            known = await connection.scalar(text(_KNOWN[scope]), {"name": name})
        return (
            "" if known else f"there is no {scope} {name} yet: the cap holds for that name alone"
        )

    async def state(self) -> SwitchState:
        async with self._database.transaction() as connection:
            switch = (await connection.execute(text("SELECT * FROM market_switch"))).mappings()
            caps = (await connection.execute(text(_CAPS))).mappings()
            return SwitchState.model_validate(
                {**switch.one(), "caps": [Cap.model_validate(dict(each)) for each in caps]}
            )

    async def _set(self, *, stopped: bool, reason: str) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(
                text("UPDATE market_switch SET stopped = :stopped, reason = :reason,"
                     " changed_at = clock_timestamp()"),
                {"stopped": stopped, "reason": reason},
            )  # fmt: skip


async def why_stopped(connection: AsyncConnection) -> str:
    """Return why nothing may be bought at all; empty where buying is not stopped."""
    return await connection.scalar(text("SELECT reason FROM market_switch WHERE stopped")) or ""


_SET_CAP = """
    INSERT INTO purchase_caps (scope, name, micro) VALUES (:scope, :name, :micro)
    ON CONFLICT (scope, name) DO UPDATE SET micro = excluded.micro
"""

_KNOWN = {
    "pool": "SELECT EXISTS (SELECT FROM pools WHERE name = :name)",
    "tenant": "SELECT EXISTS (SELECT FROM tenants WHERE name = :name)"
    " OR EXISTS (SELECT FROM jobs WHERE tenant = :name)",
}

_DROP_CAP = "DELETE FROM purchase_caps WHERE scope = :scope AND name = :name"

_CAPS = """
    SELECT c.scope, c.name, c.micro AS most_micro_usd, false AS of_policy,
           CASE WHEN c.scope = 'day' OR c.scope <> 'purchase' AND c.name <> '*'
                THEN coalesce(s.committed, 0) END AS committed_micro_usd
      FROM purchase_caps c
      LEFT JOIN purchase_sums s
        ON s.scope = c.scope AND s.day = (clock_timestamp() AT TIME ZONE 'UTC')::date
       AND s.name = CASE WHEN c.scope = 'day' THEN 'all' ELSE c.name END
    UNION ALL
    SELECT 'pool', p.name, (p.spec #>> '{buying,caps,per_day}')::bigint, true,
           coalesce(s.committed, 0)
      FROM pools p
      LEFT JOIN purchase_sums s
        ON s.scope = 'pool' AND s.name = p.name
       AND s.day = (clock_timestamp() AT TIME ZONE 'UTC')::date
     WHERE p.spec #>> '{buying,enabled}' = 'true'
     ORDER BY scope, name, of_policy
"""
