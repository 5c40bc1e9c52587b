"""What the tests of providers tell the clients: a token, a time, bodies from the documentation."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TOKEN = "sk_live_not-to-be-seen"
NOW = datetime(2026, 9, 21, 12, 20, tzinfo=UTC)
BODIES = Path(__file__).parent / "bodies"


class Sleeps(list[float]):
    """Takes the place of sleeping, and keeps the seconds."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def body(name: str, /, **changed: Any) -> Any:
    """Return an example body, with the named fields of its top changed."""
    found = json.loads((BODIES / f"{name}.json").read_text())
    return {**found, **changed} if changed else found


def page(*items: Any, cursor: str | None = None) -> dict[str, Any]:
    """Return a page of San Francisco Compute's lists."""
    return {"object": "list", "cursor": cursor, "has_more": cursor is not None, "data": [*items]}
