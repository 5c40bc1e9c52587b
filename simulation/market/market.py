"""The whole simulated market: an exchange of node time, and a cloud of pods, with one clock."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from longshore.models.money import MICRO
from longshore.simulation.market.background import Background, Profile
from longshore.simulation.market.catalogue import SKU, SKUS
from longshore.simulation.market.clock import Clock
from longshore.simulation.market.exchange import Exchange
from longshore.simulation.market.instances import Instances
from longshore.simulation.market.ledger import Ledger
from longshore.simulation.market.pods import Cloud
from longshore.simulation.market.world import Knobs, MachineRoom, NoMachines, World

WORKSPACE = "wksp_simulated"
ACCOUNT = "acct_simulated"


@dataclass(frozen=True)
class Options:
    """How a market begins."""

    seed: int = 1
    profile: Profile = Profile.CALM
    speed: float = 1.0
    """Market seconds in a real second; 0 stands still."""
    balance: int = 10_000 * MICRO
    """Micro-dollars at each of the two providers."""
    start: float | None = None
    """Seconds since 1970; now when left out."""
    run: str | None = None
    """Part of every id; from the time of day when left out."""
    steady: bool = False
    """Whether the cloud's offers stay what they were when the market opened."""
    skus: Sequence[SKU] = SKUS
    knobs: Knobs = field(default_factory=Knobs)


class Market:
    """Everything there is, behind no HTTP."""

    def __init__(
        self,
        options: Options | None = None,
        machines: MachineRoom | None = None,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.options = options = options or Options()
        self.opened = start = options.start if options.start is not None else time.time()
        run = options.run if options.run is not None else f"{int(start):x}"
        self.world = World(
            Clock(start, options.speed),
            run,
            options.seed,
            knobs=options.knobs,
            machines=machines or NoMachines(),
        )
        self.instances = Instances(self.world)
        self.ledger = Ledger()
        self.ledger.move("credit_grant", options.balance, "simulated money", start)
        background = Background(options.seed, options.skus, options.profile)
        self.exchange = Exchange(self.world, self.instances, self.ledger, options.skus, background)
        self.cloud = Cloud(self.world, options.balance, options.profile, options.steady)
        self.world.faults.does_at_once("price_spike", self._spike)
        self.world.say = say  # what was traded before the market opened is not news
        self.order_keys: dict[str, tuple[str, str]] = {}
        """Order id and body by idempotency key."""
        self.carried_out: Callable[[str, str], object] = lambda provider, route: None
        """Told of each call after it was carried out and before it is answered: for tests."""

    def end_machines(self) -> None:
        """Switch every machine off: the market closes."""
        for instance in list(self.instances.by_id.values()):
            if not instance.over:
                self.instances.terminate(instance)
        for pod in self.cloud.living():
            self.cloud.delete(pod)

    def _spike(self) -> None:
        self.exchange.spike()
        self.cloud.offers.spike()
