"""The account's money: a balance, what is held of it for open orders, and every movement."""

from dataclasses import dataclass, field


class ShortError(Exception):
    """The account has too little that is not held."""


@dataclass(frozen=True)
class Movement:
    id: str
    at: float
    kind: str
    """buy_order, sell_order, fee, credit_grant, pod."""
    amount: int
    """Micro-dollars; below zero when it left the account."""
    balance: int
    """Micro-dollars after it."""
    reference: str
    """The order or the machine that it is for."""


@dataclass
class Ledger:
    """Micro-dollars, all of them."""

    balance: int = 0
    holds: dict[str, int] = field(default_factory=dict[str, int])
    movements: list[Movement] = field(default_factory=list[Movement])

    @property
    def available(self) -> int:
        return self.balance - sum(self.holds.values())

    def hold(self, reference: str, amount: int) -> None:
        """Keep `amount` for an order. Raises ShortError when there is not so much."""
        if amount > self.available:
            raise ShortError
        self.holds[reference] = amount

    def change_hold(self, reference: str, amount: int) -> None:
        """Lower what is held for an order; at zero nothing is held any more."""
        if amount > 0:
            self.holds[reference] = amount
        else:
            self.holds.pop(reference, None)

    def move(self, kind: str, amount: int, reference: str, at: float) -> None:
        """Add `amount` to the balance, or take it when it is below zero."""
        self.balance += amount
        number = f"txn_{len(self.movements) + 1:06d}"
        self.movements.append(Movement(number, at, kind, amount, self.balance, reference))
