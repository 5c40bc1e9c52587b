"""The machines of a block: started once each by name, waited for until their agents are there."""

import asyncio
from contextlib import aclosing
from datetime import datetime, timedelta

from sqlalchemy import text
from temporalio import activity
from temporalio.client import Client

from longshore.activities.buying import market_refusals, order_rows
from longshore.activities.buying import purchase_rows as rows
from longshore.activities.buying.machine_prices import above_limit
from longshore.activities.buying.machine_restarts import least_use
from longshore.activities.buying.node_startup import script_for
from longshore.activities.buying.startup_failures import fails_again, may_start, nodes_left
from longshore.activities.database import Database, clock
from longshore.activities.error_translation import follows_up, reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.heartbeat import heartbeats
from longshore.activities.node.system import boot_clock
from longshore.activities.providers import registry
from longshore.activities.providers.base import Provider
from longshore.activities.signals import Signals
from longshore.activities.snapshot import load_pool
from longshore.models.errors import CredentialsError, GoneError, MarketAwayError, MarketError
from longshore.models.market import Machine, MachineRequest, MachineState
from longshore.models.purchase import (
    AgentsReport,
    AgentsRequest,
    MachineStart,
    PurchaseState,
    Refusal,
)
from longshore.models.settings import Settings
from longshore.scheduling.buying.start_backoff import start_again

_POLL_EVERY = timedelta(seconds=5)
"""At the market; at the capacity database ten times as often."""


_WHILE_FOR_SALE = timedelta(seconds=30)
"""Until a start is asked for again whose time finds no buyer."""
_AT_ITS_END = ("DRAINING", "ENDED")
_NEVER_READY = (MachineState.FAILED, MachineState.ENDING, MachineState.ENDED)


class MachineActivities:
    """Activities of `PurchaseWorkflow` on machines."""

    def __init__(self, database: Database, temporal: Client, settings: Settings) -> None:
        self._database = database
        self._temporal = temporal
        self._settings = settings

    @activity.defn
    @reports_errors
    async def start_machine(self, start: MachineStart) -> Refusal:
        """Start a machine on bought time; the same name again is the same machine.

        Returns why it is not started, if so: by the market, and when to try again while its time
        is paid for; or because its block is at its end.
        """
        async with heartbeats():
            async with self._database.transaction() as connection:
                # Whoever ends the block, sells of it or starts another machine on it waits for
                # this, and then finds the machine.
                block = await rows.block_to_start(connection, start.block_id, lock=True)
                if block["state"] in _AT_ITS_END:
                    return Refusal(reason=f"its block ends: {block['reason']}")
                if not await may_start(connection, start.block_id, start.name):
                    again = (
                        _WHILE_FOR_SALE if await nodes_left(connection, start.block_id) else None
                    )
                    return Refusal(reason="its time is sold again", again=again)
                await rows.insert_machine(connection, start.block_id, start.name)
                found = await connection.execute(text(_MAY_BE_THERE), {"name": start.name})
                before = found.one()
                machine = await connection.execute(
                    text("UPDATE machines SET asked_at = CASE WHEN :before THEN asked_at"
                         "                                    ELSE clock_timestamp() END"
                         " WHERE name = :name AND sale_key IS NULL RETURNING machine_id, state"),
                    {"name": start.name, "before": before.may_be_there},
                )  # fmt: skip
                known = machine.mappings().first()
                if known is None:  # it was put up for sale at this moment
                    return Refusal(reason="its time is sold again", again=_WHILE_FOR_SALE)
                await rows.enter(connection, block["purchase_id"], PurchaseState.STARTING)
            if known["machine_id"] is not None or known["state"] == "ENDED":
                return Refusal()
            await failpoint("start_machine.before-call")
            made, unseen = None, before.may_be_there
            try:
                async with aclosing(registry.connect(self._settings, block["provider"])) as market:
                    if unseen:
                        made = await self._listed(market, start.name, before.asked_at)
                    unseen = False
                    made = made or await market.start_machine(
                        MachineRequest(
                            name=start.name, account=block["account"],
                            instance_type=block["instance_type"], place=block["place"],
                            for_gang=block["for_gang"],
                            startup_script=script_for(
                                (start.name,), block, self._settings, self._temporal
                            ),
                        )
                    )  # fmt: skip
            except MarketAwayError as error:
                if not error.uncertain:  # it was not asked for
                    await self._forget_asking(start.name, before.asked_at)
                raise
            except MarketError as error:
                return await self._refused(start.name, block, error, unseen=unseen)
            await failpoint("start_machine.after-call")
            async with self._database.transaction() as connection:
                await connection.execute(
                    text("UPDATE machines SET machine_id = :id, state = 'STARTING',"
                         " started_at = clock_timestamp()"
                         " WHERE name = :name AND state = 'INTENT'"),
                    {"id": made.id, "name": start.name},
                )  # fmt: skip
                await market_refusals.forget(connection, block["provider"])
        await failpoint("start_machine.after-commit")
        return Refusal()

    async def _forget_asking(self, name: str, before: datetime | None) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(
                text("UPDATE machines SET asked_at = :before"
                     " WHERE name = :name AND state = 'INTENT'"),
                {"name": name, "before": before},
            )  # fmt: skip

    async def _listed(self, market: Provider, name: str, asked_at: datetime) -> Machine | None:
        """Return a machine whose start was never answered, once its list cannot lag any more: a
        second one of that name would be paid for beside it, and is noted as asked for now."""
        until = asked_at + self._settings.market_list_lag
        while True:
            now = await self._now()
            found = next((each for each in await market.machines() if each.name == name), None)
            if found is not None:
                return found
            if now > until:
                await self._note_asking(name)
                return None
            await asyncio.sleep(
                min(_POLL_EVERY.total_seconds(), (until - now).total_seconds() + 0.01)
            )

    async def _note_asking(self, name: str) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(
                text("UPDATE machines SET asked_at = clock_timestamp()"
                     " WHERE name = :name AND state = 'INTENT'"),
                {"name": name},
            )  # fmt: skip

    async def _now(self) -> datetime:
        async with self._database.transaction() as connection:
            return await clock(connection)

    @activity.defn
    @follows_up
    async def await_agents(self, request: AgentsRequest) -> AgentsReport:
        """Return when each machine of a block has an agent, or has failed and been stopped, which
        ends the others of its cluster too.

        What one has cost that failed is booked when its market says that it has ended: by the
        next look at its block, or at the block's end.
        """
        async with heartbeats():
            waiting, deadline, provider, limit = await self._waiting(request)
            ids = dict(waiting)
            troubles: dict[str, str] = {}
            async with aclosing(registry.connect(self._settings, provider)) as market:
                look_at = boot_clock()
                while waiting:
                    there, now = await self._nodes()
                    if limit is not None:
                        came = {n: m for n, m in waiting.items() if n in there}
                        troubles |= await _troubles(market, came, limit)
                    waiting = {n: m for n, m in waiting.items() if n not in there}
                    if boot_clock() >= look_at:
                        troubles |= await _troubles(market, waiting, limit)
                        look_at = boot_clock() + _POLL_EVERY.total_seconds()
                    waiting = {n: m for n, m in waiting.items() if n not in troubles}
                    if now >= deadline:
                        troubles |= dict.fromkeys(waiting, "no agent registered in time")
                        break
                    await asyncio.sleep(_POLL_EVERY.total_seconds() / 10)
                troubles = _as_one(troubles, ids)
                await self._stop(market, troubles)
            await failpoint("await_agents.before-commit")
            report = await self._report(request.block_id, troubles)
        await failpoint("await_agents.after-commit")
        if report.again is not None and await self._fails_again(request.block_id):
            # Until the next start its time may be sold, where nobody waits for it any more.
            await Signals(self._temporal).wake_blocks([request.block_id])
        return report

    async def _waiting(
        self, request: AgentsRequest
    ) -> tuple[dict[str, str], datetime, str, int | None]:
        """Return machine ids by name, until when they are waited for, their market, and the most
        that a GPU of them may cost an hour where they are billed as they run."""
        async with self._database.transaction() as connection:
            block = await _block(connection, request.block_id)
            found = (await connection.execute(text(_MACHINES), {"block": request.block_id})).all()
            limit = await order_rows.limit_of_machine(connection, request.block_id)
        waiting = {row.name: row.machine_id for row in found if row.state == "STARTING"}
        newest = max(
            (row.started_at or row.created_at for row in found), default=block["starts_at"]
        )
        deadline = max(newest, block["starts_at"]) + request.within
        return waiting, deadline, block["provider"], limit

    async def _nodes(self) -> tuple[set[str], datetime]:
        """Return the machines whose agents are there, and when that was."""
        async with self._database.transaction() as connection:
            ids = await connection.scalars(
                text("SELECT n.id FROM nodes n JOIN machines m ON m.name = n.id"
                     " WHERE m.state = 'STARTING' AND n.state IN ('READY', 'DRAINING')")
            )  # fmt: skip
            return set(ids), await clock(connection)

    async def _stop(self, market: Provider, troubles: dict[str, str]) -> None:
        for name in troubles:
            async with self._database.transaction() as connection:
                machine_id = await connection.scalar(
                    text("SELECT machine_id FROM machines WHERE name = :name"), {"name": name}
                )
            await market.stop_machine(machine_id)

    async def _report(self, block_id: str, troubles: dict[str, str]) -> AgentsReport:
        async with self._database.transaction() as connection:
            for name, reason in troubles.items():
                await connection.execute(text(_FAIL), {"name": name, "reason": reason})
            await connection.execute(text(_READY), {"block": block_id})
            found = (await connection.execute(text(_MACHINES), {"block": block_id})).all()
            ready = tuple(row.name for row in found if row.state == "READY")
            if ready:
                await connection.execute(
                    text("UPDATE blocks SET state = 'OPEN' WHERE id = :block"
                         " AND state = 'STARTING'"),
                    {"block": block_id},
                )  # fmt: skip
            block = await _block(connection, block_id)
            failed = {row.name: row.reason for row in found if row.state in ("FAILED", "ENDED")}
            by_use = await order_rows.limit_of_machine(connection, block_id) is not None
            again = None if by_use else await self._again(connection, block, len(failed))
        if ready:
            # By itself: a purchase is locked before its machines.
            async with self._database.transaction() as connection:
                await connection.execute(text(_PURCHASE_READY), {"block": block_id})
        ends = f"its block ends: {block['reason']}" if block["state"] in _AT_ITS_END else ""
        return AgentsReport(ready=ready, failed=failed, block_ends=ends, again=again)

    async def _fails_again(self, block_id: str) -> bool:
        async with self._database.transaction() as connection:
            return await fails_again(connection, block_id)

    async def _refused(
        self, name: str, block: rows.Row, error: MarketError, *, unseen: bool
    ) -> Refusal:
        """Note that a market did not start a machine; return when to try again.

        It may be there all the same: it is looked for by its name before it is asked for again,
        and when its block ends. With `unseen` the look for one that was asked for before was
        refused: whether that is there is as open as it was.
        """
        values = {"name": name, "reason": str(error), "unseen": unseen}
        async with self._database.transaction() as connection:
            tries = await connection.scalar(text(_REFUSED), values)
            if isinstance(error, CredentialsError):
                await market_refusals.note(connection, block["provider"], error)
            again = await self._again(connection, block, tries)
            if again is None:
                await connection.execute(text(_FAIL), {"name": name, "reason": str(error)})
        return Refusal(reason=str(error), again=again)

    async def _again(
        self, connection: rows.AsyncConnection, block: rows.Row, tries: int
    ) -> timedelta | None:
        """Return when to start machines of a block again, if its paid time lasts for it, and is
        not all sold."""
        if not await nodes_left(connection, block["id"]):
            return None
        policy = (await load_pool(connection, block["pool"], self._settings.margins)).purchasing
        now = await clock(connection)
        return start_again(tries, now, block["ends_at"], least_use(policy))


async def _troubles(
    market: Provider, waiting: dict[str, str], limit: int | None
) -> dict[str, str]:
    """Return why machines will never have an agent, or may not stay; a market that is away says
    nothing."""
    found: dict[str, str] = {}
    for name, machine_id in waiting.items():
        try:
            machine = await market.machine(machine_id)
        except GoneError as error:
            found[name] = str(error)
        except MarketAwayError:
            continue
        else:
            if dear := above_limit(machine, limit):
                found[name] = dear
            elif machine.state in _NEVER_READY:
                found[name] = machine.reason or f"the market says {machine.native_state}"
    return found


def _as_one(troubles: dict[str, str], ids: dict[str, str]) -> dict[str, str]:
    """Return the troubles with the machines that end with those in trouble: a cluster has one id
    at its market, and ends whole."""
    found = dict(troubles)
    for name, why in troubles.items():
        beside = (other for other in ids if ids[other] == ids[name] and other not in troubles)
        found |= dict.fromkeys(beside, f"its cluster ends as one: {name}: {why}")
    return found


async def _block(connection: rows.AsyncConnection, block_id: str, lock: str = "") -> rows.Row:
    found = await connection.execute(
        text(f"SELECT * FROM blocks WHERE id = :id {lock}"), {"id": block_id}
    )
    return found.mappings().one()


_MACHINES = "SELECT * FROM machines WHERE block_id = :block ORDER BY created_at, name"

_PURCHASE_READY = """
    UPDATE purchases SET state = 'READY', changed_at = clock_timestamp()
     WHERE id = (SELECT purchase_id FROM blocks WHERE id = :block) AND NOT buying
       AND state IN ('FILLED', 'STARTING')
"""
"""Of one that was settled before its machines were up, as its workflow had been ended."""

_MAY_BE_THERE = """
    SELECT asked_at, coalesce(asked_at > refused_at, asked_at IS NOT NULL) AS may_be_there
      FROM machines WHERE name = :name
"""
"""Whether a machine was asked for before, and neither started nor refused."""

_FAIL = """
    UPDATE machines SET state = 'FAILED', reason = coalesce(stop_reason, :reason)
     WHERE name = :name AND state NOT IN ('FAILED', 'ENDED')
"""

_REFUSED = """
    UPDATE machines
       SET refused = :reason, tries = tries + 1, refused_at = now(),
           asked_at = CASE WHEN :unseen THEN now() + interval '1 microsecond' ELSE asked_at END
     WHERE name = :name RETURNING tries
"""

_READY = """
    UPDATE machines m SET state = 'READY'
      FROM nodes n
     WHERE n.id = m.name AND m.block_id = :block AND m.state = 'STARTING'
       AND n.state IN ('READY', 'DRAINING')
"""
