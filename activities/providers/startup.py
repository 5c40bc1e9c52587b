"""What a bought machine runs when it comes up: a shell script that starts a node agent.

Markets hand it over as it is (cloud-init user data, or an environment variable of the image's
start). Its form is part of the contract: `export NAME=VALUE` lines, each value quoted for a shell,
and a last line that begins with ``exec longshore agent``. It holds the join token: a secret, never
logged and never stored in a history.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

COMMAND = "exec longshore agent"


@dataclass(frozen=True)
class Startup:
    """The environment and the arguments of an agent."""

    environment: Mapping[str, str]
    """LONGSHORE_* and TEMPORAL_* of the agent."""
    arguments: tuple[str, ...]
    """What follows `longshore agent`."""

    def script(self) -> str:
        exports = (f"export {k}={shlex.quote(v)}" for k, v in sorted(self.environment.items()))
        return "\n".join(
            ["#!/bin/sh", *exports, shlex.join([*COMMAND.split(), *self.arguments]), ""]
        )

    @classmethod
    def parse(cls, script: str) -> "Startup":
        """Return what a script holds. Raises ValueError when it starts no agent."""
        environment: dict[str, str] = {}
        for line in script.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["export"] and len(words) == 2 and "=" in words[1]:
                name, _, value = words[1].partition("=")
                environment[name] = value
            elif words[:3] == COMMAND.split():
                return cls(environment, tuple(words[3:]))
        raise ValueError(f"the start-up script has no line that begins with `{COMMAND}`")
