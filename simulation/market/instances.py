"""Pools that hold bought time, and the instances that use it."""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from longshore.simulation.market.catalogue import SKU
from longshore.simulation.market.faults import SFCOMPUTE
from longshore.simulation.market.schedule import Schedule
from longshore.simulation.market.world import World

PRIORITIES = ("yield", "normal", "preferred", "critical")
_OVER = ("terminated", "failed")


class OverPoolError(Exception):
    """More instances are wanted than the pool ever has nodes."""


@dataclass
class Pool:
    id: str
    name: str
    workspace: str
    created_at: float
    tags: dict[str, str] = field(default_factory=dict[str, str])
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    """Bought time by SKU, the past too."""

    def of(self, sku: str) -> Schedule:
        return self.schedules.get(sku, Schedule())


@dataclass
class Instance:
    id: str
    name: str
    pool: Pool
    sku: SKU
    image: str
    priority: str
    created_at: float
    options: dict[str, Any]
    """What else it was made with, and what an answer repeats."""
    user_data: str | None = None
    """Base64."""
    infiniband: bool = False
    """It was asked for with it."""
    status: str = "awaiting_allocation"
    allocated: bool = False
    """It has a node: it runs, or is about to."""
    silent: bool = False
    updated_at: float = 0.0

    @property
    def over(self) -> bool:
        return self.status in _OVER


class Instances:
    """Pools and their instances."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.pools: dict[str, Pool] = {}
        self.by_id: dict[str, Instance] = {}
        world.faults.does_at_once("machine_falls_silent", self._silence_one)

    def make_pool(self, name: str | None, workspace: str, tags: dict[str, str]) -> Pool:
        pool_id = self._world.new_id("pool")
        pool = Pool(pool_id, name or pool_id, workspace, self._world.clock.now, tags)
        self.pools[pool.id] = pool
        return pool

    def gain(self, pool: Pool, sku: str, schedule: Schedule) -> None:
        """Add bought time."""
        self._change(pool, sku, pool.of(sku).plus(schedule))

    def lose(self, pool: Pool, sku: str, schedule: Schedule) -> None:
        """Take sold time away. Raises ValueError when it is not there."""
        self._change(pool, sku, pool.of(sku).minus(schedule))

    def create(
        self,
        pool: Pool,
        sku: SKU,
        *,
        image: str,
        name: str | None = None,
        user_data: str | None = None,
        priority: str = "normal",
        options: dict[str, Any] | None = None,
        infiniband: bool = False,
    ) -> Instance:
        """Add an instance; it gets a node as soon as the pool has one to spare.

        Raises OverPoolError when there are as many instances as the pool will ever have nodes.
        """
        future = pool.of(sku.id).from_minute(self._world.clock.minute)
        if len(list(self.alive(pool, sku.id))) >= future.most:
            raise OverPoolError
        now = self._world.clock.now
        instance_id = self._world.new_id("inst")
        instance = Instance(
            instance_id, name or instance_id, pool, sku, image, priority, now, options or {},
            user_data, infiniband, updated_at=now,
        )  # fmt: skip
        self.by_id[instance.id] = instance
        self._allocate(pool, sku.id)
        return instance

    def alive(self, pool: Pool, sku: str | None = None) -> Iterator[Instance]:
        """Yield instances that have not ended, of one SKU or of all."""
        for instance in self.by_id.values():
            if instance.pool is pool and not instance.over and sku in (None, instance.sku.id):
                yield instance

    def terminate(self, instance: Instance) -> None:
        """End an instance; its node is free for another. No money comes back."""
        self._end(instance, "terminated")
        self._allocate(instance.pool, instance.sku.id)

    def replace(self, old: Instance) -> Instance:
        """End an instance and start a new one like it on the same node.

        Raises OverPoolError, and leaves it as it is, when its pool has no time left.
        """
        if not old.pool.of(old.sku.id).from_minute(self._world.clock.minute):
            raise OverPoolError
        self._end(old, "terminated")
        return self.create(
            old.pool, old.sku, image=old.image, user_data=old.user_data, priority=old.priority,
            options=old.options, infiniband=old.infiniband,
        )  # fmt: skip

    def _change(self, pool: Pool, sku: str, schedule: Schedule) -> None:
        pool.schedules[sku] = schedule
        for start, end, _ in schedule.from_minute(self._world.clock.minute):
            for edge in (start, end):
                self._world.clock.at(edge * 60, lambda: self._allocate(pool, sku))
        self._allocate(pool, sku)

    def _allocate(self, pool: Pool, sku: str) -> None:
        """Give and take nodes so that as many are in use as the pool has now."""
        nodes = pool.of(sku).at(self._world.clock.minute)
        ranked = sorted(self.alive(pool, sku), key=_importance)
        holders = [each for each in ranked if each.allocated]
        for instance in holders[nodes:]:
            self._end(instance, "terminated")
        waiting = [each for each in ranked if not each.allocated]
        for instance in waiting[: max(nodes - len(holders), 0)]:
            instance.allocated = True
            delay = self._world.knobs.instance_start_seconds
            self._world.clock.after(delay, lambda each=instance: self._start(each))

    def _start(self, instance: Instance) -> None:
        if instance.over:
            return
        if self._world.faults.take("instance_failed", SFCOMPUTE):
            self._end(instance, "failed")
            self._allocate(instance.pool, instance.sku.id)
            return
        self._become(instance, "running")
        instance.silent = self._world.faults.take("machine_silent", SFCOMPUTE)
        script = None if instance.silent else decode_script(instance.user_data)
        self._world.machines.start(instance.id, script, instance.sku.hardware)

    def _silence_one(self) -> None:
        running = (i for i in self.by_id.values() if i.status == "running" and not i.silent)
        if (instance := next(running, None)) is not None:
            instance.silent = True
            self._world.machines.end(instance.id, notice=False)

    def _end(self, instance: Instance, status: str) -> None:
        if instance.over:
            return
        ran = instance.status == "running"
        instance.allocated = False
        self._become(instance, status)
        if ran:
            notice = self._world.faults.take("notice", SFCOMPUTE)
            self._world.machines.end(instance.id, notice=notice)

    def _become(self, instance: Instance, status: str) -> None:
        instance.status = status
        instance.updated_at = self._world.clock.now
        self._world.say(f"simulated instance {instance.name} ({instance.id}): {status}")


def decode_script(text: str | None) -> str | None:
    """Return a start-up script from base64; None when there is none, or it is no text."""
    try:
        return base64.b64decode(text or "", validate=True).decode() or None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _importance(instance: Instance) -> tuple[int, float, str]:
    """More important first; among equals who holds a node keeps it, then the older."""
    return (-PRIORITIES.index(instance.priority), not instance.allocated, instance.id)
