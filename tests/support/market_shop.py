"""Short ways to buy at a simulated market over plain HTTP, as any client could."""

import base64
from typing import Any

import httpx

from tests.support.market import Json, RunningMarket

V2 = "/preview/v2"
V1 = "/api/v1"
SKU = "isku_h100a"
HOUR = 3600


class Shop:
    """A pool at the exchange, and requests that are in order unless a test changes them."""

    def __init__(self, market: RunningMarket) -> None:
        self.market = market
        self.http = market.http
        self.start = int(market.now) // 60 * 60 + 60

    def make_pool(self, name: str = "train") -> str:
        body = {"workspace": "wksp_simulated", "name": name}
        return ok(self.http.post(f"{V2}/pools", json=body))["id"]

    def order_body(self, pool: str, **changes: Any) -> dict[str, Any]:
        """Return an order for 2 nodes for 4 hours at $2.10 a GPU-hour."""
        window = {"start_at": self.start, "end_at": self.start + 4 * HOUR, "node_count": 2}
        return {
            "pool": pool,
            "side": "buy",
            "instance_sku": SKU,
            "allocation_schedule_delta": [window],
            "limit_price_dollars_per_node_hour": "16.800000",
            "allow_standing": False,
            "allow_partial": False,
            **changes,
        }

    def place(self, pool: str, key: str | None = None, **changes: Any) -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        body = self.order_body(pool, **changes)
        return self.http.post(f"{V2}/orders", json=body, headers=headers)

    def order(self, order_id: str) -> Json:
        return ok(self.http.get(f"{V2}/orders/{order_id}"))

    def buy(self, pool: str, **changes: Any) -> Json:
        """Return an order after it has settled."""
        return self.order(ok(self.place(pool, **changes))["id"])

    def ask(self, dollars: str = "2.00", nodes: int = 4, **others: Any) -> None:
        order = {"side": "sell", "dollars_per_gpu_hour": dollars, "nodes": nodes, **others}
        self.market.book(order)

    def start_instance(self, pool: str, **others: Any) -> httpx.Response:
        body = {"pool": pool, "image": "image_ubuntu2204", "instance_sku": SKU, **others}
        return self.http.post(f"{V2}/instances", json=body)

    def instance(self, instance_id: str) -> Json:
        return ok(self.http.get(f"{V2}/instances/{instance_id}"))

    def rows(self, **query: Any) -> list[Json]:
        """Return the offers that can be had, of all pages."""
        found: list[Json] = []
        for page in (1, 2, 3):
            asked = {**query, "page": page}
            found += ok(self.http.get(f"{V1}/availability/gpus", params=asked))["items"]
        return [row for row in found if row["stockStatus"] != "Unavailable"]

    def pod_body(self, row: Json, **changes: Any) -> dict[str, Any]:
        pod = {
            "name": "job-1",
            "cloudId": row["cloudId"],
            "gpuType": row["gpuType"],
            "socket": row["socket"],
            "gpuCount": row["gpuCount"],
            "dataCenterId": row["dataCenter"],
            "maxPrice": 500.0,
            **changes,
        }
        return {"pod": pod, "provider": {"type": row["provider"]}}

    def rent(self, row: Json, **changes: Any) -> httpx.Response:
        return self.http.post(f"{V1}/pods/", json=self.pod_body(row, **changes))

    def pod(self, pod_id: str) -> Json:
        return ok(self.http.get(f"{V1}/pods/{pod_id}"))


def ok(answer: httpx.Response) -> Json:
    """Return the JSON of a success."""
    assert answer.is_success, (answer.status_code, answer.text)
    return answer.json() if answer.content else None


def encoded(script: str) -> str:
    return base64.b64encode(script.encode()).decode()
