"""The switchboard of faults: what can go wrong at will, so that clients can be tried.

A fault is set so many times; each time it happens it counts down. The same names work for both
APIs where `providers` says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

SFCOMPUTE = "sfcompute"
PRIME = "prime"
BOTH = (SFCOMPUTE, PRIME)


@dataclass(frozen=True)
class Fault:
    name: str
    providers: tuple[str, ...]
    route: str
    """Where it shows; `any` takes a route with it when it is set, such as `POST /orders`."""
    sentence: str


_ANY = "any"
_LISTS = "GET lists"

FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("slow", BOTH, _ANY, "The answer takes `slow_seconds` (a knob) longer."),
        Fault("dropped", BOTH, _ANY, "The request is carried out; the connection ends without "
              "its answer."),
        Fault("malformed_json", BOTH, _ANY, "The answer is cut in the middle of its JSON."),
        Fault("rate_limited", BOTH, _ANY, "429 with Retry-After: 1; nothing is done."),
        Fault("unavailable", BOTH, _ANY, "503; nothing is done."),
        Fault("server_error", BOTH, _ANY, "500; nothing is done."),
        Fault("unauthorized", BOTH, _ANY, "401, as if the token had been withdrawn."),
        Fault("forbidden", BOTH, _ANY, "403, as a token without the right role gets."),
        Fault("funds", BOTH, "POST /orders, POST /pods/", "402: the balance is too low."),
        Fault("list_lag", BOTH, _LISTS, "What was created in the last minute is missing from one "
              "list."),
        Fault("unknown_status", BOTH, "GET one or a list", "An order, instance or pod has a "
              "status that nobody has heard of."),
        Fault("notice", BOTH, "machines", "A machine that ends is asked to stop (SIGTERM) first, "
              "and switched off some seconds later."),
        Fault("machine_silent", BOTH, "machines", "A machine comes up, and nothing on it ever "
              "answers: no SSH, no agent."),
        Fault("bare_error", (SFCOMPUTE,), _ANY, "A 503 whose body lacks the wrapper `error`."),
        Fault("old_error", (SFCOMPUTE,), _ANY, "An error of 2025's shape: the trading engine is "
              "halted (503)."),
        Fault("order_invalid", (SFCOMPUTE,), "POST /orders", "422 with details about a field "
              "that is in order."),
        Fault("order_rejected", (SFCOMPUTE,), "orders", "An order ends as rejected."),
        Fault("order_unfilled", (SFCOMPUTE,), "orders", "An order finds nobody, whatever is on "
              "the book."),
        Fault("order_partial", (SFCOMPUTE,), "orders", "An order with allow_partial gets half of "
              "its nodes at most."),
        Fault("cancel_race", (SFCOMPUTE,), "DELETE /orders/{id}", "After the 204 a last fill "
              "arrives: half of what is left, or all of an order that takes no part."),
        Fault("cursor_missing", (SFCOMPUTE,), _LISTS, "has_more is true and there is no cursor."),
        Fault("cursor_repeated", (SFCOMPUTE,), _LISTS, "has_more is true and the cursor leads to "
              "the same page."),
        Fault("machine_falls_silent", (SFCOMPUTE,), "instances", "A running machine loses all of "
              "its processes; its instance runs on."),
        Fault("maintenance", (SFCOMPUTE,), "POST /order_preview", "The preview tells of a "
              "maintenance window."),
        Fault("instance_failed", (SFCOMPUTE,), "instances", "An instance fails as it starts."),
        Fault("price_spike", BOTH, "the market", "Prices of strangers jump at once."),
        Fault("empty_availability", (PRIME,), "GET /availability/*", "200 with no rows."),
        Fault("stale_offer", (PRIME,), "POST /pods/", "400: the row has gone since it was "
              "listed."),
        Fault("seller_refuses", (PRIME,), "POST /pods/", "400: the seller does not take the "
              "image, whatever its rows say: each seller, or the one that is set with it."),
        Fault("pod_cap", (PRIME,), "POST /pods/", "400: too many running instances."),
        Fault("fastapi_error", (PRIME,), "POST /pods/", "422 in the form `detail[{loc, msg}]`."),
        Fault("pod_error", (PRIME,), "pods", "A pod ends in ERROR as it starts."),
        Fault("pod_without_ssh", (PRIME,), "pods", "A pod is ACTIVE, and its sshConnection stays "
              "null."),
        Fault("spot_lost", (PRIME,), "pods", "A running pod, spot first, is taken away: at once, "
              "or after `spot_notice_seconds` (a knob) as DELETING."),
        Fault("pod_stopped", (PRIME,), "pods", "A running pod is STOPPED: its machine is off, and "
              "it is billed until it is deleted."),
        Fault("delete_error", (PRIME,), "DELETE /pods/{id}", "500; the pod stays."),
        Fault("delete_late", (PRIME,), "DELETE /pods/{id}", "200; the pod stays as it is, billed, "
              "for ten seconds more."),
        Fault("price_above", (PRIME,), "pods", "A pod costs twice what its row said, whatever "
              "its maxPrice."),
        Fault("late_bill", (PRIME,), "pods", "A pod that has ended is billed a minute more, a "
              "second later."),
    )
}  # fmt: skip
FOREVER = -1


@dataclass
class Armed:
    fault: Fault
    times: int
    """How often it will still happen; FOREVER until it is cleared."""
    provider: str | None = None
    """Where both have it: this one alone."""
    route: str | None = None
    """Method and path after the API's prefix, such as ``POST /orders``: there alone."""
    seller: str | None = None
    """Where a fault is of a seller: of this one alone."""


class Faults:
    """Which faults are set, and how often they will still happen."""

    def __init__(self) -> None:
        self._armed: dict[str, Armed] = {}
        self._at_once: dict[str, Callable[[], object]] = {}
        self.happened: dict[str, int] = {}

    @property
    def armed(self) -> tuple[Armed, ...]:
        return tuple(self._armed.values())

    def does_at_once(self, name: str, do: Callable[[], object]) -> None:
        """Have `do` called for every time that `name` is set, in place of waiting for it."""
        self._at_once[name] = do

    def set(
        self,
        name: str,
        times: int = 1,
        *,
        provider: str | None = None,
        route: str | None = None,
        seller: str | None = None,
    ) -> None:
        """Let a fault happen the next `times` times. Raises KeyError for an unknown name."""
        fault = FAULTS[name]
        if name in self._at_once:
            for _ in range(max(times, 1)):
                self._count(name)
                self._at_once[name]()
            return
        if times == 0:
            self._armed.pop(name, None)
            return
        self._armed[name] = Armed(fault, times, provider, route, seller)

    def clear(self) -> None:
        self._armed.clear()

    def take(
        self, name: str, provider: str, route: str | None = None, *, seller: str | None = None
    ) -> bool:
        """Return whether a fault happens now; it is counted down when it does.

        `route` is method and path; without, a fault that was set for one route does not happen.
        The same holds for `seller`.
        """
        armed = self._armed.get(name)
        if armed is None or provider not in armed.fault.providers:
            return False
        if armed.provider not in (None, provider) or armed.route not in (None, route):
            return False
        if armed.seller not in (None, seller):
            return False
        self._count(name)
        if armed.times != FOREVER:
            armed.times -= 1
        if armed.times == 0:
            del self._armed[name]
        return True

    def _count(self, name: str) -> None:
        self.happened[name] = self.happened.get(name, 0) + 1
