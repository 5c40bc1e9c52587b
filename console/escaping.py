"""Text of others in a page: nothing in it is HTML, hides, or turns what is read around."""

import html

from longshore.models.visible import visible


def escape(text: str) -> str:
    """Return the text for HTML, as an attribute too, with such characters written out."""
    return html.escape(visible(text))
