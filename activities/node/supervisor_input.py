"""What an agent tells a supervisor, whoever of its lives has started that."""

from abc import ABC, abstractmethod
from typing import Any


class SupervisorInput(ABC):
    """The other end is `supervisor.py`."""

    def feed(self, sent_at: float) -> None:
        """Tell that a heartbeat which was sent at `sent_at` was acknowledged."""
        self._send({"fed": sent_at})

    def signal(self, signal_number: int) -> None:
        """Signal every process of the job; it goes on."""
        self._send({"signal": signal_number})

    def stop(self, signal_number: int, grace: float) -> None:
        """Ask for an end: the signal now, SIGKILL to all that is left after `grace` seconds."""
        self._send({"stop": signal_number, "grace": grace})

    @abstractmethod
    def _send(self, message: dict[str, Any]) -> None:
        """Write a line; to one that has gone that does nothing."""
