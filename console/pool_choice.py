"""The choice of one pool, or of all, on pages that list what pools have."""

from collections.abc import Awaitable, Callable

from nicegui import ui

_ALL = "All pools"


class PoolChoice:
    """A select beside a page's heading; `value` is a pool's name, empty for all."""

    def __init__(self, asked: str, changed: Callable[[], Awaitable[None]]) -> None:
        self._select = (
            ui.select(
                {"": _ALL, **({asked: asked} if asked else {})}, value=asked, on_change=changed
            )
            .props('outlined dense options-dense aria-label="Pool"')
            .classes("pool")
        )

    @property
    def value(self) -> str:
        return str(self._select.value or "")

    def offer(self, names: list[str]) -> None:
        """Offer these pools, and the chosen one also where it is none of them."""
        chosen = self.value
        options = {"": _ALL, **{name: name for name in sorted({*names, chosen} - {""})}}
        if options != self._select.options:
            self._select.set_options(options, value=chosen)
