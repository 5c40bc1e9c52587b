"""The cloud's pods: they come up, run by the minute, and end; the wallet pays."""

import random
from dataclasses import dataclass
from typing import Any

from longshore.models.money import MICRO
from longshore.simulation.market.background import Profile
from longshore.simulation.market.faults import PRIME
from longshore.simulation.market.ledger import Ledger
from longshore.simulation.market.offers import Offers, Row
from longshore.simulation.market.world import World

_MINUTE = 60
_OVER = ("TERMINATED",)
_GOING = "DELETING"


class EmptyWalletError(Exception):
    """The wallet does not hold the first hour, or what is prepaid."""


@dataclass
class Pod:
    """`rate` is micro-dollars an hour for all of it."""

    id: str
    name: str
    row: Row
    rate: int
    created_at: float
    wanted: dict[str, Any]
    """The `pod` of the request."""
    script: str | None
    wallet: Ledger
    """Who pays for it."""
    team: str | None = None
    """Whose it is, where it is not the user's own."""
    status: str = "PROVISIONING"
    installation: str = "PENDING"
    failure: str | None = None
    ssh: bool = False
    updated_at: float = 0.0
    active_at: float | None = None
    terminated_at: float | None = None
    minutes: int = 0
    """That it was billed for."""
    billed: int = 0
    """Micro-dollars."""

    @property
    def over(self) -> bool:
        return self.status in _OVER

    @property
    def machines(self) -> tuple[str, ...]:
        """The names of its machines: its own, or of a cluster one for each."""
        if self.row.nodes == 1:
            return (self.id,)
        return tuple(f"{self.id}-{number}" for number in range(1, self.row.nodes + 1))

    def state(self) -> dict[str, Any]:
        """Return what the control API shows."""
        return {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "installation": self.installation,
            "hardware": self.row.hardware,
            "machines": list(self.machines),
            "spot": self.row.spot,
            "rate": self.rate,
            "minutes": self.minutes,
            "billed": self.billed,
        }


class Cloud:
    """Offers, pods and wallets. Nothing here is idempotent: two requests make two pods."""

    def __init__(self, world: World, balance: int, profile: Profile, steady: bool = False) -> None:
        """`balance` is what a wallet begins with, in micro-dollars."""
        self._world = world
        self._balance = balance
        self._wallets: dict[str | None, Ledger] = {}
        self.offers = Offers(world, profile, steady)
        self.pods: dict[str, Pod] = {}
        """Every pod, also those that have ended."""
        world.faults.does_at_once("spot_lost", self._lose_one)
        world.faults.does_at_once("pod_stopped", self._stop_one)

    def living(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if not pod.over]

    @property
    def wallet(self) -> Ledger:
        """The user's own."""
        return self.wallet_of(None)

    def wallet_of(self, team: str | None) -> Ledger:
        """Return a team's wallet, or without one the user's own. The user is in every team."""
        if team not in self._wallets:
            wallet = self._wallets[team] = Ledger()
            wallet.move("credit_grant", self._balance, "simulated money", self._world.clock.now)
        return self._wallets[team]

    def create(
        self,
        row: Row,
        wanted: dict[str, Any],
        *,
        disk: int | None,
        script: str | None,
        team: str | None = None,
    ) -> Pod:
        """Start a pod. Raises EmptyWalletError when the wallet is short."""
        rate = row.usd_per_hour((disk or row.default_disk) - row.default_disk)
        prepaid = wanted.get("prepaidForHr") or row.seller.prepaid_hours or 0
        wallet = self.wallet_of(team)
        if wallet.available < max(round(rate * prepaid), rate):
            raise EmptyWalletError
        if self._world.faults.take("price_above", PRIME):
            rate *= 2
        now = self._world.clock.now
        pod_id = self._world.new_id("pod")
        pod = Pod(
            pod_id, wanted.get("name") or pod_id, row, rate, now, wanted, script, wallet, team,
            updated_at=now,
        )  # fmt: skip
        self.pods[pod.id] = pod
        self._plan(pod)
        if prepaid:
            self._bill(pod, round(prepaid * 60))
        self._say(pod)
        return pod

    def delete(self, pod: Pod) -> None:
        """End a pod at once."""
        if pod.over:
            return
        ran = pod.ssh
        self._become(pod, "TERMINATED")
        pod.installation = "TERMINATED"
        pod.terminated_at = self._world.clock.now
        if self._world.faults.take("late_bill", PRIME):
            self._world.clock.after(1, lambda: self._bill(pod, 1))
        if ran:
            notice = self._world.faults.take("notice", PRIME)
            for machine in pod.machines:
                self._world.machines.end(machine, notice=notice)

    def take(self, pod: Pod) -> None:
        """Take a pod away, as the market does with spot: announced where a knob says so."""
        notice = self._world.knobs.spot_notice_seconds
        if not notice:
            self.delete(pod)
            return
        self._become(pod, _GOING)
        self._world.clock.after(notice, lambda: self.delete(pod))

    def _plan(self, pod: Pod) -> None:
        """Decide by the seed how it will go, so that one pod more changes no other."""
        chance = random.Random(f"{self._world.seed}/{len(self.pods)}/{pod.row.cloud_id}")
        knobs, faults = self._world.knobs, self._world.faults
        drawn = chance.uniform(60, 600)
        whole = drawn if knobs.pod_start_seconds is None else knobs.pod_start_seconds
        fate = chance.random()
        fails = faults.take("pod_error", PRIME) or fate < knobs.pod_trouble
        silent = faults.take("pod_without_ssh", PRIME) or fate > 1 - knobs.pod_trouble
        after = self._world.clock.after
        after(whole * 0.2, lambda: self._step(pod, "PENDING"))
        if fails:
            after(whole * 0.5, lambda: self._fail(pod))
            return
        after(whole * 0.6, lambda: self._activate(pod))
        after(whole, lambda: self._finish(pod, silent=silent))
        if pod.row.spot:
            self._risk(pod, chance)

    def _step(self, pod: Pod, status: str) -> None:
        if not pod.over and pod.status != "ERROR":
            self._become(pod, status)

    def _fail(self, pod: Pod) -> None:
        if pod.over:
            return
        pod.installation = "ERROR"
        pod.failure = "simulated: the provider could not start it"
        self._become(pod, "ERROR")

    def _activate(self, pod: Pod) -> None:
        if pod.over:
            return
        pod.installation = "ACTIVE"
        pod.active_at = self._world.clock.now
        self._become(pod, "ACTIVE")
        self._world.clock.after(_MINUTE, lambda: self._minute(pod))

    def _finish(self, pod: Pod, *, silent: bool) -> None:
        if pod.over or pod.status == _GOING:
            return
        pod.installation = "FINISHED"
        pod.updated_at = self._world.clock.now
        if silent:
            return
        pod.ssh = True
        for machine in pod.machines:
            script = None if self._world.faults.take("machine_silent", PRIME) else pod.script
            self._world.machines.start(machine, script, pod.row.hardware)

    def _minute(self, pod: Pod) -> None:
        if pod.over:
            return
        began = pod.active_at or self._world.clock.now
        run = round((self._world.clock.now - began) / _MINUTE)
        if run > pod.minutes:
            self._bill(pod, run - pod.minutes)
        if pod.wallet.balance <= 0:
            self._world.say("simulated wallet is empty: all of its pods are deleted")
            for each in self.living():
                if each.wallet is pod.wallet:
                    self.delete(each)
            return
        self._world.clock.after(_MINUTE, lambda: self._minute(pod))

    def _bill(self, pod: Pod, minutes: int) -> None:
        """Charge minutes so that the sum is exact: nothing is lost by rounding each."""
        pod.minutes += minutes
        due = pod.rate * pod.minutes // 60 - pod.billed
        pod.billed += due
        pod.wallet.move("pod", -due, pod.id, self._world.clock.now)

    def _risk(self, pod: Pod, chance: random.Random) -> None:
        def hour() -> None:
            if pod.over:
                return
            if pod.status == "ACTIVE" and chance.random() < self._world.knobs.spot_loss_per_hour:
                self.take(pod)
                return
            self._world.clock.after(3600, hour)

        self._world.clock.after(3600, hour)

    def _lose_one(self) -> None:
        running = [pod for pod in self.living() if pod.status == "ACTIVE"]
        for pod in sorted(running, key=lambda each: not each.row.spot)[:1]:
            self.take(pod)

    def _stop_one(self) -> None:
        running = (pod for pod in self.living() if pod.status == "ACTIVE" and pod.ssh)
        if (pod := next(running, None)) is None:
            return
        pod.ssh = False
        self._become(pod, "STOPPED")
        for machine in pod.machines:
            self._world.machines.end(machine, notice=False)

    def _become(self, pod: Pod, status: str) -> None:
        pod.status = status
        pod.updated_at = self._world.clock.now
        self._say(pod)

    def _say(self, pod: Pod) -> None:
        several = f"{pod.row.nodes} x " if pod.row.nodes > 1 else ""
        self._world.say(
            f"simulated pod {pod.name} ({pod.id}): {pod.status}, {several}{pod.row.hardware} at "
            f"${pod.rate / MICRO:.2f} an hour"
        )
