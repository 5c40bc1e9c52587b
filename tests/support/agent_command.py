"""`longshore agent` without the other commands: it starts in half the time. Run as
`python -m tests.support.agent_command`."""

import typer

from longshore.workers.agent_commands import register

if __name__ == "__main__":
    app = typer.Typer()
    register(app)
    app(prog_name="longshore agent")
