"""Pages that follow what changes: asked again and again while somebody can see them."""

from collections.abc import Awaitable, Callable

from nicegui import ui
from nicegui.events import GenericEventArguments

EVERY = 3.0
"""Seconds between two looks at the database."""
_TELL_WHETHER_SEEN = """
(() => {
  const tell = () => emitEvent("seen", !document.hidden);
  document.addEventListener("visibilitychange", tell);
  tell();  // it may have been hidden before anybody listened
})();
"""


def follow(refresh: Callable[[], Awaitable[None]], every: float = EVERY) -> ui.timer:
    """Call `refresh` now and every so many seconds, but only while the page can be seen."""
    timer = ui.timer(every, refresh)

    def seen(event: GenericEventArguments) -> None:
        timer.active = bool(event.args)

    ui.on("seen", seen)
    ui.run_javascript(_TELL_WHETHER_SEEN)
    return timer
