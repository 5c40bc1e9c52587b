"""Markets at which nothing is bought for now: they do not let our key, the account there has too
little money, or time that is paid for there cannot be used. Sellers whose offers are left out:
they took no order with an image. Rows of books that are: their market took no order of them."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.machine_restarts import least_use
from longshore.activities.buying.startup_failures import SILENT_SINCE
from longshore.activities.buying.window_reclaim import released_windows
from longshore.models.buying import BuyingPolicy, RefusedOffer
from longshore.models.errors import FundsError, MarketError
from longshore.models.pool import PoolSpec
from longshore.scheduling.buying.start_backoff import closed_until


async def note(connection: AsyncConnection, provider: str, error: MarketError) -> None:
    """Note that a market refused our key, or an order for the money of the account there. Refusals
    of one moment count once."""
    row = {"provider": provider, "reason": str(error), "for_funds": isinstance(error, FundsError)}
    await connection.execute(text(_NOTE), row)


async def forget(
    connection: AsyncConnection, provider: str | None = None, *, only_funds: bool = False
) -> None:
    """A market took something from us; or, without a name, a person wants all of them asked.

    With `only_funds` it took an order: its account has money, and whether our key may start there
    is another question.
    """
    await connection.execute(text(_FORGET), {"provider": provider, "only_funds": only_funds})
    if provider is None:
        await connection.execute(text(_FORGET_OFFERS))


class Refusing(NamedTuple):
    """A market that refuses our key, or orders for the money of the account there."""

    until: datetime
    """When it is asked again."""
    why: str


async def refusing_markets(connection: AsyncConnection, now: datetime) -> Mapping[str, Refusing]:
    """Return which markets are asked for nothing now, by name: purchases and renewals alike."""
    found: dict[str, Refusing] = {}
    for row in await connection.execute(text(_REFUSALS)):
        until = closed_until(row.times, row.at, for_funds=row.for_funds)
        if now < until:
            why = (
                f"{row.reason}. Nothing is bought there until {until:%Y-%m-%d %H:%M:%S} UTC, or "
                "`longshore market resume`"
            )
            found[row.provider] = Refusing(until, why)
    return found


async def closed_markets(
    connection: AsyncConnection, spec: PoolSpec, now: datetime
) -> Mapping[str, str]:
    """Return why a pool buys nothing at a market now, by market.

    What it has paid for there is used first, whatever keeps its machines from coming up, or has
    ended them.
    """
    refusing = await refusing_markets(connection, now)
    found = {provider: each.why for provider, each in refusing.items()}
    of_use = now + least_use(spec.purchasing)
    values = {"pool": spec.name, "now": now, "of_use": of_use}
    for row in await connection.execute(text(_UNUSED), values):
        found[row.provider] = (
            f"{row.provider}: {row.id} is paid for until {row.ends_at:%H:%M} UTC and has "
            f"{row.ready} of {row.nodes} machines, which are tried again: {row.reason}"
        )
    for each in await released_windows(connection, spec, now):
        if not each["resumed"]:
            found[each["provider"]] = (
                f"{each['provider']}: {each['id']} was terminated, and {each['left']} of its "
                f"{each['nodes']} nodes are paid for until {each['ends_at']:%H:%M} UTC. Nothing "
                "is bought there until then, or `longshore market resume`, and they are used again"
            )
    return found


async def refused_offers(
    connection: AsyncConnection, policy: BuyingPolicy
) -> tuple[RefusedOffer, ...]:
    """Return which sellers took no order with which images, and of which rows of their books
    markets took none, within the policy's `refused_for`."""
    found = await connection.execute(text(_REFUSED_OFFERS), {"within": policy.refused_for})
    return tuple(RefusedOffer.model_validate(dict(row)) for row in found.mappings())


_NOTE = """
    INSERT INTO market_refusals AS r (provider, reason, times, at, for_funds)
    VALUES (:provider, :reason, 1, clock_timestamp(), :for_funds)
    ON CONFLICT (provider) DO UPDATE
       SET reason = excluded.reason, at = excluded.at, for_funds = excluded.for_funds,
           times = CASE WHEN r.for_funds <> excluded.for_funds THEN 1
                        WHEN r.at < excluded.at - interval '1 minute' THEN r.times + 1
                        ELSE r.times END
"""

_FORGET = """
    DELETE FROM market_refusals
     WHERE provider = coalesce(CAST(:provider AS text), provider)
       AND (for_funds OR NOT :only_funds)
"""

_FORGET_OFFERS = "UPDATE orders SET refused_finally = false WHERE refused_finally"

_REFUSALS = "SELECT provider, reason, times, at, for_funds FROM market_refusals"

_UNUSED = f"""
    SELECT b.provider, b.id, b.ends_at, b.nodes, m.ready, m.reason
      FROM blocks b
      JOIN purchases p ON p.id = b.purchase_id
      JOIN orders o ON o.key = b.id AND NOT o.is_machine
     CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE state = 'READY' AND silent IS NULL) AS ready,
                  count(*) FILTER (WHERE sale_key IS NOT NULL
                                     AND (state <> 'READY' OR silent IS NOT NULL)) AS sold,
                  (array_agg(coalesce(silent, why) ORDER BY asked_at DESC)
                     FILTER (WHERE coalesce(silent, why) IS NOT NULL))[1] AS reason
             FROM (SELECT m.state, m.sale_key, m.asked_at, {SILENT_SINCE} AS silent,
                          coalesce(nullif(m.reason, ''), m.refused) AS why
                     FROM machines m LEFT JOIN nodes n ON n.id = m.name
                    WHERE m.block_id = b.id) AS k) AS m
     WHERE b.pool = :pool AND b.state IN ('STARTING', 'OPEN')
       AND b.ends_at > CASE WHEN p.buying THEN :now ELSE :of_use END
       AND m.ready + m.sold < b.nodes AND m.reason IS NOT NULL
"""


_REFUSED_OFFERS = """
    SELECT DISTINCT ON (provider, seller, image, instance_type, place)
           provider, seller, image, instance_type, place, at, said
      FROM (SELECT provider, request #>> '{offer,seller}' AS seller,
                   request #>> '{offer,image}' AS image, '' AS instance_type,
                   NULL AS place, closed_at AS at, refused AS said
              FROM orders
             WHERE refused_finally AND closed_at > clock_timestamp() - CAST(:within AS interval)
               AND request ->> 'offer' IS NOT NULL
             UNION ALL
            SELECT provider, '', '', request ->> 'instance_type', request ->> 'place',
                   closed_at, refused
              FROM orders
             WHERE refused_finally AND closed_at > clock_timestamp() - CAST(:within AS interval)
               AND request ->> 'offer' IS NULL
           ) AS orders
     WHERE seller IS NOT NULL AND image IS NOT NULL
     ORDER BY provider, seller, image, instance_type, place, at DESC
"""
