"""What all pages have in common: head, name, navigation, the badge, light and dark."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from nicegui import ui
from starlette.requests import Request

from longshore.console.escaping import escape
from longshore.models.addresses import CONSOLE_PAGES

THEME_COOKIE = "longshore_theme"

_CSS = (Path(__file__).parent / "theme.css").read_text()
_SWITCH = f"""
function longshoreTheme() {{
  const dark = !Quasar.Dark.isActive;
  Quasar.Dark.set(dark);
  document.cookie = "{THEME_COOKIE}=" + (dark ? "dark" : "light") +
    "; path=/; max-age=31536000; samesite=strict";
}}
"""
_SHOW_WHERE = """
const pages = document.querySelector(".bar nav"), here = pages?.querySelector("[aria-current]");
if (here) pages.scrollLeft =
  here.offsetLeft - pages.offsetLeft - (pages.clientWidth - here.offsetWidth) / 2;
"""
"""On a phone the later pages are beyond the edge of the navigation."""


class Badge:
    """Says in the header that what is shown is simulated."""

    def __init__(self) -> None:
        self._html = ui.html("", sanitize=False)

    def show(self, simulated: bool, what: str = "Simulated market") -> None:
        """Say that `what` stands here, or nothing."""
        self._html.content = (
            '<span class="badge" title="Nothing here is real, and nothing costs money.">'
            f"{escape(what)}</span>"
            if simulated
            else ""
        )


@contextmanager
def frame(path: str, request: Request) -> Iterator[Badge]:
    """Lay out the page at `path`; what is made inside the block is its content."""
    ui.add_css(_CSS)
    ui.add_head_html(f"<script>{_SWITCH}</script>")
    ui.dark_mode({"dark": True, "light": False}.get(request.cookies.get(THEME_COOKIE, "")))
    ui.html('<a class="skip" href="#content">Skip to the content</a>', sanitize=False)
    with ui.element("header").classes("bar"):
        ui.html('<a class="brand" href="/">Longshore</a>', sanitize=False)
        ui.html(_navigation(path), sanitize=False, tag="nav").props('aria-label="Pages"')
        with ui.element("div").classes("end"):
            badge = Badge()
            _button("Theme", 'type="button" onclick="longshoreTheme()"')
            ui.html(
                '<form method="post" action="/logout"><button class="plain">Sign out</button>'
                "</form>",
                sanitize=False,
            )
    ui.run_javascript(_SHOW_WHERE)
    with ui.element("main").classes("main").props('id="content" tabindex="-1"'):
        yield badge


def _navigation(path: str) -> str:
    return "".join(
        f'<a href="{link}"{" aria-current=page" if link == path else ""}>{escape(name)}</a>'
        for link, name in CONSOLE_PAGES
    )


def _button(label: str, attributes: str) -> None:
    ui.html(f'<button class="plain" {attributes}>{escape(label)}</button>', sanitize=False)


class Card:
    """A box with a title, a remark on the right, and content (made inside `with card:`)."""

    def __init__(self, title: str, *, padded: bool = False, classes: str = "") -> None:
        with ui.element("section").classes(f"card {classes}") as box:
            self._box = box
            label = f"card-{box.id}"
            box.props(f'aria-labelledby="{label}"')
            with ui.element("header"):
                self._title = ui.html("", sanitize=False, tag="h2").props(f'id="{label}"')
                self.title(title)
                self._remark = ui.html("", sanitize=False, tag="span")
            self._body = ui.element("div").classes("body padded" if padded else "body")

    def title(self, text: str) -> None:
        self._title.content = escape(text)

    def remark(self, text: str) -> None:
        self._remark.content = escape(text)

    def show(self, visible: bool) -> None:
        self._box.set_visibility(visible)

    def __enter__(self) -> ui.element:
        return self._body.__enter__()

    def __exit__(self, *details: object) -> None:
        self._body.__exit__(*details)


def toggle(
    options: Mapping[int, str] | Mapping[str, str], value: int | str, label: str
) -> ui.toggle:
    """Return a row of choices of which one holds."""
    made = ui.toggle(dict(options), value=value)
    return made.props(f'dense flat no-caps size="13px" aria-label="{label}"').classes("spans")


def chart(words: str) -> ui.echart:
    """Return an empty chart that says in `words` what it shows."""
    made = ui.echart({}, renderer="svg")
    made.props["role"] = "img"
    made.props["aria-label"] = words
    return made


def redraw(made: ui.echart, options: dict[str, object], words: str) -> None:
    """Show new options, if they are new."""
    made.props["aria-label"] = words
    if made.options != options:
        made.options.clear()
        made.options.update(options)
        made.update()
