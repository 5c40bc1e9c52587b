"""What a decision about a block is made from: its rows, its pool's queue, and the markets now."""

import logging
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime, timedelta

from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from longshore.activities.buying.demand import demand_of_late
from longshore.activities.buying.inputs import read_need, under_way, with_refused_rows
from longshore.activities.buying.market_refusals import refused_offers, refusing_markets
from longshore.activities.buying.purchase_rows import Row
from longshore.activities.buying.startup_failures import failed_machines, given_up_machines
from longshore.activities.providers import registry
from longshore.activities.providers.base import Provider
from longshore.activities.stored_learnt import stored_learnt
from longshore.activities.stored_specs import UNKNOWN, stored_spec
from longshore.activities.usage import load_pool_to_plan
from longshore.models.block import ENDING
from longshore.models.block_end import BlockFacts, BlockJob, BlockMachine, BlockScene, SaleTerms
from longshore.models.buying import BookQuote, BuyingPolicy, MarketView
from longshore.models.departures import FULL_DISK, disk_refuses
from longshore.models.errors import LongshoreError
from longshore.models.job import Tier
from longshore.models.margins import Margins
from longshore.models.market import (
    InstanceType,
    NoQuote,
    NoQuoteReason,
    Offer,
    OrderRequest,
    Preview,
    Side,
    Window,
)
from longshore.models.settings import Settings
from longshore.scheduling.buying.block_end import may_renew, renewal_window, resale_window
from longshore.scheduling.buying.costs import usual_demand
from longshore.scheduling.buying.machine_extension import may_go_on
from longshore.scheduling.buying.price_elsewhere import prices_elsewhere
from longshore.scheduling.departures import lead_of
from longshore.scheduling.durations import end_at, ends_of

_log = logging.getLogger(__name__)
_OVERRUN = timedelta(minutes=15)
"""A job that runs longer than was expected is expected to run so long at least."""


async def read_scene(
    connection: AsyncConnection, block_id: str, now: datetime, margins: Margins
) -> BlockScene:
    """Return a block, its jobs and its pool, without what the markets say.

    `margins` are those of the settings: how early the jobs are asked to leave.
    """
    block = await _block(connection, block_id)
    spec = await load_pool_to_plan(connection, block["pool"], margins)
    policy = spec.purchasing
    need = await read_need(connection, spec)
    machines = await connection.execute(text(_MACHINES), {"id": block_id})
    jobs = await connection.execute(text(_JOBS), {"id": block_id})
    billed = await connection.execute(text(_BILLED), {"pool": block["pool"]})
    samples = await demand_of_late(connection, block["pool"], policy.smoothing, now)
    facts = _facts(block)
    refusing = (await refusing_markets(connection, now)).get(facts.provider)
    return BlockScene(
        block=facts,
        machines=tuple(BlockMachine.model_validate(dict(row)) for row in machines.mappings()),
        jobs=tuple(_job(row, now, margins) for row in jobs.mappings()),
        pool=need.releases,
        billed={row.id: row.hourly for row in billed},
        unstarted=tuple(
            await given_up_machines(connection, block_id)
            if facts.given_up
            else await failed_machines(connection, block_id, now)
        ),
        queue=need.unmet.jobs,
        under_way=await under_way(connection, spec),
        demand=usual_demand(samples, Tier(block["tier"]), now),
        place=block["place"],
        refused=await refused_offers(connection, policy),
        closed=refusing.why if refusing else "",
        policy=policy,
        start_below=spec.start_below,
        packing=spec.packing,
        recent=need.unmet.recent,
        now=now,
    )


async def read_facts(connection: AsyncConnection, block_id: str) -> BlockFacts:
    """Return a block by itself."""
    return _facts(await _block(connection, block_id))


async def with_markets(scene: BlockScene, account: str | None, settings: Settings) -> BlockScene:
    """Return the scene with the books of the block's rest and of the time after it.

    A market that is away has no quote. Raises LongshoreError where the block's own market cannot
    be reached at all.
    """
    async with aclosing(registry.connect(settings, scene.block.provider)) as market:
        able = market.capabilities
        facts = scene.block.model_copy(
            update={
                # A sale whose answer is lost is sent again: only a key makes that one sale.
                "resellable": able.resellable and able.idempotent and account is not None,
                "renewable": able.fixed_window and account is not None,
            }
        )
        scene = scene.model_copy(update={"block": facts})
        if facts.by_use:
            return await _with_offers(scene, settings)
        rest = resale_window(facts.ends_at, scene.now)
        if facts.resellable and rest is not None and scene.policy.resell:
            terms = await terms_of(market, scene, account, rest)
            quote = await _quote(market, facts.instance_type, rest)
            scene = scene.model_copy(update={"rest": quote, "terms": terms})
        after = renewal_window(scene)
        if after is None or not may_renew(scene):
            return scene
        following = with_refused_rows(
            await _quote(market, facts.instance_type, after), scene.refused
        )
    others = await _elsewhere(settings, facts, scene.policy, scene.now)
    asks = [
        ask.price
        for ask in (() if isinstance(following.answer, NoQuote) else following.answer.asks)
        if ask.price and ask.gpus
    ]
    return scene.model_copy(
        update={"following": following, "elsewhere": min([*asks, *others], default=None)}
    )


async def _with_offers(scene: BlockScene, settings: Settings) -> BlockScene:
    """Return the scene of a machine that is billed as it runs with what others like it cost."""
    if not scene.jobs or not may_go_on(scene):
        return scene
    prices = await _elsewhere(settings, scene.block, scene.policy, scene.now)
    return scene.model_copy(update={"elsewhere": min(prices, default=None)})


async def terms_of(
    market: Provider, scene: BlockScene, account: str | None, window: Window
) -> SaleTerms:
    """Return what the market keeps of a sale where the block is; where it quotes none there, that
    of any place of the type, and where it does not say at all what the policy expects."""
    request = OrderRequest(
        key=f"{scene.block.id}.preview", side=Side.SELL, nodes=1, window=window, limit=0,
        instance_type=scene.block.instance_type, account=account, place=scene.place,
    )  # fmt: skip
    for place in dict.fromkeys((scene.place, None)):
        try:
            preview = await market.preview(request.model_copy(update={"place": place}))
        except LongshoreError:
            break
        if isinstance(preview, Preview):
            return SaleTerms(fee_bps=preview.fee_bps, fee_flat=preview.fee_flat)
    return SaleTerms(fee_bps=round(scene.policy.resale_fee * 10_000))


async def _quote(market: Provider, instance_type: str, window: Window) -> BookQuote:
    try:
        answer = await market.book(InstanceType.parse(instance_type), window)
    except LongshoreError as error:
        answer = NoQuote(reason=NoQuoteReason.UNREACHABLE, detail=str(error))
    return BookQuote(instance_type=instance_type, window=window, answer=answer)


async def _elsewhere(
    settings: Settings, block: BlockFacts, policy: BuyingPolicy, now: datetime
) -> Sequence[int]:
    """Return what like machines cost at the markets now, of those that the pool may buy."""
    views: list[MarketView] = []
    for name in registry.configured(settings):
        if name == block.provider and not block.by_use:
            continue  # its book was asked
        try:
            async with aclosing(registry.connect(settings, name)) as market:
                offers = () if market.no_buying else await market.offers()
        except LongshoreError:
            continue
        except Exception:  # one market that cannot be read hides no other
            _log.exception("%s cannot be read", name)
            continue
        views.append(
            MarketView(
                provider=name, capabilities=market.capabilities, offers=tuple(offers),
                observed_at=now,
            )
        )  # fmt: skip
    return prices_elsewhere(views, block, policy)


async def _block(connection: AsyncConnection, block_id: str) -> Row:
    found = await connection.execute(text(_BLOCK), {"id": block_id})
    return found.mappings().one()


def _facts(block: Row) -> BlockFacts:
    return BlockFacts(
        id=block["id"], provider=block["provider"], instance_type=block["instance_type"],
        tier=Tier(block["tier"]), gpus_per_node=block["gpus_per_node"],
        starts_at=block["starts_at"], ends_at=block["ends_at"],
        price=block["price_micro_per_gpu_hour"], by_use=block["is_machine"],
        renewed=block["renewed"], idle_since=block["idle_since"], tried_at=block["tried_at"],
        coming=block["purchase_id"] if block["unwanted"] else None, decided=block["decided"],
        expects=block["expects"], offer=_offer(block["id"], block["offer"]),
        given_up=block["state"] == "DRAINING" and not block["is_machine"]
        and not block["reason"].startswith(ENDING),
    )  # fmt: skip


def _offer(block_id: str, stored: object) -> Offer | None:
    """Return an offer that was ordered; None where another version, or somebody, wrote it so that
    it cannot be read: its machine has to end all the same."""
    try:
        return None if stored is None else Offer.model_validate(stored)
    except ValidationError:
        _log.warning("the offer of %s cannot be read", block_id)
        return None


def _job(row: Row, now: datetime, margins: Margins) -> BlockJob:
    spec = stored_spec(row["job_id"], row["spec"]) or UNKNOWN
    # One that saves when it is asked to goes on from there.
    ran = max(now - row["placed_at"], timedelta(0))
    lost = spec.checkpoint.grace if spec.checkpoint else ran
    learnt = ends_of(stored_learnt(row["learnt"]), row["placed_at"], row["attained"])
    ends = end_at(row["expected_end"], learnt, now)
    if ends < now:
        # What has overrun goes on, as a guess, for half as long again as it has run.
        ends = now + max(ran / 2, _OVERRUN)
    return BlockJob(
        id=row["job_id"], node_id=row["node_id"], gpus=row["gpus"], tier=spec.tier,
        expected_end=ends, lost=lost,
        lead=lead_of(spec.grace, spec.checkpoint is not None, margins),
    )  # fmt: skip


PREPAID_UNTIL = """
           (SELECT d.starts_at + CASE WHEN o.request -> 'offer' ->> 'prepaid' ~ '^P[0-9DTHMS.]+$'
                                      THEN (o.request -> 'offer' ->> 'prepaid')::interval END
              FROM blocks d WHERE d.id = o.key)
"""
"""Until when a machine was paid at its order, by the `orders` row `o`: it costs nothing more."""


PAID_UNTIL = f"""
           CASE WHEN o.is_machine THEN {PREPAID_UNTIL}
                ELSE (SELECT d.ends_at FROM blocks d WHERE d.id = o.key) END
"""
"""Until when the time of a block is paid, whether it is used or not; null where it never is."""


def unwanted(block: str) -> str:
    """Return the SQL of whether a block's machine is on its way, is billed as it runs, and none
    of the jobs waits any more that it was bought for. Others may. One that is paid in advance is
    kept for these. `block` is the SQL of its id."""
    return f"""
    SELECT w.state = 'STARTING' AND p.decision IS NOT NULL AND o.is_machine
           AND coalesce({PREPAID_UNTIL} <= clock_timestamp(), true)
           AND NOT EXISTS (SELECT FROM nodes n WHERE n.block_id = w.id)
           AND NOT EXISTS (SELECT FROM queue q
                            WHERE q.pool = w.pool AND NOT q.held
                              AND jsonb_exists(p.decision -> 'serves', q.job_id))
      FROM blocks w
      JOIN purchases p ON p.id = w.purchase_id
      JOIN orders o ON o.key = w.id
     WHERE w.id = {block}
    """


def idle_since(block: str) -> str:
    """Return the SQL of since when nothing runs on a block that is billed as it runs: null while
    something does, and before it is up. Time that is paid in advance is not idle, but for its last
    minute. `block` is the SQL of its id."""
    return f"""
    SELECT CASE WHEN NOT coalesce(bool_or(p.job_id IS NOT NULL AND p.ended_at IS NULL), false)
                THEN greatest(max(p.ended_at), max(n.registered_at),
                              max({PREPAID_UNTIL}) - interval '1 minute') END
      FROM nodes n
      JOIN orders o ON o.key = n.block_id AND o.is_machine
      LEFT JOIN placements p ON p.node_id = n.id
     WHERE n.block_id = {block}
    """


_FULL = ", ".join(f"'{disk_refuses(code)}'" for code in FULL_DISK)
CLOSED_SINCE = f"""
           CASE WHEN n.state = 'DRAINING' AND n.drain_reason NOT IN ({_FULL})
                  OR n.state = 'GONE'
                THEN n.state_since END
"""
"""The SQL of since when the `nodes` row `n` is cordoned or drained, or its agent has left: it may
start anew, and nobody says that it will. Where its disk is full, it opens by itself; where its
time ends, nobody has closed it."""

_BLOCK = f"""
    SELECT b.*, o.is_machine, nullif(o.request -> 'offer', 'null') AS offer,
           (SELECT count(*) FROM machines m
             WHERE m.block_id = b.id AND m.state NOT IN ('FAILED', 'ENDED')) AS expects,
           ({idle_since("b.id")}) AS idle_since,
           ({unwanted("b.id")}) AS unwanted,
           EXISTS (SELECT FROM purchases p WHERE p.id = b.purchase_id AND p.decision IS NOT NULL)
               AS decided,
           EXISTS (SELECT FROM purchases p WHERE p.renews = b.id
                    AND p.state NOT IN ('ENDED', 'REFUSED')) AS renewed
      FROM blocks b JOIN orders o ON o.key = b.id
     WHERE b.id = :id
"""

_MACHINES = f"""
    SELECT m.name, m.sale_key IS NULL AND n.state = 'READY' AS takes_work,
           n.state = 'LOST' AS lost, n.state = 'GONE' AS gone, {CLOSED_SINCE} AS closed_since
      FROM machines m JOIN nodes n ON n.id = m.name
     WHERE m.block_id = :id AND m.state = 'READY' ORDER BY m.name
"""

_BILLED = f"""
    SELECT n.id, b.price_micro_per_gpu_hour * b.gpus_per_node AS hourly
      FROM nodes n
      JOIN blocks b ON b.id = n.block_id
      JOIN orders o ON o.key = b.id AND o.is_machine
     WHERE n.pool = :pool AND n.state = 'READY'
       AND coalesce({PREPAID_UNTIL} <= clock_timestamp(), true)
"""

_JOBS = """
    SELECT p.job_id, p.node_id, cardinality(p.gpu_indices) AS gpus, p.placed_at, j.spec,
           p.placed_at + make_interval(secs => p.expected_seconds) AS expected_end,
           p.learnt, p.attained
      FROM placements p
      JOIN machines m ON m.name = p.node_id AND m.block_id = :id
      JOIN jobs j ON j.id = p.job_id
     WHERE p.ended_at IS NULL ORDER BY p.job_id, p.rank
"""
