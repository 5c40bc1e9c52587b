"""`longshore agent` without the other commands: it starts in half the time. Run as
`python -m tests.support.agent_command`."""

import typer

from longshore.activities.node import holdings
from longshore.workers.agent_commands import register

if __name__ == "__main__":
    holdings.EVERY = 2.0  # in place of a minute
    app = typer.Typer()
    register(app)
    app(prog_name="longshore agent")
