"""Nodes in the capacity database: registration, drain, loss."""

import json
from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity

from longshore.activities.adoption import adoptable, gpu_row, holding, or_none
from longshore.activities.database import Database
from longshore.activities.departures import end_as_bought
from longshore.activities.error_translation import reports_errors
from longshore.activities.failpoints import failpoint
from longshore.activities.pokes import mark_poked, mark_poked_if_useful, services_on
from longshore.activities.queue_rows import ensure_pool
from longshore.activities.signals import Signals
from longshore.activities.snapshot import to_mb, to_milli
from longshore.models import proof
from longshore.models.errors import NotFoundError, RefusedError, StaleError
from longshore.models.messages import LeaseEnd, NodeLost
from longshore.models.node import Inventory, Liveness, NodeState
from longshore.models.node_messages import DrainRequest, NodeEnd, Registered, Registration
from longshore.models.placement import PlacementKey
from longshore.models.problems import beyond_bounds


class RegistryActivities:
    """Activities of `NodeWorkflow` on the capacity database."""

    def __init__(
        self, database: Database, signals: Signals, agent_token: str, liveness: Liveness
    ) -> None:
        self._database = database
        self._signals = signals
        self._agent_token = agent_token
        self._liveness = liveness

    @activity.defn
    @reports_errors
    async def register_node(self, registration: Registration) -> Registered:
        """Admit an agent: check its proof, write its inventory, and give it a new epoch.

        Whatever still held a GPU under an older epoch has ended with it: the agent ended its
        orphans before it called. But of engines that run on those go on that hold their leases
        still, under the epoch of these; the agent ends the others before it starts anything. A
        repeat with the same boot returns the same. A node that was drained stays so until somebody
        ends that.
        Raises TokenError for a wrong or expired proof, RefusedError for what is beyond its bounds,
        and NotFoundError for a block that is not there.
        """
        identity = registration.identity
        # Judged at the time when it came in: the database may have been away since.
        came_in_at = activity.info().scheduled_time
        proof.check(self._agent_token, registration, came_in_at)
        if problems := beyond_bounds(registration):
            raise RefusedError(f"node {identity.node_id}: {'; '.join(problems)}")
        async with self._database.transaction() as connection:
            await ensure_pool(connection, identity.pool)
            epoch = await self._known_epoch(connection, registration)
            if epoch is None:
                epoch = await self._admit(connection, registration)
            known = await connection.execute(
                text("SELECT drain_reason, expires_at FROM nodes WHERE id = :id"),
                {"id": identity.node_id},
            )
            node = known.one()
            adopted = await holding(connection, registration)
            await mark_poked(connection, identity.pool)
            await failpoint("register.before-commit")
        await failpoint("register.after-commit")
        cut_off = registration.cut_off
        await self._tell_lost_jobs(
            identity.node_id, epoch - 1, _why_anew(registration), cut_off=cut_off, anew=not cut_off
        )
        await self._signals.poke_pool(identity.pool)
        return Registered(
            node_id=identity.node_id, epoch=epoch, liveness=self._liveness,
            drain_reason=node.drain_reason, expires_at=node.expires_at, adopted=adopted,
        )  # fmt: skip

    @activity.defn
    @reports_errors
    async def drain_node(self, request: DrainRequest) -> None:
        """Stop placing on a node, or start again; what runs there goes on. Its pool looks at who
        waits, and services with replicas there whether these are to be replaced.

        Raises StaleError when the node has been registered anew or has ended since.
        """
        state, other = NodeState.READY, NodeState.DRAINING
        if request.draining:
            state, other = other, state
        async with self._database.transaction() as connection:
            pool = await connection.scalar(
                text(_SET_STATE),
                {
                    "id": request.node_id, "epoch": request.epoch, "state": state.value,
                    "reason": request.reason, "from": [state.value, other.value],
                },
            )  # fmt: skip
            await connection.execute(
                text("UPDATE nodes SET drain_reason = :reason, clearing = :clearing"
                     " WHERE id = :id AND epoch = :epoch"),
                {
                    "id": request.node_id, "epoch": request.epoch, "clearing": request.clearing,
                    "reason": request.reason if request.draining else None,
                },
            )  # fmt: skip
            if pool is None:
                raise StaleError(f"node {request.node_id} has ended or was registered anew")
            services = await services_on(connection, request.node_id)
            # Who waits for what a closed node has is told another reason, or another start.
            mark = mark_poked_if_useful if request.draining else mark_poked
            first = await mark(connection, pool)
        await self._signals.poke_services(services)
        # A retry cannot know whether the one before it got as far as the signal.
        if first or activity.info().attempt > 1:
            await self._signals.poke_pool(pool)

    @activity.defn
    @reports_errors
    async def end_node(self, request: NodeEnd) -> NodeEnd:
        """Declare a registration over: no placement on it any more, its leases end, its jobs hear,
        and its pool looks at who waits.

        Returns how it ended: a node whose machine was stopped on purpose is gone, not lost. An
        epoch that is no longer the node's changes nothing.
        """
        live = [NodeState.READY.value, NodeState.DRAINING.value, request.state.value]
        async with self._database.transaction() as connection:
            stopped = await connection.scalar(
                text("SELECT stop_reason FROM machines WHERE name = :id"), {"id": request.node_id}
            )
            if stopped and request.state is NodeState.LOST:
                gone = {"state": NodeState.GONE, "reason": f"its machine was stopped: {stopped}"}
                request = request.model_copy(update=gone)
                live.append(request.state.value)
            pool = await connection.scalar(
                text(_SET_STATE),
                {
                    "id": request.node_id, "epoch": request.epoch, "reason": request.reason,
                    "state": request.state.value, "from": live,
                },
            )  # fmt: skip
            if pool is None:
                return request
            await _end_leases(connection, request.node_id, request.epoch, request.reason)
            # Also where nothing ran: who waits may have its start there.
            first = await mark_poked_if_useful(connection, pool)
            await failpoint("end_node.before-commit")
        await failpoint("end_node.after-commit")
        await self._tell_lost_jobs(request.node_id, request.epoch, request.reason)
        # A retry cannot know whether the one before it got as far as the signal.
        if first or activity.info().attempt > 1:
            await self._signals.poke_pool(pool)
        return request

    async def _known_epoch(
        self, connection: AsyncConnection, registration: Registration
    ) -> int | None:
        return await connection.scalar(
            text(
                "SELECT epoch FROM nodes WHERE id = :id AND boot_id = :boot"
                " AND state IN ('READY', 'DRAINING') FOR UPDATE"
            ),
            {"id": registration.identity.node_id, "boot": registration.identity.boot_id},
        )

    async def _admit(self, connection: AsyncConnection, registration: Registration) -> int:
        identity, inventory = registration.identity, registration.inventory
        await _refuse_unknown_block(connection, identity.block_id)
        old = await connection.scalar(
            text("SELECT epoch FROM nodes WHERE id = :id FOR UPDATE"), {"id": identity.node_id}
        )
        kept = frozenset[int]()
        if old is not None:
            adopted, kept = await adoptable(connection, registration)
            why = _why_anew(registration)
            await _end_leases(connection, identity.node_id, old, why, but=adopted)
            await connection.execute(
                text("DELETE FROM gpus WHERE node_id = :id AND index <> ALL (:kept)"),
                {"id": identity.node_id, "kept": sorted(kept)},
            )
            # Another machine by the name of the old one does not have its disk.
            await connection.execute(
                text(
                    "DELETE FROM node_data d USING nodes n"
                    " WHERE d.node_id = :id AND n.id = d.node_id AND n.agent_id <> :agent"
                ),
                {"id": identity.node_id, "agent": identity.agent_id},
            )
        epoch = await connection.scalar(
            text(_ADMIT),
            {
                "id": identity.node_id, "pool": identity.pool, "block": identity.block_id,
                "provider": identity.provider, "tier": identity.tier.value,
                "agent": identity.agent_id, "boot": identity.boot_id,
                "hostname": inventory.hostname, "address": inventory.address,
                "version": inventory.agent_version, "protocol": registration.speaks,
                "simulated": inventory.simulated, "gpu_type": inventory.gpu_type,
                "container": inventory.container_runtime, "cpu": to_milli(inventory.cpus),
                "ram": to_mb(inventory.ram),
                "storage": or_none(to_mb, inventory.storage_bandwidth),
                "power": or_none(to_milli, inventory.power),
                "gpu_power": to_milli(max((gpu.power for gpu in inventory.gpus), default=0.0)),
                "labels": json.dumps(identity.labels),
                "expires_at": identity.expires_at, "conformance": inventory.conformance,
                "topology": inventory.topology and inventory.topology.model_dump_json(),
                "firmware": _firmware(inventory),
            },
        )  # fmt: skip
        # A machine may have gone on into another block, or its time be for sale, since it started.
        await end_as_bought(connection, identity.node_id)
        gpus = [gpu_row(identity.node_id, gpu) for gpu in inventory.gpus if gpu.index not in kept]
        if gpus:
            await connection.execute(text(_INSERT_GPUS), gpus)
        assert epoch is not None
        return epoch

    async def _tell_lost_jobs(
        self, node_id: str, epoch: int, reason: str, *, cut_off: bool = False, anew: bool = False
    ) -> None:
        """Signal every job whose placement ended with this registration; repeats do no harm."""
        async with self._database.transaction() as connection:
            jobs = await connection.execute(
                text(_JOBS_LOST_WITH),
                {"id": node_id, "epoch": epoch, "reason": LeaseEnd.NODE_LOST.value},
            )
            messages = [
                (
                    row.job_id,
                    NodeLost(
                        node_id=node_id, epoch=row.epoch, reason=reason, cut_off=cut_off, anew=anew
                    ),
                )
                for row in jobs
            ]
        await self._signals.tell_jobs("node_lost", messages)


async def _refuse_unknown_block(connection: AsyncConnection, block: str | None) -> None:
    found = await connection.scalar(text("SELECT id FROM blocks WHERE id = :id"), {"id": block})
    if block != found:
        raise NotFoundError(
            f"there is no block {block}: `longshore blocks --all` lists those that were bought. "
            "Leave out --block for a machine of your own."
        )


def _why_anew(registration: Registration) -> str:
    return "it was cut off from the server" if registration.cut_off else "its agent started anew"


def _firmware(inventory: Inventory) -> str | None:
    said = [each.model_dump() for each in inventory.firmware]
    return json.dumps(said) if said else None


async def _end_leases(
    connection: AsyncConnection,
    node_id: str,
    epoch: int,
    reason: str,
    but: Sequence[PlacementKey] = (),
) -> None:
    await connection.execute(
        text(
            "UPDATE placements SET ended_at = clock_timestamp(), end_reason = :end,"
            " end_message = :reason"
            " WHERE node_id = :id AND epoch <= :epoch AND ended_at IS NULL"
            " AND job_id <> ALL (:but)"  # of a job one attempt is live
        ),
        {
            "id": node_id, "epoch": epoch, "end": LeaseEnd.NODE_LOST.value,
            "reason": f"node {node_id}: {reason}", "but": [each.job_id for each in but],
        },
    )  # fmt: skip


_ADMIT = """
    INSERT INTO nodes (id, pool, block_id, provider, tier, state, state_reason, epoch, agent_id,
                       boot_id, hostname, address, agent_version, agent_protocol, simulated,
                       gpu_type, container_runtime, cpu_milli, ram_mb, storage_mb_s, milliwatts,
                       gpu_milliwatts, labels, topology, conformance, accepted, firmware,
                       expires_at)
    VALUES (:id, :pool, :block, :provider, :tier, 'READY', '', 1, :agent, :boot, :hostname,
            :address, :version, :protocol, :simulated, :gpu_type, :container, :cpu, :ram,
            :storage, :power, :gpu_power, CAST(:labels AS jsonb), CAST(:topology AS jsonb),
            :conformance, :conformance, CAST(:firmware AS jsonb),
            coalesce((SELECT ends_at FROM blocks WHERE id = :block), :expires_at))
    ON CONFLICT (id) DO UPDATE
       SET pool = excluded.pool, block_id = excluded.block_id, provider = excluded.provider,
           tier = excluded.tier,
           state = CASE WHEN nodes.drain_reason IS NULL THEN 'READY' ELSE 'DRAINING' END,
           state_reason = coalesce(nodes.drain_reason, ''),
           clearing = nodes.clearing AND nodes.drain_reason IS NOT NULL,
           state_since = clock_timestamp(), epoch = nodes.epoch + 1,
           agent_id = excluded.agent_id, boot_id = excluded.boot_id,
           hostname = excluded.hostname, address = excluded.address,
           agent_version = excluded.agent_version, agent_protocol = excluded.agent_protocol,
           simulated = excluded.simulated, gpu_type = excluded.gpu_type,
           container_runtime = excluded.container_runtime, cpu_milli = excluded.cpu_milli,
           ram_mb = excluded.ram_mb, storage_mb_s = excluded.storage_mb_s,
           milliwatts = excluded.milliwatts, gpu_milliwatts = excluded.gpu_milliwatts,
           labels = excluded.labels,
           topology = excluded.topology, conformance = excluded.conformance,
           accepted = coalesce(nodes.accepted, excluded.accepted),
           firmware = excluded.firmware,
           expires_at = CASE WHEN nodes.block_id IS NULL THEN excluded.expires_at
                             ELSE nodes.expires_at END,
           came_at = CASE WHEN excluded.block_id <> coalesce(nodes.block_id, '')
                          THEN clock_timestamp() ELSE nodes.came_at END,
           registered_at = clock_timestamp()
    RETURNING epoch
"""

_INSERT_GPUS = """
    INSERT INTO gpus (node_id, index, model, uuid, vram_mb, mig, mig_instances)
    VALUES (:node, :index, :model, :uuid, :vram, CAST(:mig AS jsonb), CAST(:instances AS jsonb))
"""

_SET_STATE = """
    UPDATE nodes SET state = :state, state_reason = :reason, state_since = clock_timestamp()
     WHERE id = :id AND epoch = :epoch AND state = ANY(:from)
    RETURNING pool
"""

_JOBS_LOST_WITH = """
    SELECT p.job_id, p.epoch FROM placements p JOIN jobs j ON j.id = p.job_id
     WHERE p.node_id = :id AND p.end_reason = :reason AND j.ended_at IS NULL
       AND (p.epoch = :epoch
            OR p.epoch < :epoch AND jsonb_typeof(j.spec -> 'engine') = 'object')
       AND NOT EXISTS (SELECT FROM placements later
                        WHERE later.job_id = p.job_id AND later.attempt > p.attempt)
     ORDER BY p.job_id, p.attempt
"""
"""Of an engine that was adopted once, under the epoch that it began in. A job that has begun anew
since knows of the loss: of the same registration it would take it for one of what runs now."""
