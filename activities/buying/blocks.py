"""The steps of a block after it was bought: looks, drain, the end of its machines, its account.

Every step may run twice.
"""

from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.client import Client

from longshore.activities.buying import block_looks, order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.block_scene import unwanted
from longshore.activities.buying.handover import hand_over, nodes_that_go_on
from longshore.activities.buying.ledger import book_use
from longshore.activities.buying.machine_ends import MachineEnds, why_failed
from longshore.activities.buying.machine_extension import store_extension
from longshore.activities.buying.machine_prices import above_limit
from longshore.activities.buying.machine_restarts import look_for_restart
from longshore.activities.buying.market_refusals import refusing_markets
from longshore.activities.buying.stored_documents import stored_request, why_left_alone
from longshore.activities.database import Database, clock
from longshore.activities.error_translation import follows_up
from longshore.activities.failpoints import failpoint
from longshore.activities.heartbeat import heartbeats
from longshore.activities.node_updates import drain_node, give_notice
from longshore.activities.providers import registry
from longshore.activities.providers.base import Provider
from longshore.activities.snapshot import load_pool
from longshore.activities.stored_specs import UNKNOWN, stored_spec
from longshore.models.block import BlockEnd, BlockLook, BlockRef
from longshore.models.errors import AnswerError, CredentialsError, GoneError, MarketAwayError
from longshore.models.market import Machine, MachineState, OrderRequest
from longshore.models.purchase import PurchaseRequest
from longshore.models.settings import Settings

_TO_STOP = timedelta(seconds=30)
"""What stopping takes beside the grace of a job."""

_AT_MARKET = ("READY", "FAILED")
"""States of machines that their market may bill."""

_DRAIN_BEFORE: timedelta = PurchaseRequest.model_fields["drain_before"].default
"""Of a purchase that cannot be read."""
_IDLE_POLL = timedelta(seconds=10)
"""Between two polls of a machine that was idle for too long, and is kept for a job."""
_SPOT_POLL = timedelta(seconds=20)
"""Between two polls of a machine that its market may take away: a notice is short."""


class BlockActivities:
    """Activities of `BlockWorkflow`."""

    def __init__(self, database: Database, temporal: Client, settings: Settings) -> None:
        self._database = database
        self._temporal = temporal
        self._settings = settings
        self._ends = MachineEnds(database, settings)

    @activity.defn
    @follows_up
    async def look_at_block(self, ref: BlockRef) -> BlockLook:
        """Look at the machines of a block: what they cost so far, whether any can still run, and
        which are to be started again.

        The jobs of one that is being taken away are told.

        A market that is away changes nothing. Of a block whose purchase or pool cannot be read
        nothing is decided: it drains and ends at its time. One that the database does not have is
        over: `longshore market orphans` names what its market has of it.
        """
        async with heartbeats():
            block, machines = await self._rows(ref.block_id)
            if block is None:
                now = datetime.now(UTC)
                return BlockLook(ends_at=now, drain_at=now, over=True)
            if block["state"] == "ENDED":
                return BlockLook(ends_at=block["ends_at"], drain_at=block["ends_at"], over=True)
            ends, bill_at = "", None
            async with aclosing(registry.connect(self._settings, block["provider"])) as market:
                for row in machines:
                    if row["state"] not in _AT_MARKET or row["machine_id"] is None:
                        continue
                    if (found := await _read(market, row)) is not None:
                        ended = await self._ends.record(row, found)
                        ends = ends or above_limit(found, _limit(block))
                        if not ended and (at := self._ends.bill_by(found)) is not None:
                            bill_at = min(bill_at or at, at)
                        if found.state is MachineState.FAILED and not ended:
                            ends = ends or why_failed(found)
                        if found.state is MachineState.ENDING and row["state"] == "READY":
                            await give_notice(self._temporal, row["name"], _notice(found))
        async with self._database.transaction() as connection:
            left = await connection.scalar(
                text(
                    "SELECT count(*) FROM machines"
                    " WHERE block_id = :id AND state NOT IN ('FAILED', 'ENDED')"
                ),
                {"id": ref.block_id},
            )
            drain_at = await _drain_at(connection, block)
            now = await clock(connection)
            if await why_left_alone(connection, ref.block_id):
                gone = block["is_machine"] and block["state"] != "STARTING" and not left
                return BlockLook(
                    ends_at=block["ends_at"], drain_at=drain_at, over=gone, ends=ends,
                    look_at=bill_at,
                )  # fmt: skip
            policy = (await load_pool(connection, block["pool"])).buying
            idle_at = await block_looks.idle_at(connection, block, policy)
            lost_its_jobs = await connection.scalar(text(unwanted(":id")), {"id": ref.block_id})
            called_off = block["state"] == "DRAINING" and await connection.scalar(
                text(_NEVER_CAME), {"id": ref.block_id}
            )
            decides = await block_looks.decides_now(
                connection, block, policy, idle_at, now, lost_its_jobs=bool(lost_its_jobs)
            )
            goes_on, look_at = await store_extension(connection, block, now)
            restart = await look_for_restart(connection, block, now, self._settings.margins)
            shut = (await refusing_markets(connection, now)).get(block["provider"])
            if await connection.scalar(text(_IS_SPOT), {"id": ref.block_id}):
                look_at = now + _SPOT_POLL
            elif (
                idle_at is not None
                and idle_at <= now
                and not block_looks.may_be_warm(block, policy)
            ):
                look_at = now + _IDLE_POLL
            may_end = await block_looks.may_end_at(connection, block, policy, idle_at, now)
        opens = shut.until if shut and decides else None
        moments = (look_at, may_end, restart.look_at, bill_at, opens)
        over = block["state"] != "STARTING" and not left and not restart.possible
        idle = ""
        if idle_at is not None and idle_at <= now:
            idle = "nothing has run there for long enough"
        elif called_off:
            idle = block["reason"]
        return BlockLook(
            ends_at=block["ends_at"], drain_at=drain_at, over=over, idle_at=idle_at,
            idle=idle,
            decides=decides, goes_on=goes_on, ends=ends,
            look_at=min((at for at in moments if at is not None), default=None),
            sells=block_looks.sells(block, policy, now),
            starts=restart.numbers, awaits=restart.awaits, silent=restart.silent,
        )  # fmt: skip

    @activity.defn
    @follows_up
    async def drain_block(self, ref: BlockRef) -> None:
        """Have the nodes of a block take no new job; what runs there finishes.

        Those that go on in the block after it take jobs on.
        """
        _, machines = await self._rows(ref.block_id)  # none where the block is not there
        async with self._database.transaction() as connection:
            go_on = await nodes_that_go_on(connection, ref.block_id)
        async with heartbeats():
            for row in machines:
                if row["name"] not in go_on:
                    await drain_node(self._temporal, row["name"], ref.reason)
        async with self._database.transaction() as connection:
            await connection.execute(
                text("UPDATE blocks SET state = 'DRAINING', reason = :reason"
                     " WHERE id = :id AND state IN ('STARTING', 'OPEN')"),
                {"id": ref.block_id, "reason": ref.reason},
            )  # fmt: skip

    @activity.defn
    @follows_up
    async def stop_machines(self, ref: BlockRef) -> None:
        """End the machines of a block, also one whose start was never answered.

        All but those that go on in the block after it, unless only some are to end.

        Raises MarketAwayError until the market says of each that it has ended.
        """
        async with heartbeats():
            if not ref.machines:
                await hand_over(self._database, ref.block_id)
            block, machines = await self._rows(ref.block_id)
            if block is None:
                return
            left = [
                row for row in machines
                if row["state"] != "ENDED" and (not ref.machines or row["name"] in ref.machines)
            ]  # fmt: skip
            if not left:
                return
            async with aclosing(registry.connect(self._settings, block["provider"])) as market:
                by_name = {each.name: each for each in await market.machines()}
                await self._ends.mark_stopped([row["name"] for row in left], ref.reason)
                for row in left:
                    # A cluster is listed by the name of its order, which is that of its block.
                    listed = by_name.get(row["name"]) or by_name.get(ref.block_id)
                    await self._ends.stop(market, row, listed)
        await failpoint("stop_machines.after-commit")

    @activity.defn
    @follows_up
    async def close_block(self, ref: BlockRef) -> BlockEnd:
        """Close a block's account: each job has its share, the rest was idle. Once.

        One that the database does not have has no account.
        """
        async with self._database.transaction() as connection:
            # The order first, as everybody locks them.
            known = await connection.scalar(text(_IS_KNOWN), {"id": ref.block_id})
            if not known:
                return BlockEnd(
                    block_id=ref.block_id, cost=0, used=0, idle=0,
                    reason="the capacity database has no such block",
                )  # fmt: skip
            order = await order_rows.lock(connection, ref.block_id)
            found = await connection.execute(
                text("SELECT * FROM blocks WHERE id = :id FOR NO KEY UPDATE"), {"id": ref.block_id}
            )
            block = found.mappings().one()
            if block["state"] != "ENDED":
                await order_rows.close(connection, ref.block_id)
                ended = await connection.execute(
                    text(_END_BLOCK), {"id": ref.block_id, "reason": ref.reason}
                )
                await book_use(connection, ended.mappings().one(), order.spent)
                await rows.end_if_over(connection, order.purchase_id)
            used = await connection.scalar(text(_USED), {"id": ref.block_id}) or 0
            resold = await connection.scalar(text(_RESOLD), {"id": ref.block_id}) or 0
            await failpoint("close_block.before-commit")
        await failpoint("close_block.after-commit")
        cost = order.spent
        return BlockEnd(
            block_id=ref.block_id, cost=cost, used=used, idle=cost - resold - used,
            resold=resold, reason=ref.reason,
        )  # fmt: skip

    async def _rows(self, block_id: str) -> tuple[rows.Row | None, Sequence[rows.Row]]:
        async with self._database.transaction() as connection:
            block = await connection.execute(text(_BLOCK), {"id": block_id})
            machines = await connection.execute(
                text("SELECT * FROM machines WHERE block_id = :id ORDER BY name"), {"id": block_id}
            )
            return block.mappings().first(), machines.mappings().all()


async def _read(market: Provider, row: rows.Row) -> Machine | None:
    try:
        return await market.machine(row["machine_id"])
    except (MarketAwayError, GoneError, AnswerError, CredentialsError):
        return None  # the next look is never far


def _notice(found: Machine) -> str:
    return f"its machine is being taken away: {found.provider} says {found.native_state}"


def _limit(block: rows.Row) -> int | None:
    """Return the limit of an order that is a machine; None for any other, or where it cannot be
    read: its machine has to end all the same."""
    stored = block["of_machine"]
    try:
        return None if stored is None else OrderRequest.model_validate(stored).limit
    except ValidationError:
        return None


async def _drain_at(connection: AsyncConnection, block: rows.Row) -> datetime:
    """Return when draining begins: early enough that the jobs there can be stopped with grace."""
    request = await connection.scalar(
        text("SELECT request FROM purchases WHERE id = :id"), {"id": block["purchase_id"]}
    )
    asked = stored_request(block["purchase_id"], request)
    margin = asked.drain_before if asked else _DRAIN_BEFORE
    found = await connection.execute(text(_SPECS_ON_BLOCK), {"block": block["id"]})
    specs = [stored_spec(row.id, row.spec) or UNKNOWN for row in found]
    graces = [spec.grace + _TO_STOP for spec in specs]
    # A short block would be draining from its start on.
    longest = (block["ends_at"] - block["starts_at"]) / 4
    return block["ends_at"] - min(max([margin, *graces]), longest)


_BLOCK = """
    SELECT b.*, o.is_machine, CASE WHEN o.is_machine THEN o.request END AS of_machine,
           coalesce(p.decision IS NOT NULL, false) AS decided
      FROM blocks b
      LEFT JOIN orders o ON o.key = b.id
      LEFT JOIN purchases p ON p.id = b.purchase_id
     WHERE b.id = :id
"""

_NEVER_CAME = """
    SELECT b.decision ->> 'kind' = 'let-go' AND NOT EXISTS (
               SELECT FROM nodes n WHERE n.block_id = b.id)
      FROM blocks b WHERE b.id = :id
"""
"""Of one that drains: it was called off before its machine was up."""

_IS_SPOT = "SELECT request -> 'offer' ->> 'spot' = 'true' FROM orders WHERE key = :id"
_IS_KNOWN = "SELECT EXISTS (SELECT FROM blocks WHERE id = :id)"
_RESOLD = "SELECT sum(proceeds)::bigint FROM orders WHERE block_id = :id"

_SPECS_ON_BLOCK = """
    SELECT j.id, j.spec FROM jobs j
      JOIN placements p ON p.job_id = j.id AND p.ended_at IS NULL
      JOIN nodes n ON n.id = p.node_id
     WHERE n.block_id = :block
"""

_END_BLOCK = """
    UPDATE blocks
       SET state = 'ENDED',
           ended_at = least(clock_timestamp(), greatest(ends_at, (
               SELECT max(m.ended_at) FROM machines m JOIN orders o ON o.key = m.block_id
                WHERE m.block_id = :id AND o.is_machine))),
           reason = CASE WHEN :reason = '' THEN reason ELSE :reason END
     WHERE id = :id
    RETURNING *
"""
"""A machine that is billed as it runs and ran on after its end was billed for that too: nobody
used it, and no job pays for it."""

_USED = """
    SELECT sum(micro)::bigint FROM ledger WHERE block_id = :id AND debit LIKE 'job:%'
"""
