"""What is found by looking around at San Francisco Compute: SKUs, pools, workspace, image."""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from longshore.activities.providers import sfcompute_reading as reading
from longshore.activities.providers import sfcompute_units as units
from longshore.activities.providers.creation_lookup import Creations
from longshore.activities.providers.http import MarketHTTP, Params, in_path
from longshore.activities.providers.sfcompute_shapes import (
    Image,
    Instance,
    Listed,
    Named,
    Page,
    Pool,
    Sku,
)
from longshore.models.errors import (
    AnswerError,
    GoneError,
    InvalidOrderError,
    MarketAwayError,
    OrderConflictError,
)
from longshore.models.market import InstanceType, Window

_SKUS_HOLD = 300.0
"""Seconds that the list of SKUs is kept: it changes when hardware is added."""
_PAGE = 200
_PUBLIC_IMAGES = "sfc:workspace:sfcompute:public"
_OVER = ("terminated", "failed")
_FIREWALL = re.compile(r"frwl_[0-9a-zA-Z_-]{1,21}|sfc:firewall(:[a-zA-Z0-9._-]+){3}")
T = TypeVar("T", bound=Listed)
_log = logging.getLogger(__name__)


class Places:
    """Reads and keeps the things that orders and instances refer to."""

    def __init__(
        self,
        http: MarketHTTP,
        prefix: str,
        workspace: str | None,
        image: str | None,
        firewall: str | None = None,
    ) -> None:
        self._http = http
        self._prefix = prefix
        self._workspace = workspace
        self._image = image
        self._image_is_there = False
        self._firewall = firewall
        self._skus: tuple[Sku, ...] = ()
        self._skus_until = 0.0
        self._pools = Creations(http, self._pool_named, self._pool)

    async def skus(self) -> tuple[Sku, ...]:
        """Return every SKU on the market."""
        if time.monotonic() >= self._skus_until:
            found, _ = await self.all(f"{self._prefix}/instance_skus", Page[Sku])
            self._skus, self._skus_until = tuple(found), time.monotonic() + _SKUS_HOLD
            for sku in found:
                if sku.audience_hint:
                    _log.info(
                        "%s: nothing is bought of %s, which is not for everybody: %s",
                        self._http.provider, sku.name, sku.audience_hint,
                    )  # fmt: skip
        return self._skus

    async def skus_for_all(self) -> list[Sku]:
        """Return the SKUs that anybody may order; an order of another may be refused."""
        return [sku for sku in await self.skus() if not sku.audience_hint]

    async def skus_of(self, wanted: InstanceType, *, held: bool = False) -> list[Sku]:
        """Return the SKUs of a type that anybody may order, by id; with `held` all of the type,
        since a pool may hold time of any."""
        found = [
            sku
            for sku in (await self.skus() if held else await self.skus_for_all())
            if (kind := reading.instance_type(sku)) and wanted.takes(kind)
        ]
        return sorted(found, key=lambda sku: sku.id)

    async def sku(self, sku_id: str) -> Sku | None:
        """Return one SKU; None when it is not on the market (any more)."""
        return next((sku for sku in await self.skus() if sku.id == sku_id), None)

    async def by_held(self, skus: list[Sku], pool_id: str, window: Window) -> list[Sku]:
        """Return the SKUs ordered by how many nodes of each a pool has throughout a window."""
        schedules = (await self._pool(pool_id)).allocation_schedule.by_instance_sku
        return sorted(
            skus,
            key=lambda sku: -units.nodes_throughout(schedules.get(sku.id, ()), window),
        )

    async def sku_held(self, pool_id: str, wanted: InstanceType, place: str | None = None) -> Sku:
        """Return the SKU that is a place; without one, that of a type on which a pool has most
        nodes without an instance."""
        if place is not None and (known := await self.sku(place)) is not None:
            return known
        skus = await self.skus_of(wanted, held=True)
        if not skus:
            raise InvalidOrderError(self._http.provider, f"it does not trade {wanted}")
        if len(skus) == 1:
            return skus[0]
        schedules = (await self._pool(pool_id)).allocation_schedule.by_instance_sku
        shapes, _ = await self.all(f"{self._prefix}/instances", Page[Instance], {"pool": pool_id})
        taken = [shape.instance_sku.id for shape in shapes if shape.status not in _OVER]

        def free(sku: Sku) -> int:
            spans = units.spans(schedules.get(sku.id, ()))
            first = spans[0].nodes if spans else 0
            return first - taken.count(sku.id)

        return max(skus, key=free)

    async def make_pool(self, name: str) -> Pool:
        """Return the pool of that name, made if need be."""
        if (known := await self._pools.known(name)) is not None:
            return known
        body = {"workspace": await self._home(), "name": name}
        try:
            pool = (await self._http.create(f"{self._prefix}/pools", body)).read(Pool)
        except (MarketAwayError, InvalidOrderError, OrderConflictError) as error:
            return await self._pools.after(name, error)
        self._pools.made(name, pool.id)
        return pool

    async def image(self) -> str:
        """Return the image of new instances: the setting, else the account's first, else a
        public one. Raises InvalidOrderError where there is none."""
        if self._image is not None and not self._image_is_there:
            await self._look_for_image(self._image)
        if self._image is None:
            for params in (self.scope(), {"workspace": _PUBLIC_IMAGES}):
                found, _ = await self.all(f"{self._prefix}/images", Page[Image], params)
                usable = [image for image in found if image.upload_status == "completed"]
                if usable:
                    self._image, self._image_is_there = usable[0].id, True
                    return usable[0].id
            raise InvalidOrderError(
                self._http.provider, "it has no image to start from: set LONGSHORE_SFCOMPUTE_IMAGE"
            )
        return self._image

    async def _look_for_image(self, image: str) -> None:
        try:
            answer = await self._http.get(f"{self._prefix}/images/{in_path(image)}")
            state = answer.read(Image).upload_status
        except GoneError:
            state = "not there"
        if state != "completed":
            raise InvalidOrderError(
                self._http.provider, f"the image {image} of LONGSHORE_SFCOMPUTE_IMAGE is {state}"
            )
        self._image_is_there = True

    async def firewall(self, pool_id: str) -> str:
        """Return the firewall of public addresses: the setting, else the default one of the
        workspace that a pool is in. Raises InvalidOrderError where neither is known."""
        if self._firewall is not None:
            return self._firewall
        pool = await self._pool(pool_id)
        if not pool.owner or not pool.workspace:
            raise InvalidOrderError(
                self._http.provider,
                f"it does not say in which workspace pool {pool_id} is: set "
                "LONGSHORE_SFCOMPUTE_FIREWALL",
            )
        return f"sfc:firewall:{pool.owner}:{pool.workspace}:default"

    def check_firewall(self) -> None:
        """Raise InvalidOrderError where the setting is no id and no path of a firewall."""
        if self._firewall is not None and not _FIREWALL.fullmatch(self._firewall):
            raise InvalidOrderError(
                self._http.provider,
                f"{self._firewall!r} of LONGSHORE_SFCOMPUTE_FIREWALL is neither the id of a "
                "firewall (frwl_...) nor its path (sfc:firewall:ACCOUNT:WORKSPACE:NAME)",
            )

    def scope(self, params: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return query parameters within the workspace of the settings, or without one."""
        scoped = {"workspace": self._workspace} if self._workspace else {}
        return {**scoped, **(params or {})}

    async def all(
        self, path: str, page: type[Page[T]], params: Params | None = None
    ) -> tuple[list[T], bool]:
        """Return the items of all pages, each once, and whether a simulated market gave them.

        Raises AnswerError when the pages have no end: more without a cursor, or one twice.
        """
        items: dict[str, T] = {}
        seen: set[str] = set()
        query: dict[str, str | int | Sequence[str]] = {**(params or {}), "limit": _PAGE}
        while True:
            answer = await self._http.get(path, query)
            found = answer.read(page)
            items |= {item.id: item for item in found.data if item.id not in items}
            if not found.has_more:
                return list(items.values()), answer.simulated
            if not found.cursor or found.cursor in seen:
                what = "a cursor twice" if found.cursor else "more pages and no cursor"
                raise AnswerError(self._http.provider, f"its list at {path} gives {what}")
            seen.add(found.cursor)
            query["starting_after"] = found.cursor

    async def _pool(self, pool_id: str) -> Pool:
        return (await self._http.get(f"{self._prefix}/pools/{in_path(pool_id)}")).read(Pool)

    async def _pool_named(self, name: str) -> Pool | None:
        pools, _ = await self.all(f"{self._prefix}/pools", Page[Pool], self.scope())
        return next((pool for pool in pools if pool.name == name and pool.kind == "market"), None)

    async def _home(self) -> str:
        """Return the workspace for new pools: the setting, else the account's only one."""
        if self._workspace is None:
            # This list takes neither a limit nor a cursor.
            page = (await self._http.get(f"{self._prefix}/workspaces")).read(Page[Named])
            found = page.data
            if len(found) != 1 or page.has_more:
                names = ", ".join(place.name or place.id for place in found) or "none"
                count = f"more than {len(found)}" if page.has_more else len(found)
                raise InvalidOrderError(
                    self._http.provider,
                    f"the account has {count} workspaces ({names}): say which one in "
                    "LONGSHORE_SFCOMPUTE_WORKSPACE",
                )
            return found[0].id
        return self._workspace
