"""The choice of one pool, or of all, on pages that list what pools have."""

from collections.abc import Awaitable, Callable

from nicegui import ui

_ALL = "All pools"


class PoolChoice:
    """A select beside a page's heading; `value` is a pool's name, empty for all."""

    def __init__(
        self, asked: str, changed: Callable[[], Awaitable[None]], *, offers_all: bool = True
    ) -> None:
        """With `asked` chosen. Where not all pools may be chosen at once, `asked` is a pool."""
        self._all = {"": _ALL} if offers_all else {}
        self._select = (
            ui.select(
                {**self._all, **({asked: asked} if asked else {})},
                value=asked,
                on_change=changed,
            )
            .props('outlined dense options-dense aria-label="Pool"')
            .classes("pool")
        )

    @property
    def value(self) -> str:
        return str(self._select.value or "")

    def offer(self, names: list[str], chosen: str | None = None) -> None:
        """Offer these pools, and the chosen one also where it is none of them; choose `chosen`."""
        chosen = self.value if chosen is None else chosen
        options = {**self._all, **{name: name for name in sorted({*names, chosen} - {""})}}
        if options != self._select.options or chosen != self.value:
            self._select.set_options(options, value=chosen)
