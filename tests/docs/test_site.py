"""The site shows the pages as the repository does: two readers of Markdown see the same blocks."""

import re
from collections import Counter
from typing import Any

import markdown
import pytest
import yaml
from markdown_it import MarkdownIt

from tests.support.local_stack import ROOT
from tests.support.pages import pages

BLOCKS = ("h1", "h2", "h3", "h4", "li", "tr", "pre", "img")


class Config(yaml.SafeLoader):
    """Reads mkdocs.yml, without what its tags make."""


Config.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
CONFIG: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Config)


@pytest.mark.parametrize("page", pages())
def test_the_site_shows_the_blocks_of_a_page(page: str):
    text = re.sub(r"^:::.*(\n    .*)*", "", (ROOT / page).read_text(), flags=re.MULTILINE)
    names = [name if isinstance(name, str) else next(iter(name)) for name in extensions()]
    shown = counted(markdown.markdown(text, extensions=names))
    assert shown == counted(MarkdownIt("commonmark").enable("table").render(text))


def test_a_list_that_one_reader_does_not_see_is_noticed():
    text = "One:\n- a\n- b\n"
    assert counted(markdown.markdown(text)) != counted(MarkdownIt().render(text))


def test_the_site_loads_nothing_from_elsewhere():
    text = (ROOT / "mkdocs.yml").read_text()
    assert "://" not in text
    assert CONFIG["theme"]["font"] is False


def extensions() -> list[Any]:
    return CONFIG["markdown_extensions"]


def counted(html: str) -> dict[str, int]:
    found = Counter(re.findall(r"<(\w+)", html))
    return {name: found[name] for name in BLOCKS}
